"""A tiny recording and a tiny diagnosis for the examples in docstrings."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..trace import Geometry, LayerEvents, Recording, diagnosis
from ..trace.diagnosis import Diagnosis
from ..trace.score import Score
from ..trace.styles import Style
from ..trace.tables import to_table


def example_recording() -> Recording:
    """A recording of one layer and head: Quest attends to tokens 0 and 1 twice, the oracle to 0 and 1, then 1 and 2."""
    attention = np.array([[[0.6, 0.3, 0.1, 0.0]], [[0.1, 0.5, 0.3, 0.1]]])  # [T, R, N]
    indices = np.array([[[0, 1]], [[0, 1]]], np.int32)  # [T, R, S]
    zeros = np.zeros(2, np.int64)
    events = LayerEvents(
        indices=indices, groups=np.zeros_like(indices), scores=np.zeros(indices.shape, np.float32),
        attention=attention.astype(LayerEvents.FIELDS["attention"]), output_error=np.zeros(2, np.float32),
        merged=np.zeros((2, 1), np.int32),
        read_bytes=zeros, moved_bytes=zeros, select_s=np.zeros(2, np.float32),
    )  # fmt: skip
    return Recording(
        method="quest", title="Quest", config={}, budget=2, model="example", geometry=Geometry(1, 1, 1, 8, 16),
        tokens=["a", "b", "c", "d"], token_ids=np.arange(4), next_tokens=["d", "e"], prompt_length=2,
        events={0: events},
    )  # fmt: skip


def example_diagnosis() -> Diagnosis:
    """A diagnosis of two layers and one head: Quest loses token 1 of a prompt of three in both, and layer 1 matters."""
    row = {
        "step": 0, "head": 0, "query_head": -1, "position": 1, "exact_weight": 0.5, "weight": 0.0, "score": 0.1,
        "rank": 3.0, "cut": 0.2, "exact_rank": 1, "group": 0, "group_rank": 2.0, "group_cut": 1.0,
    }  # fmt: skip
    tables: dict[str, list[dict[str, Any]]] = {
        "evidence": [{"position": 1, "logprob": 2.0, "pinned": 4.0}],
        "losses": [{**row, "layer": 0, "stage": "badly scored"}, {**row, "layer": 1, "stage": "badly grouped"}],
        "restored": [
            {"layer": layer, "head": head, "stage": "all", "logprob": logprob, "answered": answered}
            for layer, head, logprob, answered in ((-1, -1, 4.85, True), (0, 0, 0.25, False), (1, 0, 1.5, True))
        ],
        "waterfall": [
            {"stage": stage, "logprob": logprob}
            for stage, logprob in (("method", -5.0), ("grouping", -2.5), ("kept", -0.25), ("full", -0.1))
        ],
        "control": [{"seed": 0, "layer": 0, "head": 0, "logprob": 0.25, "answered": False}],
    }  # fmt: skip
    framed = {name: to_table(diagnosis.TABLES[name], rows) for name, rows in tables.items()}
    framed["evidence"].insert(1, "token", ["b"])
    full, method, restored = (
        Score(np.array([total]), ["e"], np.array([likeliest]))
        for total, likeliest in ((-0.1, True), (-5.0, False), (-0.4, True))
    )
    return Diagnosis(
        method_name="quest", title="Quest", config={}, budget=2, stages=("kept", "grouping"), group_name="page",
        style=Style().completed("quest", "retrieval"), model="example", geometry=Geometry(2, 1, 1, 8, 16),
        tokens=["a", "b", "c", "d", "e"], token_ids=np.arange(5), prompt_length=3,
        question_length=1, full=full, method=method, smallest=((1, 0),), smallest_score=restored,
        texts={"method": "f", "pinned": "e"}, passes=9, **framed,
    )  # fmt: skip
