"""Figures of token importance against loops over the recording, and their refusals."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from kvviz import metrics, plots
from kvviz.errors import InvalidInputError
from tests import synthetic
from tests.plots.plot_data import make_trace


@pytest.fixture(scope="module")
def recording():
    """A recording with 120 prompt tokens, 6 steps, layers 2 and 3, and 2 KV heads."""
    return synthetic.recording()


@pytest.fixture(scope="module")
def trace(recording):
    return make_trace(recording)


def words(figure):
    return figure.layout.title.text.replace("<br>", " ")


def ranked(weights, stop):
    """Positions below `stop`, by decreasing attention."""
    return sorted(range(stop), key=lambda place: (-weights[place], place))


def test_importance_drift_draws_the_ranks_of_the_recording(recording):
    figure = plots.importance_drift(recording, 3, 1, tokens=[5, 17, 100], top=20, recent=10)
    orders = [ranked(recording.attention(step, 3)[1].tolist(), 111) for step in range(6)]
    for line, position in zip(figure.data[:3], (5, 17, 100), strict=True):
        assert list(line.y) == [order.index(position) + 1 for order in orders]
        assert list(line.x) == list(range(6))
        assert f"word{position}” ({position})" in line.name
    kept = np.mean([len({*order[:20]} & {*orders[0][:20]}) / 20 for order in orders[1:]])
    assert f"shares {kept:.0%} of its top 20" in words(figure)
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]  # rank 1 on top
    last = plots.importance_drift(recording, 3, 1, tokens=[5], steps=2, top=20).data[0]
    np.testing.assert_array_equal(last.x, [4, 5])


def test_importance_drift_chooses_the_tokens_that_drift_most(recording):
    figure = plots.importance_drift(recording, 2, top=20, recent=10)
    ranks = metrics.token_ranks(recording.events[2].attention[:, 0, :111])
    chosen = metrics.drifting_tokens(ranks, 20)
    expected = [f"{how}: “ word{place}” ({place})" for how, place in chosen.items()]
    assert [line.name for line in figure.data] == [*expected, "top 20"]
    np.testing.assert_array_equal(figure.data[-1].y, [20, 20])


def test_a_traces_last_positions_are_the_steps_and_query_heads_are_averaged(trace):
    figure = plots.importance_drift(trace, 3, 1, tokens=[4, 8], steps=5, top=10, recent=0)
    length, group = len(trace), trace.geometry.group_size
    for step, position in enumerate(range(length - 5, length)):
        weights = np.zeros(length)
        for query in trace.queries[3][group : 2 * group, position].astype(float):
            logits = trace.keys[3][1, : position + 1].astype(float) @ query / 8
            weights[: position + 1] += np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        order = ranked(weights, length - 4)
        assert [line.y[step] for line in figure.data[:2]] == [order.index(token) + 1 for token in (4, 8)]


def test_a_recording_by_query_head_is_averaged_over_the_group(recording):
    shared = plots.importance_drift(recording, 2, 1, tokens=[3], top=9, recent=0).data[0]
    events = recording.events[2]
    wide = {name: np.repeat(getattr(events, name), 2, axis=1) for name in ("indices", "groups", "scores", "attention")}
    each = recording.replace(events={2: type(events)(**(vars(events) | wide))})
    np.testing.assert_array_equal(plots.importance_drift(each, 2, 1, tokens=[3], top=9, recent=0).data[0].y, shared.y)
    lines = [line.name for line in plots.attention_distribution(each, 2).data]
    assert lines[0].startswith("one query head (4)")
    assert plots.attention_distribution(recording, 2).data[0].name.startswith("one KV head (2)")


def test_page_fragmentation_counts_the_pages_of_the_most_attended_tokens(recording):
    figure = plots.page_fragmentation(recording, 2, 1, top=12, page_size=8, sinks=4, recent=10)
    counts, pages, dots = Counter(), [], set()
    for step in range(6):
        end = recording.visible(step) - 10
        weights = recording.attention(step, 2)[1].tolist()
        important = sorted(range(4, end), key=lambda place: (-weights[place], place))[:12]
        held = Counter(place // 8 for place in important)
        counts.update(held.values())
        pages.append(len(held))
        dots |= {(place, step) for place in important}
    heat, marks, _, bars, chance = figure.data
    np.testing.assert_allclose(bars.y, [counts[number] / counts.total() for number in range(1, 9)])
    assert np.nansum(chance.y) == pytest.approx(1, abs=0.01)
    start, stop = (round(edge + 0.5) for edge in figure.layout.xaxis.range)
    assert (start % 8, stop - start) == (0, 32)
    assert set(zip(marks.x, marks.y, strict=True)) == {dot for dot in dots if start <= dot[0] < stop}
    for step in range(6):
        np.testing.assert_allclose(heat.customdata[step], recording.events[2].attention[step, 1, start:stop])
    assert f"on {np.mean(pages):.0f} pages, 2 would suffice" in words(figure)
    wasted = np.mean([1 - 12 / (8 * number) for number in pages])  # the last page, short, is all recent tokens
    assert f"{wasted:.0%} of their tokens wasted" in words(figure)
    assert f"average {12 * 6 / sum(pages):.1f} of a page's 8" in figure.layout.annotations[1].text


def test_page_fragmentation_shows_the_requested_pages(recording):
    figure = plots.page_fragmentation(recording, 2, top=12, page_size=16, recent=20, pages=(6, 8), steps=3)
    assert tuple(figure.layout.xaxis.range) == (95.5, 127.5)
    assert [shape.x0 for shape in figure.layout.shapes if shape.xref == "x"] == [95.5, 111.5, 127.5]
    heat = figure.data[0]
    assert (list(heat.x), list(heat.y)) == (list(range(96, 126)), [3, 4, 5])
    assert np.isnan(heat.z[0][-2:]).all()  # two tokens after the step's
    assert np.isfinite(heat.z[2]).all()


def test_attention_distribution_is_the_sorted_weights_with_their_fit(trace):
    figure = plots.attention_distribution(trace, 2, heads=[0, 3], steps=4, ranks=(2, 50))
    *heads, overall, law, half, most = figure.data
    length = len(trace)
    weights = metrics.attention_weights(
        trace.queries[2], trace.keys[2], np.arange(length - 4, length), group="each"
    )[[0, 3]].astype(float)  # fmt: skip
    curves = np.exp(np.log(-np.sort(-weights, -1)[..., : length - 3]).mean(1))
    for line, curve in zip(heads, curves, strict=True):
        np.testing.assert_allclose(line.y, curve[np.array(line.x) - 1], rtol=1e-6)
    mean = np.sqrt(curves[0] * curves[1])
    np.testing.assert_allclose(overall.y, mean[np.array(overall.x) - 1], rtol=1e-6)
    fit = metrics.power_law(mean, first=2, last=50)
    assert law.name == f"power law: exponent {fit.exponent:.2f}, R² {fit.r_squared:.3f} (ranks 2 to 50)"
    np.testing.assert_allclose(law.y, fit.at([2, 50]))
    for share, line in ((0.5, half), (0.9, most)):
        needed = np.median((np.cumsum(-np.sort(-weights, -1), -1) < share).sum(-1) + 1, axis=-1)
        assert list(line.x) == [np.median(needed)] * 2
        assert re.search(r"attention: ([\d.]+) token", line.name).group(1) == f"{np.median(needed):.1f}".removesuffix(
            ".0"
        )


def test_weights_of_zero_are_left_out_of_the_curves(recording):
    events = recording.events[2]
    attention = events.attention.copy()
    attention[2, 0, :30] = 0
    attention[2, 0] /= attention[2, 0].sum()
    sparse = recording.replace(events={2: type(events)(**(vars(events) | {"attention": attention}))})
    figure = plots.attention_distribution(sparse, 2)
    assert max(figure.data[0].x) == 123 - 30  # step 2 sees 123 tokens
    assert "(ranks 1 to 93)" in figure.data[3].name
    assert all(np.isfinite(line.y).all() for line in figure.data)


def test_titles_describe_the_run_and_text_is_escaped(recording, trace):
    token = "<b>$x$</b>"
    odd = recording.replace(tokens=[token, *recording.tokens[1:]], model="<i>m")
    draw = {
        "drift": lambda run, **more: plots.importance_drift(run, 2, top=9, recent=0, **more),
        "pages": lambda run, **more: plots.page_fragmentation(run, 2, top=9, recent=20, **more),
        "mass": lambda run, **more: plots.attention_distribution(run, 2, **more),
    }
    for make in draw.values():
        for run, tokens in ((odd, "120 tokens"), (trace, "126 tokens")):
            assert f"{tokens} · layer 2" in words(make(run))
        assert " · &lt;i&gt;m · 120 tokens" in words(make(odd))
        assert words(make(trace, title="<a>")) == "&lt;a&gt;"
        assert make(trace, dark=True).layout.paper_bgcolor != make(trace).layout.template.layout.paper_bgcolor
    named = plots.importance_drift(odd, 2, tokens=[0], top=9, recent=0).data[0].name
    assert "&lt;b&gt;&#36;x&#36;" in named
    assert "<b>" not in named


@pytest.mark.parametrize("name", ["importance_drift", "page_fragmentation", "attention_distribution"])
@pytest.mark.parametrize("kind", ["trace", "recording"])
def test_a_missing_layer_or_missing_steps_are_refused(request, name, kind):
    plot, source = getattr(plots, name), request.getfixturevalue(kind)
    with pytest.raises(InvalidInputError, match=f"layer of a {kind}: got 0"):
        plot(source, 0)
    for steps in (0, -1, 127):
        with pytest.raises(InvalidInputError, match=f"{name}: steps: got {steps}"):
            plot(source, 2, steps=steps)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("importance_drift", {"head": 2}, "head: got 2; wanted 0 to 1"),
        ("importance_drift", {"steps": 1}, "steps: got 1; wanted 2 or more"),
        ("importance_drift", {"top": 0}, "top: got top 0"),
        ("importance_drift", {"top": 60}, "top: got top 60 with 64 recent tokens; wanted 1 to 57, the number"),
        ("importance_drift", {"top": 2, "recent": -1}, "-1 recent"),
        ("importance_drift", {"top": 2, "recent": 119}, "2 tokens to choose from"),
        ("importance_drift", {"top": 9, "tokens": []}, "tokens: got"),
        ("importance_drift", {"top": 9, "tokens": [57]}, "positions 0 to 56"),
        ("importance_drift", {"top": 9, "tokens": [-1]}, "positions 0 to 56"),
        ("page_fragmentation", {"head": -1}, "head: got -1"),
        ("page_fragmentation", {"top": 42}, "1 to 41, the number of tokens"),
        ("page_fragmentation", {"top": 9, "sinks": -1}, "-1 sinks"),
        ("page_fragmentation", {"top": 9, "page_size": 0}, "page_size: got 0"),
        ("page_fragmentation", {"top": 9, "pages": (3, 3)}, r"pages: got \(3, 3\)"),
        ("page_fragmentation", {"top": 9, "pages": (0, 9)}, "at most 16 pages"),
        ("attention_distribution", {"heads": [2]}, "head: got 2"),
        ("attention_distribution", {"heads": []}, "heads: got none"),
        ("attention_distribution", {"ranks": (5, 6)}, "at least 3 ranks"),
        ("attention_distribution", {"ranks": (1, 200)}, "at least 3 ranks"),
    ],
)
def test_invalid_arguments_are_refused(recording, name, arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        getattr(plots, name)(recording, 2, **arguments)


def test_figures_stay_small(trace):
    for figure in (plots.attention_distribution(trace, 2), plots.importance_drift(trace, 2, top=9, recent=9)):
        assert all(len(line.x) <= 300 for line in figure.data)
    wide = plots.page_fragmentation(trace, 2, top=9, page_size=126, recent=20, sinks=0)
    assert wide.data[0].z.shape == (16, 126)
