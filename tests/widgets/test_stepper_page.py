"""The page that replays a recording without a kernel: its content, and that prompts are escaped. No browser."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from html.parser import HTMLParser

import pytest

from kvviz.errors import InvalidInputError
from kvviz.widgets import DecodeStepper, static_page, unions, view
from tests.browser.recordings import hostile_recording
from tests.synthetic import recording


class Scripts(HTMLParser):
    """A parser that collects [attributes, text] of every script element."""

    def __init__(self, page):
        super().__init__()
        self.found, self.tags, self.inside = [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "script"
        if self.inside:
            self.found.append([dict(attrs), ""])

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.found[-1][1] += data


def page_data(page):
    """What the page's only widget holds."""
    scripts = Scripts(page).found
    data = next(json.loads(text) for attributes, text in scripts if attributes.get("id") == "kvviz-page")
    (widget,) = data["widgets"]
    return widget


def embedded(page):
    """The initial traits of the page, and its bytes by key."""
    scripts = Scripts(page).found
    slices = {
        attributes["data-slice"]: gzip.decompress(base64.b64decode(text))
        for attributes, text in scripts
        if "data-slice" in attributes
    }
    return page_data(page)["state"], slices


def test_the_page_holds_the_recording_and_escapes_the_prompt():
    made = hostile_recording()
    stepper = DecodeStepper(made, step=2, layer=3, head=1)
    page = stepper.to_html()
    parsed = Scripts(page)
    assert [tag for tag, _ in parsed.tags].count("script") == 2 + 6  # data, code, two layers × (two heads, all)
    assert not [
        tag
        for tag, attributes in parsed.tags
        if tag in ("img", "link", "iframe") or "src" in attributes or "href" in attributes
    ]
    data, slices = embedded(page)
    assert data["page"]["tokens"] == made.tokens
    assert (data["step"], data["layer"], data["head"]) == (2, 3, 1)
    assert slices == {
        f"{layer}/{head}": view.pack(view.row_arrays(made, layer, head), layer, head)
        for layer in (2, 3)
        for head in (0, 1)
    } | {f"{layer}/layer/0": view.pack(unions.arrays(made, layer, range(2), "layer"), layer, 0) for layer in (2, 3)}
    assert "alert(1)</" not in page
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert "default-src 'none'" in page
    assert data["page"]["notes"] == []


def test_the_page_embeds_the_requested_layers_or_those_that_fit(monkeypatch):
    made = recording(layers=(2, 5, 9, 12))
    stepper = DecodeStepper(made, layer=9)
    data, slices = embedded(stepper.to_html(layers=[5], heads=[1]))
    assert set(slices) == {"5/1"}
    assert (data["layer"], data["head"], data["page"]["layers"], data["page"]["heads"]) == (5, 1, [5], [1])
    assert data["page"]["notes"] == [
        "This page holds layer 5 of the 4 recorded and head 1 of 2; to_html(layers=[…], heads=[…]) embeds others."
    ]
    one_layer = static_page._size(static_page._slices(made, 9, [0, 1], ["layer"]))
    monkeypatch.setattr(static_page, "SIZE_LIMIT", int(2.5 * one_layer))
    data, slices = embedded(stepper.to_html())
    assert data["page"]["layers"] == [2, 9]  # the shown layer, and the farthest from it
    assert "layers 2, 9 of the 4 recorded" in data["page"]["notes"][0]
    with pytest.raises(InvalidInputError, match="a recorded layer"):
        stepper.to_html(layers=[3])
    with pytest.raises(InvalidInputError, match="0 to 1"):
        stepper.to_html(heads=[2])
    for nothing in ({"layers": []}, {"heads": []}):
        with pytest.raises(InvalidInputError, match="at least one"):
            stepper.to_html(**nothing)


def test_the_page_is_written_atomically(tmp_path, monkeypatch):
    stepper = DecodeStepper(recording())
    path = tmp_path / "page.html"
    page = stepper.to_html(path)
    assert path.read_text(encoding="utf-8") == page

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        stepper.to_html(path, layers=[3])
    assert path.read_text(encoding="utf-8") == page
    assert list(tmp_path.iterdir()) == [path]
