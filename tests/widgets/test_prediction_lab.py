"""The prediction live in JupyterLab: Python observes the answers, and sets them."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON, empty_lab, run_cell

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]
CELL = """
from ipywidgets import Label, VBox
from tests.widgets.predictions import ANSWERS, prediction
made, heard = prediction(), Label("nothing")

def hear(change):
    heard.value = f"{len(made.answers)} answers, revealed {made.revealed}: {list(made.answers.values())[-1:]}"
    if len(made.answers) == 2:
        made.answers = ANSWERS | made.answers

made.observe(hear, ["answers", "revealed"])
VBox([made, heard])
"""


def test_the_kernel_hears_answers_sets_others_and_hears_the_comparison(browser, tmp_path):
    with empty_lab(browser, tmp_path, {"OMP_NUM_THREADS": "1"}) as lab:
        run_cell(lab, CELL)
        made, heard = lab.locator(".kv-prediction"), lab.locator(".widget-label, .jupyter-widget-label").last
        compare = made.get_by_role("button", name="Compare with the measurement")
        expect(compare).to_be_disabled()
        made.get_by_role("slider").first.press("Home")  # a shortcut of the notebook elsewhere
        expect(heard).to_have_text("1 answers, revealed False: [0.0]")
        made.get_by_role("radio", name="ClusterKV").check()
        expect(heard).to_contain_text("4 answers, revealed False")
        names = made.locator(".kv-order .kv-ordered")
        expect(names).to_have_text(["StreamingLLM", "CTkvr", "Quest", "ClusterKV"])  # as Python set them
        expect(made.locator(".kv-point").last).to_have_attribute("aria-valuetext", "0.50")
        expect(made.locator(".kv-asked-value output")).to_have_text("0.0 tokens")
        compare.press("Enter")
        expect(heard).to_contain_text("4 answers, revealed True")
        expect(made.locator(".kv-result").nth(1)).to_have_text("You said ClusterKV, and that was measured.")
        made.get_by_role("button", name="Try again").press("Enter")
        expect(heard).to_contain_text("revealed False")
        expect(made.locator(".kv-result").nth(1)).to_be_empty()
