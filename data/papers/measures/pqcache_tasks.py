"""Answers to questions: needles by length and depth, question before the text, MInference, bits and iterations."""

from __future__ import annotations

from typing import Any

from measures import SEED, Rows, measure
from measures.pqcache_quality import CONFIGURATIONS

# Every method that selects tokens, at the paper's budget; those of PQCache's fig. 9 first.
METHODS = (
    "full", "oracle", "h2o", "snapkv", "pyramidkv", "infllm", "sparq:pqcache", "pqcache:infinitebench", "clusterkv",
    "ctkvr", "centroidkv", "quest", "infinigen", "shadowkv", "magicpig", "retrieval_attention", "squeezed_attention",
    "streaming_llm",
)  # fmt: skip
ASKED = ("full", "oracle", "infllm", "sparq:pqcache", "pqcache")
COMPENSATED = ("h2o", "snapkv", "pyramidkv")  # "(C)" in PQCache's tables: as many bytes as PQCache with its codes


def _scores(table: Any, *columns: str) -> Rows:
    """One row per sample, task and method that answered."""
    rows = []
    for row in table[table["score"].notna()].to_dict("records"):
        known = {name: row[name] for name in ("task", "placement", "length", "sample", "method", *columns)}
        rows.append(known | {"attended_tokens": float(row["attended_tokens"]), "score": float(row["score"])})
    return rows


@measure(lengths=(300,), depths=1, share=0.5, methods=("full", "pqcache"))
def pqcache_needle_grid(
    lm: Any, lengths: tuple[int, ...] = (2048, 4096, 7168), depths: int = 2, share: float = 0.1,
    methods: tuple[str, ...] = METHODS,
) -> Rows:  # fmt: skip
    """Needles found by every method, by length and depth; the question comes last, the budget is `share` of the prompt.

    One sample per length and depth.
    """
    import kvviz
    from kvviz.tasks import create

    task = create("needle", depths=depths, placement="last")
    table = kvviz.evaluate(lm, [task], methods, [share], lengths, samples=depths, seed=SEED)
    return _scores(table, "depth")


@measure(tasks=("needle",), length=300, samples=1, share=0.5)
def pqcache_question_first(
    lm: Any, tasks: tuple[str, ...] = ("needle", "niah_single_2"), length: int = 1024, samples: int = 8,
    share: float = 0.1,
) -> Rows:  # fmt: skip
    """Scores with the question before the text, one prompt for both.

    "(C)" are methods that drop tokens, with the bytes of PQCache's codes as further tokens.
    """
    import kvviz
    from kvviz.metrics import compensated_budget
    from kvviz.tasks import create

    asked = [create(name, placement="first") for name in tasks]
    extra = kvviz.methods.create("pqcache").extra_communication(lm.geometry.head_dim)
    more = compensated_budget(share, float(extra))
    dropping = {f"{name} (C)": name for name in COMPENSATED}
    rows = _scores(kvviz.evaluate(lm, asked, ASKED, [share], [length], samples=samples, seed=SEED))
    return rows + _scores(kvviz.evaluate(lm, asked, dropping, [more], [length], samples=samples, seed=SEED))


@measure(tokens=200, samples=1)
def pqcache_minference(lm: Any, tokens: int = 1024, samples: int = 8, share: float = 0.2, new_tokens: int = 8) -> Rows:
    """Needles found, and errors of the output, with exact and with sparse prefill ("minference").

    Per sample: full attention, PQCache with m=4 and b=8, MInference, and both together. The question is fed after the
    text.
    """
    import kvviz
    from kvviz.tasks import needle_samples
    from notebooks.runs.recipes import manual

    pqcache = kvviz.methods.create("pqcache", preset="infinitebench", budget=share)
    rows = []
    for number, sample in enumerate(needle_samples(lm, manual(), count=samples, tokens=tokens, seed=SEED)):
        for prefill, method, label in (
            (None, "full", "full"), (None, pqcache, "pqcache"), ("minference", "full", "minference"),
            ("minference", pqcache, "both"),
        ):  # fmt: skip
            out = kvviz.generate(
                lm, sample.context, method, question=sample.question, max_new_tokens=new_tokens, prefill=prefill
            )
            rows.append({
                "sample": number, "label": label, "correct": sample.answer in out.text, "ttft_s": out.timings.ttft_s,
                "tpot_s": out.timings.tpot_s, "build_s": out.timings.build_s,
            })  # fmt: skip
    return rows


@measure(tasks=("needle",), length=300, samples=1, configurations=((2, 4),), iterations=(1,))
def pqcache_answers_by_setting(
    lm: Any, tasks: tuple[str, ...] = ("needle", "niah_multikey_1"), length: int = 1024, samples: int = 6,
    budget: int = 64, configurations: tuple[tuple[int, int], ...] = CONFIGURATIONS,
    iterations: tuple[int, ...] = (1, 3, 30),
) -> Rows:  # fmt: skip
    """Scores of PQCache by m × b and by iterations of k-means, and of full attention."""
    import kvviz

    methods: dict[str, Any] = {"full": "full"}
    for m, b in configurations:
        methods[f"{m}×{b}"] = kvviz.methods.create("pqcache", budget=budget, n_partitions=m, n_bits=b)
    for count in iterations:
        methods[f"T={count}"] = kvviz.methods.create("pqcache", budget=budget, max_iter=count)
    return _scores(kvviz.evaluate(lm, list(tasks), methods, [budget], [length], samples=samples, seed=SEED))
