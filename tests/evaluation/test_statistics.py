"""Statistics of results: intervals against resampling, pairs and rankings against counting, the report, figures."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap

from kvviz import plots
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.evaluation import (
    costs,
    differences,
    load_results,
    markdown,
    orderings,
    perplexity_table,
    report,
    summary,
    wins,
)
from kvviz.evaluation.results import Results
from tests.evaluation.evaluation_tasks import run_grid, save_model

NAN = math.nan
MODEL = {"model": "tiny", "model_hash": "0123456789abcdef"}


def row(method, sample, score, budget=128.0, task="easy", length=1000, turn=0, refused="", nats=False, **more):
    """A row in the format of `evaluate`."""
    metric = "nats per token" if nats else "share found"
    return {
        "task": task, "placement": "after", "metric": metric, "higher_is_better": not nats,
        "task_config": '{"placement": "after"}', "length": length, "sample": sample, "seed": 0, "method": method,
        "method_name": method, "preset": "paper", "method_config": json.dumps({"budget": budget, "sinks": 4}),
        "budget": budget, **MODEL, "dtype": "float32", "kvviz": "1", "commit": "abc", "torch": "2", "transformers": "5",
        "numpy": "2", "hardware": "one core", "prompt_tokens": length, "turn": turn, "answers": "[]", "details": "{}",
        "refused": refused, "budget_tokens": 0 if refused else length if math.isnan(budget) else int(budget),
        "score": NAN if refused else score, "chance": NAN if nats else 0.0, "text": "", "metadata_bytes": 0,
        "kept_bytes": 0, "ttft_s": 1.0, "tt2t_s": 1.5, "tpot_s": 0.5, "attended_tokens": 100.0, "peak_bytes": 0,
    } | more  # fmt: skip


def table_of(*rows):
    return pd.DataFrame([{"key": str(number), **cells} for number, cells in enumerate(rows)])


def written(path, rows):
    """Write a results file with one cell per row; returns its path."""
    results = Results(path, MODEL)
    with results.opened():
        write = results.journal.writer("all")
        for number, cells in enumerate(rows):
            write(str(number), [cells])
        results.finish()
    return path


def only(table):
    (line,) = table.to_dict("records")
    return line


@pytest.fixture(scope="module")
def correlated():
    """Scores [40] of two methods that are correlated."""
    rng = np.random.default_rng(0)
    ease = rng.uniform(0.1, 0.8, 40)
    return ease, ease + rng.uniform(-0.05, 0.15, 40)


def test_summary_averages_turns_and_resamples_samples(correlated):
    scores, _ = correlated
    turns = [
        row("quest", n, score + 0.1 * (-1) ** turn, turn=turn) for n, score in enumerate(scores) for turn in (0, 1)
    ]
    line = only(summary(table_of(*turns), confidence=0.9, seed=3))
    assert (line["n"], line["mean"]) == (40, pytest.approx(scores.mean()))
    reference = bootstrap((scores,), np.mean, confidence_level=0.9, n_resamples=2000, method="percentile",
                          rng=np.random.default_rng(3)).confidence_interval  # fmt: skip
    assert (line["low"], line["high"]) == pytest.approx(tuple(reference), abs=1e-12)
    means = np.random.default_rng(9).choice(scores, (20_000, 40)).mean(1)
    assert ((means >= line["low"]) & (means <= line["high"])).mean() == pytest.approx(0.9, abs=0.02)


def test_differences_resample_pairs_of_scores(correlated):
    base, better = correlated
    rows = [row(name, n, score) for name, scores in (("oracle", base), ("quest", better))
            for n, score in enumerate(scores)]  # fmt: skip
    line = only(differences(table_of(*rows), reference="oracle", seed=5))
    assert (line["method"], line["n"]) == ("quest", 40)
    assert line["difference"] == pytest.approx((better - base).mean())
    reference = bootstrap((better, base), lambda x, y, axis: x.mean(axis) - y.mean(axis), paired=True, n_resamples=2000,
                          method="percentile", rng=np.random.default_rng(5)).confidence_interval  # fmt: skip
    assert (line["low"], line["high"]) == pytest.approx(tuple(reference), abs=1e-9)
    rng = np.random.default_rng(7)
    unpaired = rng.choice(better, (20_000, 40)).mean(1) - rng.choice(base, (20_000, 40)).mean(1)
    width = np.quantile(unpaired, 0.975) - np.quantile(unpaired, 0.025)
    assert line["high"] - line["low"] < width / 3


def test_a_reference_without_a_budget_is_compared_with_every_budget():
    nats = {"task": "text", "nats": True}
    table = table_of(
        row("full", 0, 0.9, NAN), row("full", 1, 0.5, NAN), row("full", 2, 0.5, NAN),
        row("oracle", 0, 0.7), row("oracle", 0, 0.8, 256.0),
        row("quest", 0, 0.6), row("quest", 1, 0.7), row("quest", 3, 0.0), row("quest", 0, 0.9, 256.0),
        row("full", 0, 2.0, NAN, **nats), row("quest", 0, 2.5, **nats),
    )  # fmt: skip

    def by_cell(reference):
        rows = differences(table, reference).round(9)
        return {(line.task, line.method, line.budget): (line.difference, line.n) for line in rows.itertuples()}

    assert by_cell("full") == {
        ("easy", "oracle", 128): (-0.2, 1), ("easy", "oracle", 256): (-0.1, 1),
        ("easy", "quest", 128): (-0.05, 2), ("easy", "quest", 256): (0, 1), ("text", "quest", 128): (-0.5, 1),
    }  # fmt: skip
    assert by_cell("oracle") == {("easy", "quest", 128): (-0.1, 1), ("easy", "quest", 256): (0.1, 1)}
    with pytest.raises(UnknownNameError, match="reference"):
        differences(table, "ful")


def test_wins_are_counted_over_pairs_at_the_same_budget():
    nats = {"task": "text", "nats": True}
    table = table_of(
        row("full", 0, 1.0, NAN), row("quest", 0, 0.5), row("quest", 1, 0.5), row("quest", 2, 0.1 + 0.2),
        row("snapkv", 0, 0.4), row("snapkv", 1, 0.6), row("snapkv", 2, 0.3), row("snapkv", 3, 1.0),
        row("snapkv", 4, 0.0, refused="too small"), row("quest", 4, 1.0), row("snapkv", 0, 0.9, 256.0),
        row("quest", 0, 2.0, **nats), row("snapkv", 0, 3.0, **nats),
    )  # fmt: skip
    columns = ["method", "other", "budget", "wins", "ties", "losses"]
    assert wins(table)[columns].values.tolist() == [
        ["quest", "snapkv", 128, 2, 1, 1], ["snapkv", "quest", 128, 1, 1, 2],
    ]  # fmt: skip
    by_task = wins(table, by=["task"]).set_index(["task", "method"])[["wins", "ties", "losses"]]
    assert by_task.loc[("easy", "quest")].tolist() == [1, 1, 1]
    assert by_task.loc[("text", "quest")].tolist() == [1, 0, 0]
    both = wins(table_of(row("full", 0, 1.0, NAN), row("minference", 0, 0.5, NAN)))
    assert both["budget"].isna().all()
    assert both["wins"].tolist() == [1, 0]
    with pytest.raises(UnknownNameError, match="by"):
        wins(table, by=["seed"])


def test_orderings_weight_tasks_equally_and_need_every_task():
    table = table_of(
        *(row(name, n, score) for name, score in (("quest", 0.1), ("snapkv", 0.3), ("tova", 1.0)) for n in range(5)),
        row("quest", 0, 0.2, task="hard"), row("snapkv", 0, 0.0, task="hard"),
        row("quest", 0, 1.0, task="own"), row("quest", 0, 9.0, task="text", nats=True), row("full", 0, 1.0, NAN),
    )  # fmt: skip
    ranking = orderings(table)
    assert ranking["budget"].isna().tolist() == [False, False, True]
    ranked = ranking.drop(columns="budget").round(9).values.tolist()
    assert ranked == [[1, "quest", 0.15, 2], [1, "snapkv", 0.15, 2], [1, "full", 1.0, 1]]


def test_costs_are_medians_with_ratios_on_the_same_sample():
    full = [row("full", n, 1.0, NAN, ttft_s=float(4 + n), tpot_s=0.5, kept_bytes=1000) for n in range(5)]
    times = ((0, 8.0, 0.25), (1, 5.0, NAN), (2, 18.0, 0.75))
    quest = [row("quest", n, 1.0, ttft_s=ttft, tpot_s=tpot, kept_bytes=250) for n, ttft, tpot in times]
    table = table_of(
        *full, *quest,
        row("quest", 0, 1.0, turn=1, ttft_s=0.1), row("quest", 3, 0, refused="too small", ttft_s=NAN),
        row("quest", 4, 1.0, ttft_s=99.0, hardware="two cores"), row("snapkv", 0, 1.0, ttft_s=7.0, length=2000),
    )  # fmt: skip
    shown = costs(table).set_index(["hardware", "length", "method"])
    line = shown.loc[("one core", 1000, "quest")]
    assert line[["n", "ttft_s", "tpot_s", "kept_bytes"]].tolist() == [3, 8, 0.5, 250]
    assert line[["ttft_s_ratio", "tpot_s_ratio", "kept_bytes_ratio"]].tolist() == [2, 1, 0.25]  # 8/4, 5/5, 18/6
    assert shown.loc[("one core", 1000, "full"), ["n", "ttft_s", "ttft_s_ratio"]].tolist() == [5, 6, 1]
    assert math.isnan(shown.loc[("one core", 2000, "snapkv"), "ttft_s_ratio"])  # full was not run at this length
    assert shown.loc[("two cores", 1000, "quest"), "ttft_s"] == 99
    assert math.isnan(shown.loc[("two cores", 1000, "quest"), "ttft_s_ratio"])
    page = report(table).partition("## Costs")[2]
    assert "| `quest` | 128 | 3 | 8.000 (2.00) | 1.500 (1.00) | 0.500 (1.00) | 100.0 (1.00) | 0.0 (0.25) |" in page
    with pytest.raises(InvalidInputError, match="also tpot_s"):
        costs(table.drop(columns="tpot_s"))


@settings(max_examples=5)
@given(order=st.permutations(range(54)))
@pytest.mark.slow
def test_statistics_do_not_depend_on_the_order_of_rows(order):
    rng = np.random.default_rng(1)
    rows = [
        row(method, n, rng.uniform(), budget, length=length, turn=turn)
        for method, budget in (("full", NAN), ("oracle", 128.0), ("quest", 128.0))
        for length in (1000, 2000) for n in range(3) for turn in range(3)
    ]  # fmt: skip
    table = table_of(*rows)
    shuffled = table.iloc[order].reset_index(drop=True)
    for statistic in (summary, differences, wins, orderings, costs):
        pd.testing.assert_frame_equal(statistic(table), statistic(shuffled), check_exact=True)
    assert report(table) == report(shuffled)


def test_one_sample_has_no_interval_and_refused_samples_no_score():
    table = table_of(row("full", 0, 1.0, NAN), row("quest", 0, 0.5), row("tova", 0, 0, refused="a | b"),
                     row("quest", 0, 0.3, 0.25, budget_tokens=250), row("quest", 1, 0.3, 0.25, budget_tokens=240),
                     row("quest", 2, 0, 0.25, refused="too small"))  # fmt: skip
    means = summary(table).set_index(["method", "budget"])
    columns = ["mean", "low", "high", "n", "refused", "budget_tokens"]
    assert means.loc[("quest", 128.0), columns].tolist() == [0.5, 0.5, 0.5, 1, 0, 128]
    assert means.loc[("quest", 0.25), columns].tolist() == [0.3, 0.3, 0.3, 2, 1, 245]
    assert means.loc[("tova", 128.0), ["n", "refused"]].tolist() == [0, 1]
    assert means.loc[("tova", 128.0), ["mean", "low", "high", "budget_tokens"]].isna().all()
    assert "**" not in markdown(differences(table))  # one pair is not evidence, whatever its difference

    refused = table_of(row("full", 0, 0, NAN, refused="no"), row("quest", 0, 0, refused="no"))
    assert summary(refused)[["n", "refused"]].values.tolist() == [[0, 1], [0, 1]]
    assert differences(refused).empty
    assert wins(refused).empty
    assert orderings(refused).empty
    assert "| `quest` | 128 | 1000 | 1 | no |" in report(refused)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"sample": 0}, "twice"), ({"model_hash": "other"}, "2 models"), ({"score": NAN}, "wanted a number"),
     ({"task_config": "{}"}, "2 configurations of easy, after"),
     ({"method_config": '{"budget": 128, "sinks": 8}'}, "2 configurations under 'quest'")],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(change, message):
    table = table_of(row("quest", 0, 0.5), row("quest", 1, 0.5) | change)
    for statistic in (summary, differences, wins, orderings, perplexity_table, costs, report):
        with pytest.raises(InvalidInputError, match=message):
            statistic(table)
        with pytest.raises(InvalidInputError, match="also length"):
            statistic(table.drop(columns="length"))
    with pytest.raises(InvalidInputError, match="no row"):
        summary(table.iloc[:0])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Two calls of evaluate on one file: 12 samples of a task, 3 or 4 of two others; one method refuses a budget."""
    rng = np.random.default_rng(2)
    rows = [
        row(method, n, float(rng.integers(2)), budget, task="easy", details=json.dumps({"depth": n / 11}))
        for method, budget in (("full", NAN), ("quest", 128.0), ("quest", 256.0), ("snapkv", 256.0))
        for n in range(12)
    ]
    rows += [row("snapkv", n, 0, task="easy", refused="no room") for n in range(12)]
    for length in (1000, 2000):
        for n in range(3):
            rows += [row(method, n, 2 + n / 10 + length / 1e4, budget, "text", length, nats=True)
                     for method, budget in (("full", NAN), ("quest", 128.0), ("quest", 256.0))]  # fmt: skip
        rows += [row("quest", n, 0.4 + n * n / 100, task="hard", length=length) for n in range(2 + length // 1000)]
    rows.append(row("tova", 0, 1.0, task="easy"))
    return written(tmp_path_factory.mktemp("results") / "results.parquet", rows)


def test_figures_are_drawn_from_the_results_file(path):
    table = load_results(path)
    means = summary(path).set_index(["task", "method", "budget"])
    easy = table[table["task"] == "easy"]
    drawn = {trace.name: trace for trace in plots.score_by_budget(easy).data}
    assert set(drawn) == {"full", "quest", "snapkv", "tova"}
    for place, budget in enumerate((128.0, 256.0)):
        line = means.loc[("easy", "quest", budget)]
        assert drawn["quest"].customdata[place].tolist() == [budget, 12, line["low"], line["high"]]
        assert drawn["quest"].y[place] == pytest.approx(line["mean"])
    assert drawn["snapkv"].customdata[:, 0].tolist() == [256]
    assert set(drawn["full"].y) == {easy.loc[easy["method"] == "full", "score"].mean()}
    assert len(plots.score_by_budget(table).layout.annotations) == 3

    names = [note.text for note in plots.needle_grid(table, found="score").layout.annotations]
    sums = easy.groupby(["method", "budget"], dropna=False)["score"].sum()
    assert f"full · {sums['full'].iloc[0]:g} of 12" in names
    assert f"quest · budget 256 · {sums['quest', 256.0]:g} of 12" in names
    assert len(names) == 4  # no panel for a cell refused on all samples, nor for tasks without depths

    curves = plots.perplexity_by_length(perplexity_table(path, budget=128)).data
    lines = {trace.name.partition(" ")[0]: trace.y for trace in curves if trace.fill is None}
    for method in ("full", "quest"):
        np.testing.assert_allclose(lines[method], np.exp([2.2, 2.3]))


def test_tables_that_a_figure_would_mix_are_refused(path):
    table = load_results(path)
    with pytest.raises(InvalidInputError, match=r"128\.0, 256\.0; wanted one"):
        plots.perplexity_by_length(perplexity_table(table))
    with pytest.raises(InvalidInputError, match="64, which no method has"):
        perplexity_table(table, budget=64)
    with pytest.raises(InvalidInputError, match="tokens and shares"):
        plots.score_by_budget(table.assign(budget=table["budget"].replace(256.0, 0.25)))
    with pytest.raises(InvalidInputError, match="task: got easy, hard"):
        plots.needle_grid(table[table["task"] != "text"].assign(depth=0.5), found="score")
    with pytest.raises(InvalidInputError, match="task: got easy, text; wanted rows of one task"):
        perplexity_table(table.assign(higher_is_better=False).query("task != 'hard'"))
    ignoring = table.assign(depth=0.5, method=table["method"].replace("full", "minference"))[table["task"] == "easy"]
    assert "minference" in plots.needle_grid(ignoring, found="score").layout.annotations[0].text
    recall = pd.DataFrame({"method": ["full", "quest"], "budget": [NAN, 128], "recall": [1.0, 0.5]})
    assert [trace.name for trace in plots.recall_by_budget(recall).data] == ["quest"]  # no budget, no point


def test_the_report_describes_the_run_and_its_intervals(path):
    page = report(path)
    assert page == report(load_results(path))
    means = summary(path)
    assert "| model | tiny, weights 0123456789abcdef, float32 |" in page
    full = means.set_index(["task", "method"]).loc[("easy", "full"), "mean"].item()
    about = "| `easy` | question after the compressed context | share found | 0 |"
    assert f"{about} {full:.2f} at 1,000 | 1,000 (12) |" in page
    assert "| share found | 0 |  | 1,000 (3), 2,000 (4) |" in page
    assert "| nats per token |  | 2.20 at 1,000, 2.30 at 2,000 | 1,000 (3), 2,000 (3) |" in page
    assert "| cells | 86, of which 12 refused |" in page
    assert "| `snapkv` | 128 | 1000 | 12 | no room |" in page

    widths_of = means["high"] - means["low"]
    easy, text = (widths_of[means["task"] == task].max() for task in ("easy", "text"))
    short, long = widths_of[means["task"] == "hard"]
    assert easy > 0.1 > long > short > 0
    place = "question after the compressed context"
    widths = page.partition("### How wide the intervals are")[2].partition("###")[0]
    assert f"| `easy` | {place} | **{100 * easy:.1f}**, n = 1 to 12 |  |" in widths
    assert f"| `hard` | {place} | {100 * short:.1f}, n = 3 | {100 * long:.1f}, n = 4 |" in widths
    assert f"| `text` | {place} | {text:.3f} nats, n = 3 |" in widths
    assert f"1 of {(means['n'] > 0).sum()} intervals have zero width." in widths

    line = means.set_index(["task", "method", "budget"]).loc[("easy", "quest", 256.0)]
    assert f" | {line['mean']:.2f} [{line['low']:.2f}, {line['high']:.2f}] |" in page
    assert "| `tova` |  | 1.00 [1.00, 1.00], n = 1 |  |" in page
    assert "Perplexity, lower is better, 3 samples." in page
    assert f"{math.exp(2.2):.2f} [" in page
    assert "## Differences to `full`" in page
    assert "## Differences to `oracle`" not in page


def test_placements_are_ranked_separately(path):
    table = load_results(path)
    last = table.assign(placement="last", score=1 - table["score"])
    ranked = report(pd.concat([table, last])).partition("## Rankings")[2].partition("## Costs")[0]
    parts = ranked.split("### Question ")
    assert [part.partition("\n")[0] for part in parts[1:]] == ["after the compressed context", "last"]
    alone = report(table).partition("## Rankings")[2].partition("## Costs")[0]
    assert parts[1].strip() == alone.partition("### Question ")[2].strip() != ""
    assert parts[2].partition("\n")[2] != parts[1].partition("\n")[2]


@pytest.mark.slow
def test_the_report_of_a_real_grid_has_every_section(tmp_path):
    run_grid(save_model(tmp_path / "model"), tmp_path / "results.parquet")
    page = report(tmp_path / "results.parquet")
    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert titles == [
        "What was run", "Scores", "Differences to `full`", "Wins, ties and losses", "Rankings", "Costs",
        "Refused cells",
    ]  # fmt: skip
    blocks = [block.splitlines() for block in page.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 3 + 1 + 4 + 4 + 2 + 2
    for lines in blocks:
        assert len({line.replace("\\|", "").count("|") for line in lines}) == 1, "a row of another width"
