"""CTkvr (arXiv 2512.15550): tables 1 to 8."""

from __future__ import annotations

import pandas as pd
import sources

from entries import Finding, entry
from entries.ctkvr_numbers import (
    LLAMA,
    LONGBENCH_TEST,
    RULER_TEST,
    TABLE_4,
    TABLE_5,
    attended,
    ceiling,
    found,
    layers_of,
    needles,
    of,
    on_tasks,
    settings,
    stored_run,
)
from kvviz import metrics, plots

RULER = (
    "niah_single_1 niah_single_2 niah_single_3 niah_multikey_1 niah_multikey_2 niah_multikey_3 niah_multivalue "
    "niah_multiquery vt cwe fwe qa_1 qa_2"
)
RULER_TASKS = " ".join(f"--task {name}:placement=last" for name in RULER.split())
LENGTHS = "--length 8192 --length 16384 --length 32768 --length 65536 --length 131072"
OTHERS = ("quest", "magicpig", "shadowkv", "oracle")
LONGBENCH = (
    "narrativeqa multifieldqa_en qasper hotpotqa musique 2wikimqa multi_news qmsum gov_report trec triviaqa lcc "
    "repobench-p"
)
LONGBENCH_TASKS = " ".join(f"--task longbench:subset={name}" for name in LONGBENCH.split())


def longbench_command() -> str:
    """The command of tables 2 and 12: budgets of 512 and 1,024 retrieved tokens, and CTkvr's 128 of its windows."""
    methods = " ".join(f"--method {name}" for name in ("full", "snapkv", *OTHERS, "ctkvr"))
    return (
        f"kvviz evaluate --model {LLAMA} {LONGBENCH_TASKS} {methods} --budget 640 --budget 1152 --length 31500 "
        "--samples 500 --out longbench.parquet"
    )


def not_here() -> str:
    """What our tasks show where LongBench is missing."""
    budgets: dict[str, float | None] = {"full": None, "ctkvr": 512, "shadowkv": 512, "quest": 512, "snapkv": 512}
    return f"on our tasks instead, budget 512, question after the context: {on_tasks(budgets)}"


@entry(
    "CTkvr", "table 1",
    headline="CTkvr loses 0.7 to 1.3 points of RULER from 8K to 128K; Quest 5.6, MagicPIG 7.4, SnapKV 77",
    needs="a model or data",
    call=f"kvviz evaluate --model {LLAMA} {RULER_TASKS} --method full --method snapkv --method quest --method magicpig "
    f"--method shadowkv --method oracle --method ctkvr --budget 640 --budget 1152 {LENGTHS} --samples 96 "
    "--out ruler.parquet",
    tested=RULER_TEST,
)  # fmt: skip
def ruler() -> Finding:
    """RULER's 13 tasks by length and method, for Llama-3-8B and Yi-9B."""
    table = needles()
    return Finding(
        ours=f"on needles with the question at the end of the prompt: "
        f"{found(table, 'full', 'ctkvr', 'oracle', 'shadowkv', 'magicpig (9, 120)', 'quest', 'snapkv')}. {not_here()}",
        run=f"{sources.described(table)}; {stored_run()}",
    )


@entry(
    "CTkvr", "table 2",
    headline="LongBench by category: CTkvr within 0.1 point of full attention in the mean, MagicPIG 5.5 below",
    needs="a model or data",
    call=longbench_command(),
    tested=LONGBENCH_TEST,
)  # fmt: skip
def longbench_categories() -> Finding:
    """LongBench's mean scores by category and method."""
    return Finding(ours=not_here(), run=stored_run())


@entry(
    "CTkvr", "table 3",
    headline="after MInference's sparse prefill CTkvr loses 0.65 point of RULER to full attention",
    claim="after the same sparse prefill CTkvr finds at most one needle fewer than full attention",
    call='kvviz.compare(lm, prompt, methods, [], prefill="minference"); make papers ARGS="--measure ctkvr_minference"',
)  # fmt: skip
def with_minference() -> Finding:
    """CTkvr's decoding after MInference's prefill."""
    table = sources.measured("ctkvr_minference")
    full, ctkvr = (of(table, label).sum() for label in ("minference", "minference and ctkvr"))
    exact = needles()
    return Finding(
        ours=f"needles after a sparse prefill: {found(table, 'minference', 'minference and ctkvr')}; after an exact "
        f"one, at a budget of {exact.attrs['sizes']['budget']}: {found(exact, 'full', 'ctkvr')}",
        holds=bool(ctkvr >= full - 1),
        run=sources.described(table, "question at the end of the prompt"),
        why="the digits after the first are decoded by CTkvr; the first comes from the prefill",
    )


@entry(
    "CTkvr", "table 4",
    headline="last queries 83.35, equidistant 81.98, random 79.93, first queries 75.60",
    claim="on every text recall falls from the last over equidistant and random to the first queries",
    call='kvviz.replay(trace, "ctkvr", choice="final" | "equidistant" | "random" | "init")',
)  # fmt: skip
def choice_of_centroids() -> Finding:
    """Which queries of the prompt become centroids: the last ones, random, first, or equidistant ones."""
    rows = settings("choice")
    order = ["final", "equidistant", "random", "init"]
    recall = rows.pivot_table(index="text", columns="value", values="recall")[order]
    steps = recall.diff(axis=1).iloc[:, 1:]
    table = needles()
    labels = [f"{choice} centroids" for choice in order[1:]]
    lead = recall["final"] - recall["equidistant"]
    return Finding(
        ours="recall: " + ", ".join(f"{name} {sources.with_interval(recall[name], 3)}" for name in order)
        + f"; the last queries' lead over equidistant ones {sources.with_interval(lead, 3)}; needles: "
        + found(table, "ctkvr", *labels),
        holds=bool((steps < 0).all(axis=None)),
        why="the paper's texts are 64K long, where the first queries are far away" if
        (steps < 0).all(axis=None) else
        "on single texts: " + "; ".join(
            ", ".join(f"{name} {value:.3f}" for name, value in row.items()) for _, row in recall.iterrows()
        ) + ". In so short a text no query is far from any other (the paper's texts have 64K)",
        run=sources.described(rows, layers_of(rows), "all KV heads, interval over texts"),
        draw=lambda: plots.ablation(
            rows.rename(columns={"value": "centroids"}).assign(method="ctkvr"), field="centroids", metric="recall",
            title=f"Recall by choice of centroids · {rows.attrs['model']}",
        ),
        published=lambda: plots.ablation(
            pd.DataFrame({"method": "ctkvr", "centroids": order, "mean score": [TABLE_4[name] for name in order]}),
            field="centroids", metric="mean score", title="CTkvr table 4: RULER, Llama-3-8B",
        ),
    )  # fmt: skip


@entry(
    "CTkvr", "table 5",
    headline="after 8 rounds 94.02 with the dynamic update, 85.67 without",
    claim="over the turns after the first, more needles are found with the update than without",
    call='make papers ARGS="--measure ctkvr_multi_turn"; the task needle_multi_turn',
)  # fmt: skip
def conversations() -> Finding:
    """Needles found in the turns of a conversation, with and without the dynamic update of centroids."""
    table = sources.measured("ctkvr_multi_turn")
    later = table[table["turn"] > 0]
    by_sample = later.groupby(["sample", "label"])["correct"].mean().unstack("label")
    first = table[table["turn"] == 0].groupby("label")["correct"].mean()
    gain = by_sample["fifo"] - by_sample["no update"]
    low, high = metrics.bootstrap_interval(gain.to_numpy())
    names = {"full": "full", "fifo": "CTkvr", "no update": "CTkvr without update"}
    drawn = (
        table.assign(
            turn=table["turn"] + 1,
            method=table["label"].map({"full": "full", "fifo": "ctkvr", "no update": "ctkvr, no update"}),
        )
        .groupby(["turn", "method"], as_index=False, sort=False)["correct"]
        .mean()
    )
    published = pd.DataFrame(
        [
            {"turn": turn, "method": method, "correct": value / 100}
            for method, label in (("ctkvr", "fifo"), ("ctkvr, no update", "no update"))
            for turn, value in zip(TABLE_5["round"], TABLE_5[label], strict=True)
        ]
    )
    return Finding(
        ours="first turn " + ", ".join(f"{name} {first[label]:.2f}" for label, name in names.items())
        + "; later turns " + ", ".join(
            f"{name} {sources.with_interval(by_sample[label])}" for label, name in names.items()
        ) + f"; the update's gain {sources.with_interval(gain)}",
        holds=bool(gain.mean() > 0),
        why=("inconclusive: the interval of the gain includes 0. " if low <= 0 <= high else "")
        + f"The questions after the first are fed as decode steps. C = L/16 is {table.attrs['sizes']['length'] // 16} "
        "here, so that a few turns of questions and answers replace all of the prompt's centroids; with the paper's "
        "C = 2,048 that takes far longer. The update lists the recent window and tokens that other lists had before",
        run=sources.described(table, "interval over conversations"),
        draw=lambda: plots.ablation(drawn, field="turn", metric="correct", title="Needles found by turn"),
        published=lambda: plots.ablation(published, field="turn", metric="correct", title="CTkvr table 5"),
    )  # fmt: skip


@entry(
    "CTkvr", "table 6",
    headline="at 4 % of the tokens CTkvr reaches 85.58, with 512 tokens 84.70, MagicPIG 78.63",
    claim="CTkvr with a share of the prompt finds more needles than MagicPIG (9, 120), and at least as many as with "
    "the fixed budget",
    call='make papers ARGS="--measure ctkvr_needles"',
)  # fmt: skip
def at_equal_sparsity() -> Finding:
    """CTkvr with a share of the prompt as its budget, with a fixed budget, and MagicPIG."""
    table = needles()
    labels = ["a share of the prompt", "ctkvr", "magicpig (9, 120)"]
    share, fixed, magicpig = (of(table, label).sum() for label in labels)
    return Finding(
        ours=found(table, *labels) + "; attended tokens "
        + ", ".join(f"{label} {attended(table, label)}" for label in labels),
        holds=bool(share > magicpig and share >= fixed),
        why=f"{ceiling(table, labels)}MagicPIG sets its own number of tokens; the share is an eighth of the prompt. "
        f"With the question after the context: {on_tasks({'ctkvr': 256, 'magicpig': 256})}",
        run=f"{sources.described(table, 'question at the end of the prompt')}; {stored_run()}",
    )  # fmt: skip


@entry(
    "CTkvr", "table 7",
    headline="CTkvr 84.70; MagicPIG (8, 75) 78.63, (9, 120) 70.93, (10, 150) 62.69 (means as printed)",
    claim="CTkvr finds more needles than MagicPIG in each of its three configurations",
    call='make papers ARGS="--measure ctkvr_needles"',
)  # fmt: skip
def accuracy_of_magicpig() -> Finding:
    """Accuracy of CTkvr and of three configurations of MagicPIG."""
    table = needles()
    labels = [label for label in table["label"].unique() if label.startswith("magicpig")]
    return Finding(
        ours=found(table, "full", "ctkvr", *labels) + "; attended tokens "
        + ", ".join(f"{label} {attended(table, label)}" for label in ("ctkvr", *labels)),
        holds=all(of(table, "ctkvr").sum() > of(table, label).sum() for label in labels),
        why=f"{ceiling(table, ['ctkvr', *labels])}With the question after the context: "
        f"{on_tasks({'ctkvr': 256, 'magicpig': 256})}. The means that the paper prints for (9, 120) and (10, 150) are "
        "not those of their rows, 83.67 and 75.47, by which (9, 120) is its best; and the row of (8, 75) is that of "
        "its table 1, which is said to be (9, 120)",
        run=f"{sources.described(table, 'question at the end of the prompt')}; {stored_run()}",
    )  # fmt: skip


@entry(
    "CTkvr", "table 8",
    headline="CTkvr 85.25, RetrievalAttention 85.28, full attention 85.99",
    claim="CTkvr and RetrievalAttention find equally many needles, but for one",
    call='make papers ARGS="--measure ctkvr_needles"; make results',
)  # fmt: skip
def accuracy_of_retrieval_attention() -> Finding:
    """Accuracy of CTkvr and RetrievalAttention at equal budget."""
    table = needles()
    ctkvr, graph = (of(table, label).sum() for label in ("ctkvr", "retrieval_attention"))
    budgets: dict[str, float | None] = {"full": None, "ctkvr": 512, "retrieval_attention": 512}
    return Finding(
        ours=f"{found(table, 'full', 'ctkvr', 'retrieval_attention')}. Question after the context, budget 512: "
        f"{on_tasks(budgets)}",
        holds=bool(abs(ctkvr - graph) <= 1),
        why=ceiling(table, ["ctkvr", "retrieval_attention"])
        + f"At budget 256, question after the context: {on_tasks({'ctkvr': 256, 'retrieval_attention': 256})}",
        run=f"{sources.described(table, 'question at the end of the prompt')}; {stored_run()}",
    )
