"""A recording that is played step by step, in a page without a kernel."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from kvviz.widgets import MechanismStepper
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.synthetic import recording
from tests.widgets.test_browser import opened

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]


def test_frames_of_a_recording_are_spoken_and_its_call_names_no_queries(browser, tmp_path):
    made = recording(prompt_length=300)
    stepper = MechanismStepper(made, head=1)
    stepper.to_html(tmp_path / "page.html")
    frames = stepper.scene.frames
    with opened(browser, tmp_path / "page.html") as page:
        root = page.locator(".kv-mechanism")
        slider = page.get_by_role("slider", name="frame", exact=True)
        for number in range(1, len(frames)):
            slider.press("ArrowRight")
            expect(root.locator("p.kv-spoken").last).to_contain_text(f"frame {number + 1} of {len(frames)}")
        expect(root.locator(".kv-told").first).to_have_text(frames[-1].text)
        call = root.get_by_text("MechanismStepper(recording, layer=").first.text_content()
        assert call.endswith(f"token={stepper.token}, frame={len(frames) - 1})")
