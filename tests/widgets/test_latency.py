"""The measurement of latencies, with small widgets on pages without a kernel."""

from __future__ import annotations

import pytest

from tests.browser import scenes
from tests.browser.frames import frames
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.browser.latency import measure
from tests.generation.test_explore import made_trace

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]

# Shows a new line after 200 ms, and its marks only after another %d ms.
WIDGET = """<div class="kvviz" tabindex="0"><span class="kv-sheet"><code>0</code></span><canvas></canvas></div><script>
    const root = document.querySelector(".kvviz"), line = root.querySelector("code");
    root.addEventListener("keydown", () => setTimeout(() => {
        line.textContent = Number(line.textContent) + 1;
        setTimeout(() => root.querySelector("canvas").width++, %d);
    }, 200));
</script>"""


def test_every_change_has_a_frame_with_another_picture(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(scenes, "SLIDERS", {"quest": ("page size",)})
    made_trace(200).save(tmp_path / "trace.safetensors")
    sizes = scenes.Sizes(tmp_path / "trace.safetensors", tokens=300, steps=8, budget=64, canvas=128)
    rows = {(row["widget"], row["change"]): row for row in measure(browser, sizes, live=False)}
    assert {widget for widget, _ in rows} == scenes.WIDGETS.keys()
    for row in rows.values():
        assert 0 < min(row["ms"]) <= row["median_ms"] <= row["worst_ms"] == max(row["ms"])
    counts = {control: (len(row["ms"]), row["pictures"]) for control, row in rows.items()}
    assert counts["stepper", "step"] == (7, 7)  # every step except the first
    assert counts["stepper", "layer"] == counts["stepper", "KV head"] == (2, 2)
    assert counts["comparer", "step"] == (3, 3)
    assert counts["canvas", "another matrix"] == (30, 2)  # two matrices in turn
    for control in (("explorer", "quest, budget"), ("inspector", "C")):
        n_frames, pictures = counts[control]
        assert n_frames == pictures >= 3


def test_the_time_ends_with_the_new_content(browser):
    page = browser.new_page()
    page.set_content(WIDGET % 0)
    late, later = (frame.ms for frame in frames(page.locator(".kvviz"), ["a", "b"]))
    assert min(late, later) >= 200
    page.close()


def test_a_picture_later_than_its_line_is_an_error(browser):
    page = browser.new_page()
    page.set_content(WIDGET % 40)
    with pytest.raises(RuntimeError, match="changed again"):
        frames(page.locator(".kvviz"), ["a"])
    page.close()
