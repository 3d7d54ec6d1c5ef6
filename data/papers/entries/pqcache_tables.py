"""PQCache (arXiv 2407.12820): tables 1 to 6."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import sources

from entries import Finding, entry
from entries.pqcache_evaluations import LOADERS, METHODS
from entries.pqcache_pictures import notation
from entries.pqcache_published import (
    INFINITEBENCH,
    INFINITEBENCH_FULL,
    LARGER,
    LONGBENCH,
    LONGBENCH_FULL,
    MINFERENCE,
    QUESTION_FIRST,
    averages,
    by_data_set,
)
from kvviz import plots
from kvviz.methods.pqcache import PQCache
from kvviz.metrics import compensated_budget

LONGBENCH_TASKS = (
    "narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "gov_report", "qmsum", "multi_news",
    "trec", "triviaqa", "samsum", "passage_count", "passage_retrieval_en",
)  # fmt: skip
INFINITEBENCH_TASKS = (
    "longbook_sum_eng", "longbook_qa_eng", "longbook_choice_eng", "longdialogue_qa_eng", "passkey", "number_string",
    "kv_retrieval",
)  # fmt: skip
DROPPING = ("snapkv", "pyramidkv")
BASELINES = tuple(f"{name} (C)" for name in DROPPING)
EXTRA = float(PQCache().extra_communication(head_dim=64))


def command(model: str, tasks: Sequence[str], methods: Sequence[str], budgets: Sequence[str], length: int) -> str:
    """A call of `kvviz evaluate`, which resumes where it stopped."""
    chosen = [f"--task {task}" for task in tasks] + [f"--method {method}" for method in methods]
    chosen += [f"--budget {budget}" for budget in budgets] + [f"--length {length} --samples 200"]
    return f"kvviz evaluate --model {model} {' '.join(chosen)} --out pqcache.parquet"


def ours(budgets: tuple[int, ...] = (128, 256), length: int = 1024) -> pd.DataFrame:
    """Scores of the stored grid, question after the compressed text, in the tasks that all methods answered.

    `method` has no preset, and the column `unit` names task and sample. "(C)" are methods that drop tokens, whose
    budget is compensated for PQCache's codes; they have the budget that was compensated.
    """
    table = sources.scores()
    table = table[table["score"].notna() & table["higher_is_better"] & (table["length"] == length)]
    listed = [name.partition(":")[0] for name in METHODS] + [f"{name} (C)" for name in ("h2o", *DROPPING)]
    table = table[(table["placement"] == "after") & table["method"].isin(listed)]
    compensated = {compensated_budget(budget, EXTRA, length): budget for budget in budgets}
    budget = table["budget"].where(~table["method"].str.endswith("(C)"), table["budget"].map(compensated))
    table = table.assign(budget=budget)
    table = table[table["budget"].isin(budgets) | (table["method"] == "full")]
    asked = table[table["method"] == "pqcache"]["task"].unique()
    table = table[table["task"].isin(asked)]
    return table.assign(unit=table["task"] + " " + table["sample"].astype(str))


def standing(table: pd.DataFrame, budget: int) -> str:
    """Mean scores by method at a budget, the best first."""
    rows = table[(table["budget"] == budget) | (table["method"] == "full")]
    means = rows.groupby(["method", "unit"])["score"].mean().groupby("method").mean().sort_values(ascending=False)
    samples = rows["unit"].nunique()
    listed = ", ".join(f"{method} {score:.2f}" for method, score in means.items() if method != "pqcache")
    mine = rows[rows["method"] == "pqcache"].groupby("unit")["score"].mean()
    return f"pqcache {sources.with_interval(mine)}, {listed} ({samples} samples of {rows['task'].nunique()} tasks)"


def _on_our_tasks() -> str:
    table = ours()
    return f"on kvviz's own tasks with SmolLM2-135M, 1,024 tokens, budget 128: {standing(table, 128)}; budget 256: " + (
        standing(table, 256)
    )


@entry(
    "PQCache", "table 1", schematic=True,
    headline="the paper's symbols: n, s, d, h, d_h, m, b, d_m, k, T",
    call='kvviz.methods.create("pqcache").config',
)  # fmt: skip
def symbols() -> Finding:
    """Notation of the paper."""
    return Finding(
        ours="kvviz's names beside the paper's. Two codes of 6 bits take 1.5 bytes per token where they are packed, in "
        "host memory and in transfers; on the device each takes a byte",
        draw=notation,
    )


@entry(
    "PQCache", "table 2",
    headline="LongBench, Llama-3.1-8B: PQCache 47.29 with 1/5 of the tokens and 47.19 with 1/10, full attention 47.37, "
    "the best baseline 46.48 and 45.42",
    needs="a model or data", tested=LOADERS,
    call=command(
        "meta-llama/Llama-3.1-8B-Instruct", [f"longbench:subset={name},placement=last" for name in LONGBENCH_TASKS],
        METHODS, ("20%", "10%"), 32_000,
    ),
)  # fmt: skip
def longbench() -> Finding:
    """Scores on LongBench with 1/5 and 1/10 of the tokens and 1/128 of extra communication."""
    return Finding(
        ours=_on_our_tasks(),
        run=sources.scores_described(),
        why="SparQ reads a quarter of the channels in kvviz's grid (its paper's default), one of 128 in the table. "
        "With SmolLM2's heads of 64 dimensions the codes take 1/85 of the keys' bytes, and \"(C)\", where the grid has "
        "it, adds half that share of tokens. In kvviz's grid the question follows the compressed text.",
        draw=lambda: plots.score_by_budget(ours().drop(columns=["sample", "task"]).rename(columns={"unit": "sample"})),
        published=lambda: plots.score_by_budget(
            averages(LONGBENCH_FULL, LONGBENCH), title="LongBench, Llama-3.1-8B (PQCache, table 2)"
        ),
    )


@entry(
    "PQCache", "table 3",
    headline="questions before the text, 1/10 of the tokens: PQCache 32.44, SnapKV (C) 30.29, PyramidKV (C) 29.97",
    claim="with the question before the text, PQCache has a higher mean score than SnapKV (C) and PyramidKV (C)",
    call='make papers ARGS="--measure pqcache_question_first"; kvviz evaluate --task needle:placement=first --method '
    "all --budget 10% --length 1024",
)  # fmt: skip
def question_first() -> Finding:
    """Question answering with the question before the other text."""
    table = sources.measured("pqcache_question_first")
    table = table.assign(method=table["method"].str.partition(":")[0])
    means = table.groupby("method")["score"].mean()
    listed = [
        f"{name} {sources.with_interval(table[table['method'] == name]['score'])}"
        for name in ("full", "pqcache", *BASELINES, "h2o (C)", "sparq", "infllm")
    ]
    return Finding(
        ours="share of the answers found: " + ", ".join(listed),
        holds=all(bool(means["pqcache"] > means[name]) for name in BASELINES),
        run=sources.described(table, "tasks of kvviz"),
        draw=lambda: plots.ablation(
            table, field="method", metric="score", series=["task"], title="Question before the text"
        ),
        published=lambda: plots.ablation(
            by_data_set(QUESTION_FIRST, (*BASELINES, "pqcache")).assign(task="LongBench, 6 data sets"),
            field="method", metric="score", series=["task"], title="LongBench, question first (PQCache, table 3)",
        ),
    )  # fmt: skip


@entry(
    "PQCache", "table 4",
    headline="InfiniteBench, Llama-3.1-8B: PQCache 47.31 with 1/5 of the tokens and 46.80 with 1/10, full attention "
    "47.63, the best baseline 46.61 and 44.74",
    needs="a model or data", tested=LOADERS,
    call=command(
        "meta-llama/Llama-3.1-8B-Instruct",
        [f"infinitebench:subset={name},placement=last" for name in INFINITEBENCH_TASKS],
        [*METHODS[:-1], "pqcache:infinitebench"], ("20%", "10%"), 128_000,
    ),
)  # fmt: skip
def infinitebench() -> Finding:
    """Scores on InfiniteBench with 1/5 and 1/10 of the tokens and 1/64 of extra communication."""
    return Finding(
        ours=_on_our_tasks(),
        run=sources.scores_described(),
        why="kvviz leaves out the Chinese book and Math.Find of InfiniteBench; the other seven tasks are those of the "
        "paper.",
        published=lambda: plots.score_by_budget(
            averages(INFINITEBENCH_FULL, INFINITEBENCH), title="InfiniteBench, Llama-3.1-8B (PQCache, table 4)"
        ),
    )


@entry(
    "PQCache", "table 5",
    headline="InfiniteBench averages: full 47.63, PQCache 47.31, MInference 41.04, both together 40.18",
    claim="PQCache finds at least 90 % of the needles that full attention finds, and both together at least 90 % of "
    "those that MInference finds",
    call='kvviz.generate(lm, prompt, "pqcache", 0.2, preset="infinitebench", prefill="minference"); make papers '
    'ARGS="--measure pqcache_minference"',
)  # fmt: skip
def with_minference() -> Finding:
    """PQCache combined with the sparse prefill of MInference."""
    table = sources.measured("pqcache_minference")
    found = table.groupby("label")["correct"].sum()
    of = table["sample"].nunique()
    return Finding(
        ours=", ".join(
            f"{name} {sources.with_interval(table[table['label'] == name].sort_values('sample')['correct'])}"
            for name in ("full", "pqcache", "minference", "both")
        ),
        holds=bool(
            found["pqcache"] >= 0.9 * found["full"] and found["both"] >= 0.9 * found["minference"] and found["full"]
        ),
        run=sources.described(table, "needles, question after the text"),
        why=f"n = {of}. MInference is sparse from 512 tokens on here; the paper's prompts have about 100,000.",
        draw=lambda: plots.ablation(
            table.assign(found=table["correct"].astype(float), task="needles"), field="label", metric="found",
            series=["task"], title="Needles found, exact and sparse prefill",
        ),
        published=lambda: plots.ablation(
            by_data_set(MINFERENCE, ("full", "pqcache", "minference", "both")).assign(task="9 data sets"),
            field="method", metric="score", series=["task"], title="InfiniteBench (PQCache, table 5)",
        ),
    )  # fmt: skip


@entry(
    "PQCache", "table 6",
    headline="LongBench, Llama-3.1-70B, 1/5 of the tokens: full 52.89, PQCache 52.88 with half the processors per GPU "
    "and 52.86 with the same",
    needs="a model or data", tested=LOADERS,
    call=command(
        "meta-llama/Llama-3.1-70B-Instruct", [f"longbench:subset={name},placement=last" for name in LONGBENCH_TASKS],
        ("full", "pqcache"), ("20%",), 32_000,
    ),
)  # fmt: skip
def larger_model() -> Finding:
    """Scores on LongBench of a model with 70 billion parameters."""
    table = ours((256,))
    gaps = table.groupby(["unit", "method"])["score"].mean().unstack("method")
    gap = (gaps["pqcache"] - gaps["full"]).dropna()
    return Finding(
        ours=f"on kvviz's own tasks with SmolLM2-135M, 1,024 tokens, budget 256: PQCache minus full attention "
        f"{sources.with_interval(gap)}",
        run=sources.scores_described(),
        why='`kvviz.load(name, device="auto")` distributes the layers over several GPUs. The processors per GPU enter '
        "by T: `max_iter` takes an IterationModel fitted on the machine.",
        published=lambda: plots.ablation(
            by_data_set(LARGER, ("full", "half", "same")).assign(task="LongBench, 14 data sets"), field="method",
            metric="score", series=["task"], title="LongBench, Llama-3.1-70B (PQCache, table 6)",
        ),
    )  # fmt: skip
