"""Words on the mechanism stepper's canvas can be read: axe does not see them, so the page's own drawing is watched."""

from __future__ import annotations

import pytest

import kvviz
from kvviz.plots.contrast import LEAST, contrast
from kvviz.widgets import MechanismStepper
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.widgets.test_browser import opened

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]

# Keeps the colour and the place of each word that starts at its place.
WATCH = """
window.written = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const { a, d, e, f } = this.getTransform();
  const place = [Math.round(x * a + e), Math.round((y - 8) * d + f)];
  if (this.textAlign === "left" && text.trim()) window.written.push([this.canvas, text, this.fillStyle, place]);
  return write.apply(this, arguments);
};
null; // Playwright would call a function
"""
# Once the frame is drawn: each word with its colour and the most frequent one behind it, from a copy of its canvas.
READ = """async () => {
  await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
  const copies = new Map(), hex = (channel) => channel.toString(16).padStart(2, "0");
  const words = window.written.splice(0).map(([canvas, text, ink, place]) => {
    if (!copies.has(canvas)) {
      const { width, height } = canvas;
      const copy = Object.assign(document.createElement("canvas"), { width, height });
      copies.set(canvas, copy.getContext("2d", { willReadFrequently: true }));
      copies.get(canvas).drawImage(canvas, 0, 0);
    }
    const { data } = copies.get(canvas).getImageData(...place, 16, 9), counts = new Map();
    for (let at = 0; at < data.length; at += 4) {
      const colour = [...data.slice(at, at + 4)].map(hex).join("");
      counts.set(colour, 1 + (counts.get(colour) ?? 0));
    }
    const [ground] = [...counts].reduce((most, next) => next[1] > most[1] ? next : most);
    return [text, ink, `#${ground.slice(0, 6)}`, Number.parseInt(ground.slice(6), 16)];
  });
  return words.filter(([, , , alpha]) => alpha === 255);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("method", ["clusterkv", "quest", "ctkvr"])  # with labels on segments, chips and faint chips
def test_words_on_coloured_marks_are_legible(browser, tmp_path, method, scheme):
    trace, fields = kvviz.open_runs(live=False).trace("layers"), {"sinks": 16, "recent": 16}
    stepper = MechanismStepper(trace, method, layer=8, head=0, budget=128, **fields)
    stepper.frame = len(stepper.scene.frames) - 1
    stepper.to_html(tmp_path / "mechanism.html")
    with opened(browser, tmp_path / "mechanism.html", scheme=scheme, motion="reduce") as page:
        page.evaluate(WATCH)
        slider = page.get_by_role("slider", name="frame", exact=True)
        slider.press("Home")
        written = []
        for _ in stepper.scene.frames:
            slider.press("ArrowRight")
            written += page.evaluate(READ)
    assert len({ground for _, _, ground, _ in written}) > 1  # several hues, so that the watch works
    assert [word for word in written if contrast(*word[1:3]) < LEAST] == []
