"""The mechanism stepper live in JupyterLab: another head, step or token is computed by the kernel."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON, empty_lab, run_cell
from tests.browser.picking import pick_head
from tests.widgets.test_layout_browser import mechanism

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]
CELL = """
from tests.widgets.test_layout_browser import mechanism
made = mechanism()
made
"""


def test_the_kernel_plays_another_head_step_and_token(browser, tmp_path):
    made = mechanism()
    with empty_lab(browser, tmp_path, {"OMP_NUM_THREADS": "1"}) as lab:
        run_cell(lab, CELL)
        stepper = lab.locator(".kv-mechanism")
        expect(stepper.locator(".kv-attended[data-position]").first).to_be_visible()
        line, told = stepper.locator(".kv-sheet code"), stepper.locator(".kv-told")
        pick_head(stepper, 3, 1)
        expect(line).to_contain_text("layer=3, head=1, step=7")
        stepper.get_by_label("step", exact=True).select_option("2")
        expect(line).to_contain_text("head=1, step=2")
        made.head, made.step = 1, 2
        slider = stepper.get_by_role("slider", name="frame", exact=True)
        slider.press("Home")
        expect(told.last).to_be_visible()
        assert " ".join(told.all_inner_texts()) == made.scene.frames[0].words
        stepper.locator(".kv-strip [data-position='77']").click()
        expect(line).to_contain_text("token=77")
        made.token = 77
        expect(told.first).to_contain_text("word77")
        slider.press("ArrowRight")  # a frame needs no kernel
        expect(line).to_contain_text("frame=1")
