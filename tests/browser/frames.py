"""Time from a key press, or a choice in a select, to the frame that shows what it changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from playwright.sync_api import Locator

TIMEOUT_S = 300
SETTLE_MS = 50  # after which the picture may not have changed again

# New content means that the Python line or the reason for a refusal changed; if there is no such text, that the first
# pixels of the canvas changed. A frame is on the screen when the task after its animation callback runs: style, layout
# and paint come between the two.
WATCH = """() => {
    const frames = (window.kvvizFrames = []);
    const texts = document.querySelectorAll(".kvviz .kv-sheet code, .kvviz .kv-explorer-refusal");
    const canvas = document.querySelector(".kvviz canvas");
    const pixels = () => canvas.getContext("2d").getImageData(0, 0, 64, 1).data.join();
    const content = () => texts.length ? Array.from(texts, (node) => node.textContent).join("\\n") : pixels();
    window.kvvizPicture = () => JSON.stringify([
        [...document.querySelectorAll(".kvviz .kv-attended[data-position]")].map((span) => span.dataset.position),
        [...document.querySelectorAll(".kvviz canvas")].map((canvas) => canvas.toDataURL()),
    ]);
    window.kvvizWatched?.abort();
    window.kvvizWatched = new AbortController();
    const changed = (event) => {
        if (event.type === "input" && event.target.tagName !== "SELECT") return; // a slider's keydown came before
        const before = content();
        requestAnimationFrame(function look() {
            if (content() === before) return requestAnimationFrame(look);
            const painted = new MessageChannel();
            painted.port1.onmessage = () => {
                const ms = performance.now() - event.timeStamp;
                frames.push({ ms, content: content(), picture: window.kvvizPicture() });
            };
            painted.port2.postMessage(null);
        });
    };
    const options = { capture: true, signal: window.kvvizWatched.signal };
    for (const event of ["keydown", "input"]) document.addEventListener(event, changed, options);
}"""
STOPS = """node => node.tagName === "SELECT"
    ? [node.options.length - 1, node.selectedIndex, true]
    : [Number(node.max), Number(node.value), false]"""


class Frame(NamedTuple):
    """A frame with new content: milliseconds since the event, the text that identifies it, and its whole picture."""

    ms: float
    content: str
    picture: str


def frames(control: Locator, changes: Iterable[str | int]) -> list[Frame]:
    """The frame that each change of `control` causes. A change is a key or the index of an option.

    Raises playwright's TimeoutError if a change has no visible effect, RuntimeError if a frame was not complete: its
    time would be too short.
    """
    page = control.page
    control.focus()
    page.evaluate(WATCH)
    for count, change in enumerate(changes, start=1):
        if isinstance(change, str):
            control.press(change)
        else:
            control.select_option(index=change)
        page.wait_for_function("count => window.kvvizFrames.length >= count", arg=count, timeout=1000 * TIMEOUT_S)
        page.wait_for_timeout(SETTLE_MS)
        if not page.evaluate("() => window.kvvizFrames.at(-1).picture === window.kvvizPicture()"):
            raise RuntimeError(f"{control}, {change}: the picture changed again after the frame that was timed")
    return [Frame(**frame) for frame in page.evaluate("() => window.kvvizFrames")]


def tour(control: Locator) -> list[str | int]:
    """The changes that visit all other values of a slider or select once: up to the end, then from the start."""
    last, at, select = control.evaluate(STOPS)
    if select:
        return [*range(at + 1, last + 1), *range(at)]
    return ["ArrowRight"] * (last - at) + (["Home"] + ["ArrowRight"] * (at - 1) if at > 0 else [])
