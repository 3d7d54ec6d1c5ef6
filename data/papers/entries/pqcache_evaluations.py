"""PQCache (arXiv 2407.12820): figures 9 and 10, answers and errors by setting."""

from __future__ import annotations

import pandas as pd
import sources

from entries import Finding, entry
from kvviz import plots

METHODS = ("full", "oracle", "h2o", "snapkv", "pyramidkv", "infllm", "sparq:pqcache", "pqcache")
LOADERS = "tests/tasks/test_public_task_use.py::test_a_grid_scores_the_models_answers"


@entry(
    "PQCache", "fig. 9",
    headline="SnapKV (C), PyramidKV (C) and PQCache find the needle nearly as often as full attention, up to 131,000 "
    "tokens with 1/10 of them; H2O (C), SparQ and InfLLM miss many",
    claim="PQCache finds at least 90 % of the needles that full attention finds, and more than H2O, SparQ (one "
    "channel) and InfLLM each, in this grid and, SparQ apart, in that of `make results`",
    call="kvviz evaluate --task needle:depths=10,placement=last --method all --budget 10% --length 1024 --length 2048 "
    '--length 4096 --length 7168 --samples 10 --out needles.parquet; make papers ARGS="--measure pqcache_needle_grid"',
)  # fmt: skip
def needles() -> Finding:
    """Needle in a haystack by length and depth, all methods."""
    table = sources.measured("pqcache_needle_grid")
    table = table.assign(method=table["method"].str.partition(":")[0])
    found = table.groupby("method")["score"].sum()
    of = table.groupby("method").size().max()
    listed = ", ".join(f"{name} {count:.0f}" for name, count in found.sort_values(ascending=False).items())
    stored = sources.scores().query("task == 'needle' and placement == 'last' and length == 1024")
    stored = stored[stored["score"].notna() & ((stored["budget"] == 128) | (stored["method"] == "full"))]
    more = (
        stored[stored["sample"].isin(stored[stored["method"] == "pqcache"]["sample"])].groupby("method")["score"].sum()
    )
    grid = ", ".join(f"{name} {more[name]:.0f}" for name in ("full", "pqcache", "h2o", "infllm", "snapkv", "pyramidkv"))
    return Finding(
        ours=f"needles found of {of}: {listed}. In the grid of `make results` (1,024 tokens, budget 128), of "
        f"{stored[stored['method'] == 'pqcache']['sample'].nunique()}: {grid}",
        holds=bool(
            all(counts["pqcache"] >= 0.9 * counts["full"] for counts in (found, more))
            and all(found["pqcache"] > found[name] for name in ("h2o", "sparq", "infllm"))
            and all(more["pqcache"] > more[name] for name in ("h2o", "infllm"))
        ),
        run=sources.described(table, "question last, one sample per length and depth"),
        why=f"few needles (n = {of}): the command runs ten depths and more lengths, and methods that refuse the budget "
        "are left out. SnapKV, PyramidKV and H2O have the paper's budget without its compensation (C), which at 1/64 "
        "of the keys' bytes would add 1/128 of the tokens.",
        draw=lambda: plots.needle_grid(
            table[table["method"].isin([name.partition(":")[0] for name in METHODS])], found="score"
        ),
    )


@entry(
    "PQCache", "fig. 10",
    headline="(a) GSM8K: PQCache above the baselines; (b) all m × b do well but 8 × 2, and 2 × 6 is the best; (c) "
    "PQCache above the baselines at every budget; (d) PQCache does not depend on the extra communication, InfLLM and "
    "SparQ do",
    claim="(b) 8 × 2 is the worst of all m × b of at most 16 bits; (c) PQCache has a lower output error than H2O, "
    "SnapKV, PyramidKV, SparQ and InfLLM at every budget; (d) its output error changes less from 1/64 to 1/16 than "
    "those of SparQ and InfLLM",
    call='make papers ARGS="--measure pqcache_settings"; kvviz evaluate --task gsm8k --method all --budget 10% '
    "--length 3700 --samples 200",
)  # fmt: skip
def settings() -> Finding:
    """PQCache by bits, budget and extra communication, with its baselines; (a) is a task on word problems."""
    table = sources.measured("pqcache_settings")
    error = table.groupby(["varied", "method", "value"])["output_error"].mean()
    bits = (
        table[(table["varied"] == "bits") & (table["bits"] <= 16)].groupby("value")[["recall", "output_error"]].mean()
    )
    worst = bool(bits["recall"].idxmin() == "8×2")
    budgets = error["budget"].unstack("method")
    below = {
        name: bool((budgets["pqcache"] < budgets[name]).all()) for name in budgets if name not in ("pqcache", "oracle")
    }
    moved = {
        name: float(error["communication", name].loc[lambda part: part.index.astype(float) >= 1 / 64].pipe(_change))
        for name in ("pqcache", "sparq", "infllm")
    }
    steady = moved["pqcache"] < min(moved["sparq"], moved["infllm"])
    order = ", ".join(f"{name} {recall:.2f}" for name, recall in bits["recall"].sort_values(ascending=False).items())
    changes = ", ".join(
        f"{name} {value:.3f} ({error['communication', name].iloc[0]:.2f})" for name, value in moved.items()
    )
    answers = sources.measured("pqcache_answers_by_setting")
    scored = answers.groupby("method")["score"].mean()
    not_below = [name for name, is_below in below.items() if not is_below]
    return Finding(
        ours=f"(b) recall by m × b: {order}; needles found by 2×6 {scored['2×6']:.2f}, 8×2 {scored['8×2']:.2f}, full "
        f"attention {scored['full']:.2f} (n = {answers.groupby('method').size().max()}); (c) lower error than "
        f"{'every baseline' if not not_below else 'all but ' + ', '.join(not_below)} at every budget; (d) change of "
        f"the output error from 1/64 to 1/16 (and the error at the least): {changes}",
        holds=bool(worst and all(below.values()) and steady),
        run=sources.described(table),
        why=f"(b) {_verdict(worst)}; (c) {_verdict(all(below.values()))}; (d) {_verdict(steady)}. (a) "
        "needs GSM8K and a model that can solve its problems; its loader is tested by "
        f"{LOADERS}. The head dimension is 64, half of the paper's, so that the same bits are twice the share.",
        draw=lambda: plots.recall_by_budget(
            table[(table["varied"] == "budget")], metric="output_error", band="range",
            title="Output error by budget (PQCache, fig. 10c)",
        ),
    )  # fmt: skip


def _verdict(holds: bool) -> str:
    return "holds" if holds else "does not hold"


def _change(values: pd.Series) -> float:
    """The largest value minus the smallest."""
    return float(values.max() - values.min())
