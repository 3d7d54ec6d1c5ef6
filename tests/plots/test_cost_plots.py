"""Figures of times, caches and memory show the numbers of their tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kvviz import metrics, plots
from kvviz.clustering.iterations import ClusteringTime, ComputeTime, IterationModel, fit_iterations
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.offload import LinkModel
from kvviz.trace.geometry import Geometry
from kvviz.trace.timeline import Event, Timeline
from tests.plots.test_plot_theme import assert_escaped, texts_of

LLAMA = Geometry(n_layers=32, n_heads=32, n_kv_heads=8, head_dim=128, max_positions=131_072)


def bars(figure):
    """The drawn times by part and method."""
    return {(bar.name, y): x for bar in figure.data if bar.type == "bar" for x, y in zip(bar.x, bar.y, strict=True)}


def of_events(*events, description="quest · budget 8 · tiny · 60 tokens · store host"):
    timeline = Timeline(description)
    timeline._events = [Event(*event) for event in events]
    return timeline


def test_bars_stack_the_parts_and_mark_the_end_to_end_time():
    rows = [("quest", "select", 0.002), ("quest", "select", 0.004), ("quest", "attention", 0.01),
            ("quest", "end to end", 0.011), ("full", "attention", 0.03), ("full", "rerank", 0.001)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["method", "part", "seconds"])
    table.attrs = {"model": "tiny", "prompt_length": 2048, "budget": 512, "seed": 0, "hardware": "a machine"}
    figure = plots.latency(table)
    assert bars(figure) == pytest.approx(
        {("attention", "quest"): 10, ("attention", "full"): 30, ("select", "quest"): 3, ("rerank", "full"): 1}
    )
    measured = next(trace for trace in figure.data if trace.name == "end to end")
    assert (measured.x, measured.y) == ((11,), ("quest",))
    (sums,) = [trace.text for trace in figure.data if trace.type == "scatter" and trace.mode == "text"]
    assert sums == (" 11", " 31")
    assert figure.layout.xaxis.title.text == "time (ms)"
    for known in ("tiny", "2,048 tokens", "budget 512", "seed 0", "a machine"):
        assert known in figure.layout.title.text
    assert "another" in plots.latency(table, hardware="another").layout.title.text


def test_timelines_become_parts_of_a_decode_step_or_of_the_whole_prefill():
    run = of_events(
        (0.0, 2.0, "pass", "forward pass", -1, "prefill"), (0.0, 1.0, "compute", "attention", 0, "prefill"),
        (1.0, 1.9, "compute", "FFN and logits", 0, "prefill"), (1.0, 1.5, "clustering", "build", 0, "prefill"),
        (2.0, 2.5, "pass", "forward pass", -1, "decode"), (2.0, 2.2, "compute", "select", 0, "decode"),
        (2.5, 3.1, "pass", "forward pass", -1, "decode"), (2.5, 2.9, "compute", "select", 0, "decode"),
        (2.6, 2.7, "transfer", "fetch", 0, "decode"),
    )  # fmt: skip
    decode = plots.latency({"quest": run})
    assert bars(decode) == pytest.approx({("select", "quest"): 300, ("transfer", "quest"): 50})  # ms of two steps
    assert next(trace for trace in decode.data if trace.name == "end to end").x[0] == pytest.approx(550)
    prefill = plots.latency({"quest": run}, phase="prefill", hardware="a machine")
    assert bars(prefill) == pytest.approx(
        {("attention", "quest"): 1.0, ("rest", "quest"): 0.9, ("build", "quest"): 0.5}
    )
    assert prefill.layout.title.text.startswith("Time of the prefill, by part · quest · budget 8 · tiny · 60 tokens")
    assert prefill.layout.title.text.endswith("a machine")
    with pytest.raises(InvalidInputError, match="no decode pass in the timeline of full"):
        plots.latency({"quest": run, "full": of_events((0.0, 1.0, "pass", "forward pass", -1, "prefill"))})


def test_several_lengths_become_curves_of_the_whole_time():
    rows = [("quest", part, length, seconds * length) for length in (1024, 4096)
            for part, seconds in (("select", 1e-6), ("attention", 3e-6))]  # fmt: skip
    table = pd.DataFrame(rows, columns=["method", "part", "length", "seconds"])
    figure = plots.latency(table)
    np.testing.assert_allclose(figure.data[0].y, [4.096, 16.384])
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", None)
    assert plots.latency(table.assign(seconds=table["length"] ** 4.0)).layout.yaxis.type == "log"
    with pytest.raises(InvalidInputError, match="latency: length: got 1024, 4096; wanted one of them"):
        plots.latency(table, over="method")
    with pytest.raises(InvalidInputError, match="latency: batch: got 1, 2; wanted one of them"):
        plots.latency(table.assign(batch=[1, 1, 2, 2]))


def test_throughput_says_how_far_beyond_full_a_method_gets_and_where_memory_ended():
    rows = [("full", 1, 10.0), ("full", 2, 16.0), ("full", 4, None), ("ctkvr", 1, 8.0), ("ctkvr", 8, 48.0)]
    figure = plots.throughput_by_batch(pd.DataFrame(rows, columns=["method", "batch", "tokens_per_s"]))
    named = {trace.name: trace for trace in figure.data if trace.name}
    assert set(named) == {"full", "ctkvr: 3× full, batch 4×", "out of memory"}
    assert named["full"].x.tolist() == [1, 2]
    (cross,) = [trace for trace in figure.data if trace.mode == "markers" and trace.x[0] is not None]
    assert (cross.x, cross.y) == ((4.0,), (0.0,))
    with pytest.raises(InvalidInputError, match="throughput_by_batch: batch"):
        plots.throughput_by_batch(pd.DataFrame([("full", 0, 1.0)], columns=["method", "batch", "tokens_per_s"]))


def test_the_slope_of_building_is_that_of_a_fit_by_numpy():
    random = np.random.default_rng(0)
    lengths = np.array([1024, 2048, 4096, 8192, 16384])
    seconds = 1e-6 * lengths**1.5 * np.exp(random.normal(0, 0.2, 5))
    exponent, at_1 = metrics.growth_exponent(lengths, seconds)
    slope, intercept = np.polyfit(np.log(lengths), np.log(seconds), 1)
    assert (exponent, np.log(at_1)) == pytest.approx((slope, intercept))
    figure = plots.index_build_time(pd.DataFrame({"index": "ivf", "length": lengths, "seconds": seconds}))
    assert figure.data[0].name == f"ivf: slope {slope:.1f}"
    line = next(trace for trace in figure.data if trace.mode == "lines")
    scale = {"s": 1, "ms": 1e-3}[figure.layout.yaxis.title.text.partition("(")[2][:-1]]
    np.testing.assert_allclose(line.y, np.exp(np.polyval([slope, intercept], np.log(lengths[[0, -1]]))) / scale)
    with pytest.raises(InvalidInputError, match="index_build_time: seconds"):
        plots.index_build_time(pd.DataFrame({"index": ["ivf"], "length": [8], "seconds": [0.0]}))
    with pytest.raises(InvalidInputError, match="at least two lengths"):
        metrics.growth_exponent([8, 8], [1.0, 2.0])


def test_hit_rates_of_both_caches_and_the_papers_marks():
    table = pd.DataFrame([
        {"cache": "clusterkv", "recent_steps": 1, "hit_rate": 0.7, "paper": 0.63},
        {"cache": "clusterkv", "recent_steps": 0, "hit_rate": 0.0},
        *({"cache": "pqcache", "policy": policy, "capacity_tokens": 4096, "blocks_a_step": blocks, "hit_rate": rate}
          for policy, blocks, rate in (("lru", 4, 0.5), ("lfu", 4, 0.4), ("lru", 32, 0.6))),
    ])  # fmt: skip
    figure = plots.hit_rate(table)
    drawn = {trace.name: trace for trace in figure.data if trace.x[0] == trace.x[0]}  # the legend's traces are NaN
    assert [(x, y) for x, y in zip(drawn["clusterkv"].x, drawn["clusterkv"].y, strict=True)] == [(0, 0.0), (1, 0.7)]
    assert drawn["LRU, 4,096 tokens"].y.tolist() == [0.5, 0.6]
    assert drawn["LFU, 4,096 tokens"].yaxis == "y2"
    paper = drawn["as the paper reports"]
    assert (paper.x.tolist(), paper.y.tolist(), paper.marker.symbol) == ([1], [0.63], "star-open")
    with pytest.raises(InvalidInputError, match="a row that describes neither cache"):
        plots.hit_rate(pd.DataFrame({"cache": ["a"], "hit_rate": [0.5]}))
    with pytest.raises(InvalidInputError, match=r"hit_rate: hit_rate: got 1\.5"):
        plots.hit_rate(table.assign(hit_rate=1.5))


def fitted(factor=1.0, **limits):
    clustering = [ClusteringTime(s, t, 0.001 + 2e-7 * s * t) for s in (1000, 8000) for t in (2, 5)]
    compute = [ComputeTime(s, factor * (0.003 + 2e-5 * s + 1e-8 * s * s)) for s in (1000, 2000, 8000)]
    return fit_iterations(clustering, compute, **limits)


def test_iterations_are_those_at_which_clustering_takes_as_long_as_the_layer():
    figure = plots.iteration_fit({"slow": fitted(), "fast": fitted(0.1)}, hardware="a machine")
    upper = [trace for trace in figure.data if trace.yaxis == "y" and trace.x[0] is not None]
    lower = [trace for trace in figure.data if trace.yaxis == "y2" and trace.x[0] is not None]
    fit, marks = (
        next(trace for trace in upper if trace.name == "slow" and trace.mode == mode) for mode in ("lines", "markers")
    )
    np.testing.assert_allclose(fit.y, 1e3 * (0.003 + 2e-5 * fit.x + 1e-8 * fit.x**2), rtol=1e-6)  # ms
    np.testing.assert_allclose(marks.y, 1e3 * (0.003 + 2e-5 * marks.x + 1e-8 * marks.x**2), rtol=1e-6)
    thin = [trace for trace in upper if trace.line.width == 1]
    assert len(thin) == 2, "clustering, which both share, is drawn once, with a line for T = 2 and for T = 5"
    np.testing.assert_allclose(thin[1].y, 1e3 * (0.001 + 2e-7 * thin[1].x * 5), rtol=1e-6)
    for name, factor in (("slow", 1.0), ("fast", 0.1)):
        free, chosen = (
            next(trace for trace in lower if trace.name == name and trace.line.width == width) for width in (1.2, 3)
        )
        exact = (factor * (0.003 + 2e-5 * free.x + 1e-8 * free.x**2) - 0.001) / (2e-7 * free.x)
        np.testing.assert_allclose(free.y, exact, rtol=1e-6)
        low, high = (np.clip(np.floor(exact + rounding), 3, 300) for rounding in (-1e-6, 1e-6))
        assert ((low <= chosen.y) & (chosen.y <= high)).all()
    assert "a machine" in figure.layout.title.text


def test_iterations_beyond_the_limits_are_clipped():
    lengths = [64, 100_000]
    slow, fast = (plots.iteration_fit(fitted(factor, least=4, most=50), lengths) for factor in (1.0, 0.001))
    assert slow.data[-1].y.max() == 50
    assert fast.data[-1].y.min() == 4
    assert slow.data[-1].x[[0, -1]].tolist() == lengths
    with pytest.raises(InvalidInputError, match="iteration_fit: got no model"):
        plots.iteration_fit({})
    with pytest.raises(InvalidInputError, match="models with measurements"):
        plots.iteration_fit(IterationModel(0, 1, 0, 0, 1))
    assert_escaped(texts_of(plots.iteration_fit({"<b>$x$</b>": fitted()}, dark=True)))


def test_bytes_and_seconds_are_those_of_tensors_and_the_link():
    keys = np.zeros((2, 3, 4, 5, 8), np.float16)  # batch, layers, heads, tokens, channels
    assert metrics.kv_bytes(3, 4, 8, length=5, batch=2) == 2 * keys.nbytes
    assert metrics.kv_bytes(32, 8, 128, [[1], [2]], [1, 2, 3], bytes_per_value=4).shape == (2, 3)
    figure = plots.kv_memory({"a": LLAMA}, [2048, 1024], [1, 4], link=LinkModel("slow", 2.0**20), memory_bytes=2**30)
    held = {(trace.name, trace.yaxis): trace for trace in figure.data}
    assert held["a, batch 4", "y"].y.tolist() == [2.0**29, 2.0**30]
    assert held["a, batch 4", "y2"].y.tolist() == [512, 1024]
    assert held["1 GiB of memory", "y"].y.tolist() == [2.0**30] * 2
    for wrong in ({"length": -1}, {"length": 1.5}, {"length": 1, "bytes_per_value": 0}, {"length": 2**62}):
        with pytest.raises(InvalidInputError, match="kv_bytes"):
            metrics.kv_bytes(32, 8, 128, **wrong)
    with pytest.raises(InvalidInputError, match="kv_memory"):
        plots.kv_memory({"a": LLAMA}, [])


def test_bad_tables_are_refused_and_texts_are_escaped():
    nasty = "<b>$x$</b>"
    table = pd.DataFrame({"method": [nasty], "part": [nasty], "seconds": [1.0]})
    table.attrs = {"model": nasty, "hardware": nasty}
    build = pd.DataFrame({"index": nasty, "length": [1, 2], "seconds": [1.0, 2.0]})
    batch = pd.DataFrame({"method": nasty, "batch": [1, 2], "tokens_per_s": [1.0, None]})
    steps = pd.DataFrame({"cache": [nasty], "recent_steps": [1], "hit_rate": [0.5]})
    blocks = pd.DataFrame(
        {"cache": [nasty], "policy": [nasty], "capacity_tokens": 8, "blocks_a_step": 1, "hit_rate": 0.5}
    )
    for dark in (False, True):
        for figure in (
            plots.latency(table, dark=dark), plots.latency(table, title=nasty, dark=dark),
            plots.index_build_time(build, dark=dark), plots.throughput_by_batch(batch, hardware=nasty, dark=dark),
            plots.hit_rate(steps, dark=dark), plots.hit_rate(blocks, title=nasty, dark=dark),
            plots.kv_memory({nasty: LLAMA}, [8], dark=dark),
        ):  # fmt: skip
            assert_escaped(texts_of(figure))
            assert_escaped([trace.hovertemplate.replace("<extra></extra>", "") for trace in figure.data
                            if trace.hovertemplate])  # fmt: skip
    with pytest.raises(InvalidInputError, match="wanted also part"):
        plots.latency(table.drop(columns="part"))
    with pytest.raises(InvalidInputError, match="latency: seconds"):
        plots.latency(table.assign(seconds=-1.0))
    with pytest.raises(InvalidInputError, match="no row with a value"):
        plots.latency(table.assign(seconds=np.nan))
    with pytest.raises(UnknownNameError, match="latency: over"):
        plots.latency(table, over="model")
