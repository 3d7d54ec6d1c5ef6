"""Group names and styles of kvviz's methods do not change: existing figures and pages stay as they are."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from colour.models import cctf_decoding, cctf_encoding

from kvviz import methods, plots
from kvviz.plots.contrast import contrast
from kvviz.plots.theme import DARK, LIGHT
from kvviz.trace.earlier import GROUP_NAMES, STYLES
from kvviz.trace.styles import Style

# Name of each method's groups, its colour, dash and marker, as in the first figures and pages.
LOOKS = {
    "centroidkv": ("centroid", "#D55E00", "dash", "diamond"),
    "clusterkv": ("cluster", "#0072B2", "solid", "circle"),
    "ctkvr": ("query centroid", "#CC79A7", "dashdot", "triangle-up"),
    "full": ("cluster", "muted", "dot", "line-ew-open"),
    "h2o": ("cluster", "#A3877A", "solid", "circle-open"),
    "infinigen": ("cluster", "#7A8CA3", "solid", "circle-open"),
    "infllm": ("block", "#7A8CA3", "dot", "diamond-open"),
    "magicpig": ("cluster", "#7A8CA3", "longdash", "triangle-down-open"),
    "minference": ("cluster", "#86957E", "solid", "hexagon-open"),
    "oracle": ("cluster", "foreground", "solid", "diamond-tall"),
    "pqcache": ("block", "#009E73", "solid", "square"),
    "pyramidkv": ("cluster", "#A3877A", "dot", "triangle-up-open"),
    "quest": ("page", "#E69F00", "dash", "triangle-down"),
    "retrieval_attention": ("cluster", "#7A8CA3", "longdashdot", "star-open"),
    "shadowkv": ("chunk", "#7A8CA3", "dashdot", "triangle-up-open"),
    "snapkv": ("cluster", "#A3877A", "dash", "square-open"),
    "sparq": ("cluster", "#7A8CA3", "dash", "square-open"),
    "squeezed_attention": ("cluster", "#7A8CA3", "dash", "cross-open"),
    "streaming_llm": ("cluster", "#56B4E9", "dot", "x"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_method_keeps_its_group_name_and_style(name):
    method, (word, *look) = methods.get(name), LOOKS[name]
    assert method.group_name == word
    assert method.style == Style(*look)
    color = {"foreground": LIGHT.foreground, "muted": LIGHT.muted}.get(look[0], look[0])
    for dark, background in ((False, LIGHT.background), (True, DARK.background)):
        drawn = plots.method_style(name, dark)
        assert [drawn["dash"], drawn["symbol"]] == look[1:]
        assert contrast(drawn["color"], background) >= 4.5
    drawn = plots.method_style(name)["color"]
    assert drawn.lower() == (color.lower() if contrast(color, LIGHT.background) >= 4.5 else darker(color))


def darker(color):
    """The lightest tone of a colour, all channels scaled alike in linear light, that can be read on white."""
    linear = cctf_decoding(np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]))
    for level in range(255, 0, -1):
        tone = "#" + "".join(f"{round(255 * float(channel)):02x}" for channel in cctf_encoding(linear * level / 256))
        if contrast(tone, "#ffffff") >= 4.5:
            return tone
    raise AssertionError(color)


def test_styles_for_older_files_equal_those_of_the_classes():
    assert {name: tuple(look) for name, (_, *look) in LOOKS.items()} == STYLES
    assert {name: word for name, (word, *_) in LOOKS.items() if word != "cluster"} == GROUP_NAMES


def test_figures_have_the_same_styles_without_loading_a_method():
    program = f"""
import json, sys
from kvviz import plots
print(json.dumps({{name: list(plots.method_style(name, dark=True).values()) for name in {list(LOOKS)}}}))
assert not {{"torch", "kvviz.methods"}} & set(sys.modules)
"""
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(completed.stdout) == {name: list(plots.method_style(name, dark=True).values()) for name in LOOKS}


def test_a_subclass_with_another_name_does_not_inherit_the_style():
    quest = methods.get("quest")
    paged = type("Paged", (quest,), {"name": "paged quest", "title": "Paged"})
    try:
        assert paged.group_name == "page"
        assert paged.style == Style().completed("paged quest", "retrieval") != quest.style
        assert plots.method_style("paged quest")["color"] == darker("#7A8CA3")
        assert type("Same", (quest,), {}).style == quest.style  # without another name it is the same method
    finally:
        methods.base.REGISTRY.pop("paged quest")
