"""CTkvr on tasks: several questions in one conversation, needles by length and depth, and a sparse prefill."""

from __future__ import annotations

from typing import Any

from measures import SEED, Rows, measure
from measures.ctkvr_answers import WINDOWS
from measures.pqcache_tasks import METHODS


@measure(length=400, samples=1, turns=2, budget=160)
def ctkvr_multi_turn(lm: Any, length: int = 1024, samples: int = 8, turns: int = 4, budget: int = 256) -> Rows:
    """Per conversation, turn and method: whether the turn's needle was found, with and without CTkvr's update.

    All turns use one cache. The first question is in the prompt, the others are fed as decode steps after the answers,
    so that the update's centroids are queries of later questions and answers.
    """
    import kvviz

    fields = {"budget": budget, **WINDOWS}
    methods = {
        "full": kvviz.methods.create("full"),
        "fifo": kvviz.methods.create("ctkvr", **fields),
        "no update": kvviz.methods.create("ctkvr", **fields, update=None),
    }
    task = kvviz.tasks.create("needle_multi_turn", turns=turns, placement="last")
    table = kvviz.evaluate(lm, [task], methods, [budget], [length], samples, SEED)
    return [
        {
            "sample": int(row["sample"]), "turn": int(row["turn"]), "label": row["method"],
            "correct": float(row["score"]),
        }
        for row in table.to_dict("records")
    ]  # fmt: skip


@measure(lengths=(400,), depths=1, budget=160, methods=("full", "ctkvr"))
def ctkvr_needle_grid(
    lm: Any, lengths: tuple[int, ...] = (1000, 2000, 4000), depths: int = 3, budget: int = 544,
    methods: tuple[str, ...] = METHODS,
) -> Rows:  # fmt: skip
    """Per length and depth: whether each method finds the needle, with the question in the prompt.

    The budget has 512 retrieved tokens, ρ' of the paper, and CTkvr's windows. `kvviz evaluate` with the task
    "needle:depths=3,placement=last" does the same, and resumes where it was stopped.
    """
    import kvviz

    asked = {name.partition(":")[0]: name for name in methods}
    asked |= {"ctkvr": kvviz.methods.create("ctkvr", budget=budget, **WINDOWS)}
    task = kvviz.tasks.create("needle", depths=depths, placement="last")
    table = kvviz.evaluate(lm, [task], asked, [budget], list(lengths), depths, SEED)
    return [
        {
            "method": row["method"], "length": int(row["length"]), "depth": float(row["depth"]),
            "score": float(row["score"]),
        }
        for row in table[table["score"].notna()].to_dict("records")
    ]  # fmt: skip


@measure(tokens=260, samples=1, budget=96, new_tokens=2)
def ctkvr_minference(lm: Any, tokens: int = 1000, samples: int = 8, budget: int = 128, new_tokens: int = 7) -> Rows:
    """Per needle sample: whether CTkvr finds the number after MInference's sparse prefill, and full attention does."""
    import kvviz
    from kvviz.tasks import needle_samples
    from notebooks.runs.recipes import manual

    methods = {
        "minference": kvviz.methods.create("minference"),
        "minference and ctkvr": kvviz.methods.create("ctkvr", budget=budget, **WINDOWS),
    }
    layer, rows = lm.geometry.n_layers // 2, []
    for sample in needle_samples(lm, manual(), count=samples, tokens=tokens, seed=SEED):
        table = kvviz.compare(
            lm, sample.context + sample.question, methods, [], None, sample.answer, new_tokens, recordings=False,
            prefill="minference", layers=[layer],
        )  # fmt: skip
        rows += [
            {"sample": sample.seed, "label": row["method"], "correct": bool(row["correct"])}
            for row in table.to_dict("records")
        ]
    return rows
