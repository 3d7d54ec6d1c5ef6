"""Figures escape all texts, have no side effects, and share one style."""

from __future__ import annotations

import colorsys
import re

import numpy as np
import pandas as pd
import plotly.io as pio
import pytest

from kvviz import plots
from kvviz.errors import IncompatibleFileError
from kvviz.plots.theme import DARK, LIGHT
from kvviz.trace import Recording
from kvviz.trace.hues import HUES, hue
from kvviz.trace.styles import Style
from tests import synthetic
from tests.plots import plot_data
from tests.plots.plot_data import make_trace

HOSTILE = ["<script>alert(1)</script>", "<b>bold</b>", "$x^2$", "a & b", "line\nbreak", "%{x}"]


@pytest.fixture
def table():
    return plot_data.table()


def texts_of(figure):
    """All texts of a figure that plotly reads as HTML."""
    texts = [figure.layout.title.text or "", *(note.text for note in figure.layout.annotations)]
    for trace in figure.data:
        if trace.text is not None:
            texts += np.ravel(np.asarray(trace.text, dtype=object)).tolist()
        texts.append(trace.name or "")
    return texts


def assert_escaped(texts):
    for text in texts:
        assert not set(re.findall(r"<[^>]*>", text)) - {"<br>"}, text
        assert "$" not in text
        assert "\n" not in text


def test_texts_of_tokens_methods_and_models_are_escaped():
    words = [HOSTILE[place % len(HOSTILE)] for place in range(68)]
    recording = synthetic.recording(prompt_length=60, steps=8, budget=24, tokens=words)
    recording = recording.replace(model="<i>m</i>", method="<u>$q$</u>")
    table = pd.DataFrame({"method": ["<u>$q$</u>"], "budget": [8], "recall": [0.5]})
    table.attrs["model"] = "<i>$m$</i>"
    figures = [
        plots.selection_map([recording, recording], 2),
        plots.recall_by_budget(table),
        plots.recall_by_budget(table, title="<i>$t$</i>"),
        plots.semantic_space(make_trace(recording), 2, recording=recording),
    ]
    for figure in figures:
        assert_escaped(texts_of(figure))
    assert any("&lt;script&gt;alert(1)&lt;/script&gt;" in text for text in texts_of(figures[0]))
    assert any("&#36;x^2&#36;" in text for text in texts_of(figures[3]))


def test_figures_have_no_side_effects(tmp_path, table, monkeypatch):
    monkeypatch.setattr(pio, "show", lambda *_, **__: pytest.fail("a figure was shown"))
    original = synthetic.recording()
    recording = Recording.load(original.save(tmp_path / "recording"))  # read-only arrays
    keys, labels, query = np.random.default_rng(0).normal(size=(40, 8)), np.arange(40) % 4, np.ones(8)
    copies = [keys.copy(), labels.copy(), query.copy(), table.copy()]
    default = pio.templates.default
    for dark in (False, True):
        plots.selection_map(recording, 2, dark=dark)
        plots.recall_by_budget(table, dark=dark)
        plots.semantic_space(keys, clusters=labels, query=query, dark=dark)
    for before, after in zip(copies[:3], (keys, labels, query), strict=True):
        np.testing.assert_array_equal(before, after)
    pd.testing.assert_frame_equal(copies[3], table)
    np.testing.assert_array_equal(recording.events[2].indices, original.events[2].indices)
    assert pio.templates.default == default


def contrast(first: str, second: str) -> float:
    """WCAG's contrast ratio of two #rrggbb colours, 1 to 21."""
    channels = [np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255 for color in (first, second)]
    linear = [np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in channels]
    light, dark = sorted((float(values @ [0.2126, 0.7152, 0.0722]) for values in linear), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def hue_of(color: str) -> float:
    """Hue in 0..1 of a colour in linear light."""
    channels = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return colorsys.rgb_to_hsv(*np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4))[0]


def test_methods_keep_their_colours_and_unknown_methods_have_their_own_style():
    okabe_ito = {"clusterkv": "#0072B2", "centroidkv": "#D55E00", "pqcache": "#009E73", "ctkvr": "#CC79A7",
                 "quest": "#E69F00", "streaming_llm": "#56B4E9"}  # fmt: skip
    for dark, neutral in ((False, LIGHT), (True, DARK)):
        for name, color in okabe_ito.items():
            drawn = plots.method_style(name, dark)["color"]
            assert contrast(drawn, neutral.background) >= 4.5
            if contrast(color, neutral.background) >= 4.5:
                assert drawn == color
            else:  # a tone of the same hue, as close as it may be
                assert hue_of(drawn) == pytest.approx(hue_of(color), abs=0.02)
                assert contrast(drawn, neutral.background) < 4.6
        assert plots.method_style("oracle", dark)["color"] == neutral.foreground
        assert plots.method_style("full", dark)["color"] == neutral.muted
    known = ["h2o", "snapkv", "pyramidkv", "infinigen", "sparq", "infllm", "shadowkv", "magicpig"]
    known += ["retrieval_attention", "squeezed_attention", "minference"]
    looks = [tuple(plots.method_style(name).values()) for name in [*okabe_ito, "oracle", "full", *known]]
    assert len(set(looks)) == len(looks)
    tones = {plots.method_style("mine", kind=kind)["color"] for kind in ("retrieval", "eviction", "merging", None)}
    assert len(tones) == 4
    assert plots.method_style("mine", kind="eviction")["color"] == plots.method_style("h2o")["color"]
    # It is the same in every process, since it does not depend on Python's randomised hash.
    assert plots.method_style("mine") == {"color": LIGHT.muted, "dash": "dash", "symbol": "hourglass"}


def test_templates_are_registered_and_their_text_is_legible():
    for name, neutral in (("kvviz_light", LIGHT), ("kvviz_dark", DARK)):
        layout = pio.templates[name].layout
        assert (layout.paper_bgcolor, layout.font.color) == (neutral.background, neutral.foreground)
        assert contrast(neutral.foreground, neutral.background) > 12
        assert contrast(neutral.muted, neutral.background) > 4.5
        figure = plots.semantic_space(np.eye(4), dark=name == "kvviz_dark")
        assert figure.layout.template.layout.paper_bgcolor == neutral.background


def test_clusters_have_the_widgets_hues_and_contrast_rises_with_weight():
    clusters = np.arange(200)
    hues = [plots.cluster_hue(int(cluster)) for cluster in clusters]
    np.testing.assert_allclose(hues, hue(clusters).astype(float) * 360 / HUES)
    for dark, neutral in ((False, LIGHT), (True, DARK)):
        for cluster in range(24):
            ratios = [
                contrast(plots.cluster_color(cluster, weight, dark), neutral.background) for weight in (0, 0.5, 1)
            ]
            assert ratios == sorted(ratios)
            assert ratios[-1] > 3


def test_a_table_has_the_styles_of_its_methods(table):
    style = {"color": "#AA3377", "dash": "longdash", "symbol": "star"}
    table = pd.DataFrame({"method": ["mine", "mine", "quest"], "budget": [8, 16, 8], "recall": [0.5, 0.6, 0.4]})
    table.attrs["styles"] = {"mine": style}
    mine, quest = plots.recall_by_budget(table).data
    assert (mine.line.color, mine.line.dash, mine.marker.symbol) == tuple(style.values())
    assert quest.line.color == plots.method_style("quest")["color"]
    table.attrs["styles"] = {"mine": {"color": "foreground"}}
    for dark, neutral in ((False, LIGHT), (True, DARK)):
        drawn = plots.recall_by_budget(table, dark=dark).data[0].line
        assert (drawn.color, drawn.dash) == (neutral.foreground, plots.method_style("mine")["dash"])
    table.attrs["styles"] = {"mine": {"color": "javascript:"}}
    with pytest.raises(IncompatibleFileError, match="styles of mine"):
        plots.recall_by_budget(table)


def test_every_figure_of_a_table_uses_its_styles(table):
    color = "#AA3377"
    rows = {
        "method": "mine", "index": "mine", "cache": "mine", "part": "end to end", "budget": [8, 16], "batch": [1, 2],
        "length": [512, 1024], "page_size": [4, 8], "recent_steps": [0, 1], "score": [0.1, 0.2], "recall": [0.1, 0.2],
        "hit_rate": [0.1, 0.2], "seconds": [0.1, 0.2], "perplexity": [9.0, 8.0], "tokens_per_s": [10.0, 20.0],
    }  # fmt: skip
    styled = pd.DataFrame(rows)
    styled.attrs["styles"] = {"mine": {"color": color}}
    figures = [
        plots.recall_by_budget(styled),
        plots.score_by_budget(styled),
        plots.perplexity_by_length(styled.drop(columns="budget")),
        plots.throughput_by_batch(styled.drop(columns="length")),
        plots.long_generation(styled.rename(columns={"length": "step"}).drop(columns="budget")),
        plots.index_build_time(styled),
        plots.latency(styled.drop(columns="batch")),
        plots.ablation(styled, field="page_size"),
        plots.hit_rate(styled),
    ]
    for figure in figures:
        drawn = [trace.line.color for trace in figure.data if trace.type == "scatter" and "mine" in (trace.name or "")]
        assert drawn
        assert set(drawn) == {color}


def test_a_recording_is_drawn_in_its_style():
    run = synthetic.recording().replace(method="mine", style=Style("#AA3377", "dot", "star"))
    for figure in (plots.selection_map(run, 2), plots.layer_budgets(run)):
        assert "#AA3377" in figure.to_json()
    assert "#AA3377" not in plots.selection_map(run.replace(style=None), 2).to_json()
