"""Figures of a diagnosis: what is drawn is what the diagnosis says."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kvviz import plots
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.plots.example import example_diagnosis


def with_tables(**tables):
    return dataclasses.replace(example_diagnosis(), **tables)


def test_each_tile_is_a_heads_number_and_the_smallest_set_is_framed():
    figure = plots.loss_by_head(example_diagnosis())
    (tiles,) = figure.data
    assert dict(zip(tiles.x.tolist(), tiles.marker.color.tolist(), strict=True)) == {0: 0.25, 1: 1.5}
    assert tiles.text == ("", "1.5"), "a number that is small against the largest is not written"
    _, frame = figure.layout.shapes
    assert (frame.x0, frame.x1, frame.y0, frame.y1) == (0.5, 1.5, -0.5, 0.5)
    assert "1 of 2 heads" in figure.layout.title.text


def test_layers_in_which_the_method_does_not_choose_have_no_tile():
    d = example_diagnosis()
    restored = d.restored[d.restored["layer"] != 0]
    (tiles,) = plots.loss_by_head(with_tables(restored=restored)).data
    assert tiles.x.tolist() == [1]


def test_a_stage_that_was_not_tried_is_refused():
    with pytest.raises(InvalidInputError, match="'grouping', which was tried for no head; wanted 'all'"):
        plots.loss_by_head(example_diagnosis(), "grouping")
    with pytest.raises(UnknownNameError, match="stage"):
        plots.loss_by_head(example_diagnosis(), "sorting")


def test_the_waterfall_ends_at_the_methods_log_probability():
    d = example_diagnosis()
    (bars,) = plots.loss_stages(d).data
    assert bars.x == ("full attention", "the budget", "the rest", "badly grouped", "Quest")
    assert list(bars.measure) == ["absolute", "relative", "relative", "relative", "total"]
    assert sum(bars.y[:-1]) == pytest.approx(d.method.total)
    assert sum(change for _, change in d.causes) == pytest.approx(-d.lost)


def test_a_method_that_evicts_loses_what_it_does_not_keep():
    d = example_diagnosis()
    rows = d.waterfall[d.waterfall["stage"] != "grouping"]
    evicting = with_tables(waterfall=rows, stages=("kept",))
    assert evicting.causes == [("the budget", pytest.approx(-0.15)), ("not kept", pytest.approx(-4.75))]


def test_evidence_is_tinted_where_the_text_has_it():
    d = dataclasses.replace(example_diagnosis(), tokens=["<b>", "x" * 60, "$y$", "d", "e"])
    figure = plots.evidence(d)
    tints, text = figure.data[0], figure.data[1]
    assert text.text == ("&lt;b&gt;", "x" * 60, "&#36;y&#36;")
    at = text.text.index("x" * 60)
    assert (tints.x[0], tints.base[0] + 0.31) == (text.x[at], text.y[at])
    assert np.allclose(text.y, [0, 0, 0])
    assert tints.width[0] == 60
    long = dataclasses.replace(d, tokens=["a" * 50, "b" * 50, "c", "d", "e"])
    assert plots.evidence(long).data[1].y == (0, 1, 1), "a token that does not fit begins a line"


def test_no_evidence_is_refused():
    d = example_diagnosis()
    with pytest.raises(InvalidInputError, match="without evidence"):
        plots.evidence(with_tables(evidence=d.evidence[:0]))
