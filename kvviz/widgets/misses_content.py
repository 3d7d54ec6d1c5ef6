"""What the miss inspector shows of a diagnosis: its page, and its losses as packed arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from safetensors.numpy import save

from ..errors import InvalidInputError
from ..trace.diagnosis import ALL, Diagnosis
from ..trace.hues import HUES
from ..trace.outcomes import EVERYTHING, OUTCOMES, VERDICTS
from . import content
from .view import LEVELS

GREY = HUES * LEVELS  # looks of tokens without a cluster
INTEGERS = ("rank", "exact_rank", "group", "group_rank", "group_cut")  # -1 for none
FLOATS = ("exact_weight", "weight", "score", "cut")  # NaN for none


def check(diagnosis: Diagnosis) -> Diagnosis:
    """`diagnosis` if it is one and has something to show; raises InvalidInputError otherwise."""
    if not isinstance(diagnosis, Diagnosis):
        wanted = "a kvviz.Diagnosis, such as kvviz.diagnose(lm, prompt, answer, method) returns"
        raise InvalidInputError("MissInspector", type(diagnosis).__name__, wanted)
    if diagnosis.losses.empty:
        wanted = "evidence, and a layer in which the method chooses: give evidence=…, or lower dense_layers"
        raise InvalidInputError("MissInspector", "a diagnosis without losses", wanted)
    return diagnosis


def shape(diagnosis: Diagnosis) -> tuple[int, int, int, int]:
    """Steps, layers, rows per layer and evidence tokens of the losses."""
    losses = diagnosis.losses
    counts = [losses[name].nunique() for name in ("step", "layer", "position")]
    return counts[0], counts[1], len(losses) // int(np.prod(counts)), counts[2]


def opening(diagnosis: Diagnosis) -> dict[str, int]:
    """The layer, head, position and step that are shown first: a lost token of the head that brings back most."""
    heads = diagnosis.restored[(diagnosis.restored["stage"] == EVERYTHING) & (diagnosis.restored["layer"] != ALL)]
    best = heads.sort_values("logprob", kind="stable").iloc[-1]
    layer, head = int(best["layer"]), int(best["head"])
    of_head = diagnosis.losses[(diagnosis.losses["layer"] == layer) & (diagnosis.losses["head"] == head)]
    missed = of_head[~of_head["stage"].isin(["attended", "not wanted"])]
    shown = (of_head if missed.empty else missed).sort_values("exact_weight", kind="stable").iloc[-1]
    return {"layer": layer, "head": head, "position": int(shown["position"]), "step": int(shown["step"])}


def describe(diagnosis: Diagnosis, *, live: bool) -> dict[str, Any]:
    """The page's content that does not depend on what is picked; JSON-able."""
    evidence, restored = diagnosis.evidence, diagnosis.restored
    prompt, fed = diagnosis.prompt_length, len(diagnosis.tokens) - diagnosis.prompt_length
    steps, _, rows, _ = shape(diagnosis)
    most = max(float(evidence["logprob"].abs().max()), 1e-9)
    levels = [min(int(LEVELS * max(cost, 0.0) / most), LEVELS - 1) for cost in evidence["logprob"]]
    heads = diagnosis.geometry.n_kv_heads
    tried = restored[restored["layer"] != ALL]
    return {
        "title": diagnosis.description,
        "method": diagnosis.title,
        "answer": content.texts([diagnosis.answer])[0],
        "full": diagnosis.full.total,
        "here": diagnosis.method.total,
        "tokens": content.texts(diagnosis.tokens[:prompt]),
        "fed": content.texts(diagnosis.tokens[prompt:]),
        "asked": diagnosis.question_length,
        "steps": min(steps, fed),
        "stages": [{"name": name, "verdict": VERDICTS[name]} for name in diagnosis.stages],
        "outcomes": list(OUTCOMES),
        "group_name": diagnosis.group_name,
        "layers": list(diagnosis.layers),
        "heads": heads,
        "rows_per_head": rows // heads,
        "evidence": [
            {"position": row.position, "logprob": row.logprob, "pinned": row.pinned, "look": GREY + level}
            for row, level in zip(evidence.itertuples(), levels, strict=True)
        ],
        "restored": [
            [row.layer, row.head, row.stage, row.logprob, row.answered] for row in tried.itertuples(index=False)
        ],
        "causes": [list(cause) for cause in diagnosis.causes],
        "smallest": None if diagnosis.smallest is None else [list(head) for head in diagnosis.smallest],
        "control": [
            {"seed": row.seed, "answered": row.answered, "logprob": row.logprob}
            for row in diagnosis.control.drop_duplicates("seed").itertuples()
        ],
        "restored_answer": None if diagnosis.smallest_score is None else diagnosis.smallest_score.total,
        "texts": {name: content.texts([text])[0] for name, text in diagnosis.texts.items()},
        "live": live,
        "call": "kvviz.widgets.MissInspector(diagnosis, ",
        "notes": [] if live else [
            "Changes are shown one at a time, as the diagnosis has them. MissInspector(diagnosis, lm) decodes again "
            "and combines them."
        ],
    }  # fmt: skip


def pack(diagnosis: Diagnosis) -> bytes:
    """The losses as safetensors bytes, which js/slice.js reads: arrays [steps, layers, rows, evidence]."""
    losses = diagnosis.losses.sort_values(["step", "layer", "head", "query_head", "position"], kind="stable")
    sizes = shape(diagnosis)
    if len(losses) != math.prod(sizes):
        raise InvalidInputError("MissInspector", "a diagnosis that lacks some losses", "one row each")
    arrays = {name: losses[name].fillna(-1).to_numpy(np.int32) for name in INTEGERS}
    floats = {name: losses[name].to_numpy(np.float32) for name in FLOATS}
    stage = losses["stage"].map({name: number for number, name in enumerate(OUTCOMES)}).to_numpy(np.uint8)
    return save({
        "place": np.zeros(2, np.int32),
        **{name: array.reshape(sizes) for name, array in {**arrays, **floats, "stage": stage}.items()},
    })  # fmt: skip
