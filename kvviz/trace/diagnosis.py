"""Diagnosis: where a method lost the tokens that an answer needs, and what brings the answer back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import IncompatibleFileError
from .cards import card, layers_text
from .geometry import Geometry, load_geometry
from .outcomes import EVERYTHING, OUTCOMES, VERDICTS
from .score import Score
from .storage import check_metadata, check_shape, read_arrays, take, write_arrays
from .styles import Style, load_style
from .tables import Columns, from_arrays, to_arrays, to_column

if TYPE_CHECKING:
    import pandas as pd

STAGES = (EVERYTHING, *VERDICTS)
ALL = -1  # as a layer and head: all of them at once

EVIDENCE: Columns = {"position": int, "logprob": float, "pinned": float}
LOSSES: Columns = {  # 32 bits: there are many rows
    "step": np.int32, "layer": np.int32, "head": np.int32, "query_head": np.int32, "position": np.int32,
    "stage": OUTCOMES, "exact_weight": np.float32, "weight": np.float32, "score": np.float32, "rank": np.float32,
    "cut": np.float32, "exact_rank": np.int32, "group": np.int32, "group_rank": np.float32, "group_cut": np.float32,
}  # fmt: skip
RESTORED: Columns = {"layer": int, "head": int, "stage": STAGES, "logprob": float, "answered": bool}
CONTROL: Columns = {"seed": int, "layer": int, "head": int, "logprob": float, "answered": bool}
METHOD, FULL = "method", "full"  # the ends of the waterfall
STORAGE = "storage"  # in place of a stage: tokens are read exactly, not in fewer bits
WATERFALL: Columns = {"stage": (METHOD, *VERDICTS, FULL, STORAGE), "logprob": float}
TABLES: Mapping[str, Columns] = {
    "evidence": EVIDENCE, "losses": LOSSES, "restored": RESTORED, "waterfall": WATERFALL, "control": CONTROL,
}  # fmt: skip

_METADATA = {
    "method_name": "text", "title": "text", "config": "object", "budget": "integer", "stages": "texts",
    "group_name": "text", "style": "object", "model": "text", "geometry": "object", "tokens": "texts",
    "prompt_length": "integer", "question_length": "integer", "texts": "object", "smallest": "objects",
    "found": "integer", "passes": "integer",
}  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """Where a method lost an answer's evidence, and which heads bring the answer back. Made by `kvviz.diagnose`.

    `full` and `method` are the answer's Scores with full attention and with the method. Layers and KV heads count from
    0, steps from the question's first token, positions from the prompt's first. Log-probabilities are in nats.

    `evidence`: position, token, logprob (what full attention loses without the token), pinned (what the method gains if
    every head attends to it).

    `losses`: one row for each evidence token, step, layer and head: `stage`, one of OUTCOMES; `exact_weight`, and the
    `weight` that the method gave (a merged token's share of its centroid's); its `score` and `rank` (1 is the best)
    among the tokens that were ranked, and `cut`, the lowest score that was attended to; `exact_rank`, by exact weight
    among all tokens; its `group`, with the group's rank and the rank of the last group attended to (NaN, and -1,
    without groups). `query_head` is -1 unless the method chooses per query head. A method without `Method.ranking` has
    scores of attended tokens only (else minus infinity), and its misses count as "badly scored".

    `restored`: what restoring a head brings back, by `stage` or "all", and whether the answer is then the likeliest;
    with layer and head -1 for all heads at once. `waterfall`: the answer's log-probability with the method, then with
    one more of its stages exact in all heads, the last one first, for a method that stores tokens in fewer bits also
    with exact ones ("storage"), and with full attention.

    `smallest`: the heads (layer, head) whose restoration brings the answer back in a real decode, () if nothing was
    lost, None if even all heads don't; `smallest_score` is its Score. `control`: as many random heads, by seed, decoded
    likewise. `texts`: what greedy decoding writes, by "method" and "pinned" (with all evidence attended to in every
    head). `passes` counts the forward passes after the prefill, several of which may be rows of one batch.
    """

    KIND = "kvviz.diagnosis"
    VERSION = 1

    method_name: str
    title: str
    config: Mapping[str, Any]
    budget: int
    stages: tuple[str, ...]  # the method's, in order
    group_name: str
    style: Style
    model: str
    geometry: Geometry
    tokens: list[str] = field(repr=False)  # prompt, question and answer
    token_ids: NDArray[np.int64] = field(repr=False)
    prompt_length: int
    question_length: int
    full: Score = field(repr=False)
    method: Score = field(repr=False)
    evidence: pd.DataFrame = field(repr=False)
    losses: pd.DataFrame = field(repr=False)
    restored: pd.DataFrame = field(repr=False)
    waterfall: pd.DataFrame = field(repr=False)
    smallest: tuple[tuple[int, int], ...] | None
    smallest_score: Score | None = field(repr=False)
    control: pd.DataFrame = field(repr=False)
    texts: Mapping[str, str] = field(repr=False)
    passes: int

    @property
    def answer(self) -> str:
        """The text of the answer."""
        return "".join(self.full.tokens)

    @property
    def lost(self) -> float:
        """The log-probability that the answer lost with the method."""
        return self.full.total - self.method.total

    @property
    def description(self) -> str:
        """Method, budget, model and prompt length, for titles."""
        governed = self.geometry.governed_text()
        return f"{self.method_name} · budget {self.budget:,}{governed} · {self.model} · {self.prompt_length:,} tokens"

    def _repr_html_(self) -> str:
        restored = "even all heads do not" if self.smallest is None else ", ".join(
            f"layer {layer} head {head}" for layer, head in self.smallest
        )  # fmt: skip
        return card("Diagnosis", "where a method lost what an answer needs", {
            "method": f"{self.title}, budget {self.budget:,}", "model": self.model,
            "length": f"{self.prompt_length:,} tokens", "layers": layers_text(self.layers, self.geometry.n_layers),
            "size": f"{len(self.evidence)} evidence tokens, {len(self.losses):,} losses", "answer": self.answer,
            "log-probability": f"{self.full.total:.2f} with full attention, {self.method.total:.2f} with the method",
            "heads that bring it back": restored,
        }, [
            ("kvviz.widgets.MissInspector(diagnosis)", "each token's way through the method"),
            ("kvviz.plots.loss_by_head(diagnosis)", "the heads that matter, as a map"),
            ("diagnosis.evidence", "the tokens that the answer needs"),
        ])  # fmt: skip

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers in which the method chooses, ascending."""
        return tuple(sorted(set(self.restored["layer"]) - {ALL}))

    @property
    def causes(self) -> list[tuple[str, float]]:
        """What each cause adds to the answer's log-probability, in nats, from full attention's to the method's.

        "the budget" is the oracle's loss; "fewer bits" is what it loses in addition if it attends to the tokens as the
        method stores them; "the rest" is what the oracle finds and exact scores of single tokens don't,
        since sinks, recent window and generated tokens take room, and a group's query heads want different tokens; the
        others are OUTCOMES. They are differences of `waterfall`, and add up to minus `lost`.
        """
        return causes(self.waterfall, self.stages)

    def evidence_recall(self, *, weighted: bool = False) -> float:
        """Share of the evidence tokens that heads want which they attended to; `weighted`: each by its exact weight.

        Weighted, heads that look at the evidence count more. NaN if no head wants any.
        """
        return evidence_recall(self.losses, weighted=weighted)

    def head_map(self, stage: str = "all") -> NDArray[np.float64]:
        """What restoring each head brings back, float64 [layers, KV heads]; NaN where it was not tried."""
        found = np.full((self.geometry.n_layers, self.geometry.n_kv_heads), np.nan)
        rows = self.restored[(self.restored["stage"] == stage) & (self.restored["layer"] != ALL)]
        found[rows["layer"], rows["head"]] = rows["logprob"]
        return found

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the diagnosis to one safetensors file, whole or not at all; returns its path."""
        arrays: dict[str, NDArray[Any]] = {"token_ids": self.token_ids}
        for name, columns in TABLES.items():
            arrays |= to_arrays(name, columns, getattr(self, name))
        scores = {"full": self.full, "method": self.method, "smallest": self.smallest_score}
        for name, score in scores.items():
            if score is not None:
                arrays[f"score.{name}"] = score.logprobs
                arrays[f"likeliest.{name}"] = score.likeliest.astype(np.uint8)
        found = () if self.smallest is None else self.smallest
        metadata = {name: getattr(self, name) for name in _METADATA if name not in ("found", "smallest")}
        metadata |= {
            "config": dict(self.config), "geometry": self.geometry.metadata(), "style": asdict(self.style),
            "texts": dict(self.texts), "stages": list(self.stages),
            "smallest": [{"layer": layer, "head": head} for layer, head in found],
            "found": int(self.smallest is not None),
        }  # fmt: skip
        return write_arrays(path, self.KIND, self.VERSION, arrays, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Diagnosis:
        """Read a saved diagnosis. Raises IncompatibleFileError for a damaged file, another version, or wrong shapes."""
        arrays, metadata = read_arrays(path, cls.KIND, cls.VERSION)
        check_metadata(metadata, f"read {path}", _METADATA)
        metadata["geometry"] = load_geometry(metadata["geometry"], path)
        metadata["style"] = load_style(metadata["style"], f"read {path}: style")
        metadata["stages"] = tuple(metadata["stages"])
        tokens = metadata["tokens"]
        before = metadata["prompt_length"] + metadata["question_length"]
        if not 1 <= metadata["prompt_length"] <= before < len(tokens):
            raise IncompatibleFileError(
                f"read {path}", f"{len(tokens)} tokens", f"more than the {before} before the answer"
            )
        check_shape(f"read {path}: token_ids", take(arrays, "token_ids", path), (len(tokens),), np.int64)
        tables = {name: from_arrays(name, columns, arrays, path) for name, columns in TABLES.items()}
        for name, table in tables.items():
            if "position" in table and not table["position"].between(0, len(tokens) - 1).all():
                raise IncompatibleFileError(f"read {path}: {name}", "a position outside", f"0 to {len(tokens) - 1}")
            if "layer" in table:
                _check_heads(f"read {path}: {name}", table, metadata["geometry"])
        texts = [tokens[place] for place in tables["evidence"]["position"]]
        tables["evidence"].insert(1, "token", to_column(texts))
        scores = {
            name: _score(arrays, name, tokens[before:], path) if f"score.{name}" in arrays else None
            for name in ("full", "method", "smallest")
        }
        if scores["full"] is None or scores["method"] is None:
            raise IncompatibleFileError(f"read {path}", "no scores", "those of full attention and of the method")
        found, heads = metadata.pop("found"), metadata.pop("smallest")
        return cls(
            **metadata | tables,
            token_ids=arrays["token_ids"],
            full=scores["full"],
            method=scores["method"],
            smallest=tuple((int(head["layer"]), int(head["head"])) for head in heads) if found else None,
            smallest_score=scores["smallest"],
        )


def causes(waterfall: pd.DataFrame, stages: tuple[str, ...]) -> list[tuple[str, float]]:
    """`Diagnosis.causes`, from its waterfall and the method's stages."""
    rows = waterfall["stage"].tolist()[::-1]
    totals = waterfall["logprob"].tolist()[::-1]
    keeps_all = stages != ("kept",)
    named = {FULL: "the budget", STORAGE: "fewer bits", **VERDICTS} | ({"kept": "the rest"} if keeps_all else {})
    return [(named[stage], after - before) for stage, before, after in zip(rows, totals, totals[1:], strict=False)]


def evidence_recall(losses: pd.DataFrame, *, weighted: bool = False) -> float:
    """`Diagnosis.evidence_recall`, from its losses."""
    wanted = losses[losses["stage"] != "not wanted"]
    weights = wanted["exact_weight"].to_numpy(float) if weighted else np.ones(len(wanted))
    return float(weights[wanted["stage"] == "attended"].sum() / weights.sum()) if len(wanted) else float("nan")


def _check_heads(operation: str, table: pd.DataFrame, geometry: Geometry) -> None:
    """Raise IncompatibleFileError for rows of layers or KV heads that the model does not have."""
    for name, count in (("layer", geometry.n_layers), ("head", geometry.n_kv_heads)):
        if not table[name].between(ALL, count - 1).all():
            raise IncompatibleFileError(operation, f"{name} {table[name].max()}", f"{ALL} to {count - 1}")


def _score(arrays: Mapping[str, NDArray[Any]], name: str, tokens: list[str], path: object) -> Score:
    logprobs, likeliest = take(arrays, f"score.{name}", path), take(arrays, f"likeliest.{name}", path)
    if logprobs.shape != (len(tokens),) or likeliest.shape != logprobs.shape:
        raise IncompatibleFileError(f"read {path}: score.{name}", f"{list(logprobs.shape)}", f"[{len(tokens)}]")
    return Score(logprobs.astype(np.float64), tokens, likeliest.astype(bool))
