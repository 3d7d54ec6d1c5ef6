"""The recipes of "Why was it missed?": diagnoses of one hidden number, and repairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .recipes import TEXT, manual, recipe, table_of

if TYPE_CHECKING:
    import pandas as pd

    from kvviz.methods.base import Method
    from kvviz.models import LanguageModel
    from kvviz.tasks.needle import NeedleSample
    from kvviz.trace.diagnosis import Diagnosis

TOKENS, BUDGET, NEEDLE_SEED = 1000, 128, 2
METHODS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "quest": ("quest", {}), "clusterkv": ("clusterkv", {}), "snapkv": ("snapkv", {"generated": "within"}),
    "centroidkv": ("centroidkv", {}),
}  # fmt: skip
REPAIRS: Mapping[str, Mapping[str, Sequence[Any]]] = {  # by method and field: values to try, one at a time
    "quest": {"page_size": (4, 8, 16, 32), "sinks": (0, 16), "recent": (0, 16)},
    "clusterkv": {"tokens_per_cluster": (5, 10, 20, 80), "metric": ("cosine", "l2", "ip"), "sinks": (4, 16)},
    "snapkv": {"recent": (16, 32, 64), "pooling": ("avg", "max")},
    "centroidkv": {"chunk_size": (64, 128, 256), "schedule": ("floor", "literal", "overshoot", "cyclic")},
}


@recipe("diagnoses", text=f"{TEXT}; the hidden sentence is kvviz's own")
def misses(lm: LanguageModel) -> dict[str, Diagnosis]:
    """A number hidden in 1,000 tokens of prose, and where four methods lost it at a budget of 128."""
    from kvviz.generation.diagnosing import diagnose

    sample = _missed(lm)
    return {
        label: diagnose(
            lm, sample.context, sample.answer, _missing(label), question=sample.question, evidence=sample.answer
        )
        for label in METHODS
    }


@recipe("table", text=f"{TEXT}; the hidden sentence is kvviz's own")
def repairs(lm: LanguageModel) -> pd.DataFrame:
    """The log-probability of the number in `misses` if one field of a method is changed."""
    from kvviz.generation.teacher_forcing import ForcedAnswer

    sample = _missed(lm)
    forced = ForcedAnswer(lm, sample.context, f" {sample.answer}", sample.question)
    rows = []
    for label, fields in REPAIRS.items():
        for field, values in fields.items():
            for value in values:
                score = forced.score(_missing(label, **{field: value}))
                rows.append({
                    "method": label, "field": field, "value": str(value), "logprob": score.total,
                    "answered": score.answered,
                })  # fmt: skip
    return table_of(rows, lm, budget=BUDGET)


def _missed(lm: LanguageModel) -> NeedleSample:
    """The sample of `misses`."""
    from kvviz.tasks import needle_sample

    return needle_sample(lm, manual(), tokens=TOKENS, depth=0.5, seed=NEEDLE_SEED)


def _missing(label: str, **fields: Any) -> Method:
    """A method of `misses`, with other values of some fields."""
    from kvviz import methods

    name, given = METHODS[label]
    return methods.create(name, budget=BUDGET, **{**given, **fields})
