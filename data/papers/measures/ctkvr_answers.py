"""CTkvr's answers: its parameters and its competitors on needles, and several questions in one conversation."""

from __future__ import annotations

from typing import Any

from measures import SEED, Rows, measure, texts

WINDOWS = {"sinks": 16, "recent": 16}  # as in ctkvr_fields
MAGICPIG = ((10, 150), (9, 120), (8, 75))  # (bits, tables) of CTkvr's table 7
UNLIMITED = 0.999  # a budget that leaves the number of tokens to the method


def ctkvr_methods(budget: int, centroids: int) -> dict[str, Any]:
    """CTkvr by what differs from the default, at a budget."""
    import kvviz

    settings: dict[str, dict[str, Any]] = {
        "ctkvr": {},
        **{f"C = {count}": {"n_centroids": count} for count in (8, 32, 4 * centroids)},
        **{f"C' = {count}": {"n_probes": count} for count in (1, 2, 8, 16)},
        **{f"{choice} centroids": {"choice": choice} for choice in ("equidistant", "random", "init")},
        "no update": {"update": None},
        "a share of the prompt": {"budget": 0.125},
        "without rerank": {"rerank": False, "attends": "union"},
    }
    common = {"budget": budget, "n_centroids": centroids, **WINDOWS}
    return {label: kvviz.methods.create("ctkvr", **{**common, **fields}) for label, fields in settings.items()}


def competitors(lm: Any, budget: int, tokens: int) -> dict[str, Any]:
    """The methods that the paper compares CTkvr with; MagicPIG and the calibrated threshold set their own budgets."""
    import kvviz

    calibration = texts(lm, tokens, 2)[1]
    sparsity = 1 - budget / tokens
    return {
        **{name: kvviz.methods.create(name, budget=budget) for name in ("oracle", "snapkv", "quest", "shadowkv")},
        **{
            f"magicpig ({bits}, {tables})": kvviz.methods.create(
                "magicpig", budget=UNLIMITED, bits=bits, tables=tables
            )
            for bits, tables in MAGICPIG
        },
        "squeezed_attention": kvviz.methods.create("squeezed_attention", budget=budget),
        "squeezed_attention, calibrated": kvviz.calibrated_squeezed_attention(
            lm, calibration, sparsity, min(100, tokens // 4)
        ),
        "retrieval_attention": kvviz.methods.create("retrieval_attention", budget=budget, sinks=16, recent=16),
    }  # fmt: skip


@measure(tokens=260, samples=1, budget=96, centroids=16, new_tokens=2)
def ctkvr_needles(
    lm: Any, tokens: int = 1000, samples: int = 16, budget: int = 64, centroids: int = 62, new_tokens: int = 7
) -> Rows:
    """Per needle sample and method: whether the number was found, and what a step attended to and took.

    The question ends the prompt, as in the paper's RULER: the last queries, CTkvr's centroids, are those of the
    question. `attended_tokens` is the mean per KV head in one layer in the middle.
    """
    import kvviz
    from kvviz.tasks import needle_samples
    from notebooks.runs.recipes import manual

    methods = {"full": kvviz.methods.create("full")}
    methods |= ctkvr_methods(budget, centroids) | competitors(lm, budget, tokens)
    layer = lm.geometry.n_layers // 2
    rows = []
    for sample in needle_samples(lm, manual(), count=samples, tokens=tokens, seed=SEED):
        prompt = sample.context + sample.question
        table = kvviz.compare(
            lm, prompt, methods, [], None, sample.answer, new_tokens, recordings=False, layers=[layer]
        )
        rows += [
            {
                "sample": sample.seed, "label": row["method"], "correct": bool(row["correct"]),
                "attended_tokens": float(row["attended_tokens"]), "build_s": float(row["build_s"]),
                "tpot_s": float(row["tpot_s"]),
            }
            for row in table.to_dict("records")
        ]  # fmt: skip
        print(f"sample {sample.seed}: found by {', '.join(table['method'][table['correct']])}", flush=True)
    return rows
