"""Where methods lose what answers need, over many samples, and which number predicts the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm.auto import tqdm

from ..cache.attended import attended_by
from ..cache.layer_cache import LayerCache
from ..cache.recorder import Recorder
from ..errors import InvalidInputError
from ..generation.diagnosing import given_answer
from ..generation.evidence import LEAST_COST, given_evidence
from ..generation.lost_tokens import LossObserver
from ..generation.proof import Proof
from ..generation.teacher_forcing import ForcedAnswer
from ..methods import resolve
from ..methods.base import Method
from ..methods.selection import Selection
from ..trace.diagnosis import LOSSES, causes, evidence_recall
from ..trace.outcomes import OUTCOMES
from ..trace.score import Score
from ..trace.tables import to_table
from ..trace.text_positions import token_positions

if TYPE_CHECKING:
    import pandas as pd

    from ..models import LanguageModel
    from ..tasks.needle import NeedleSample

PREDICTORS = (
    "recall", "attention_mass", "output_error", "evidence_recall", "weighted_evidence_recall", "logprob",
)  # fmt: skip


@torch.no_grad()
def misses(
    lm: LanguageModel, samples: Sequence[NeedleSample], methods: Mapping[str, str | Method], *, progress: bool = True
) -> pd.DataFrame:
    """Where each method lost the tokens that each sample's answer needs: one row per sample and method.

    The evidence are the needle's tokens that cost full attention log-probability when they are dropped. Samples whose
    answer full attention does not give are left out: there is nothing to explain; `attrs["left_out"]` has their seeds.

    Columns: seed, method (the label), full and logprob (of the answer, with full attention and with the method),
    answered (whether it is the likeliest); recall, attention_mass and output_error (means over steps, layers and heads,
    as of `Recording.summary`); evidence_recall (share of the evidence tokens wanted by a head's exact attention that it
    attended to) and weighted_evidence_recall (each weighted by its exact weight, so that heads that retrieve count
    more); the number of evidence tokens × steps × layers × heads of each outcome; and the nats that each cause took
    (`Diagnosis.causes`), 0 for those that a method does not have. The prompt is prefilled once per sample.
    """
    resolved = {label: resolve(method) for label, method in methods.items()}
    if not samples or not resolved:
        raise InvalidInputError("misses", f"{len(samples)} samples, {len(resolved)} methods", "at least one of each")
    rows, left_out = [], []
    for sample in tqdm(samples, desc="misses", disable=None if progress else True):
        found = given_answer(
            ForcedAnswer(lm, sample.context, sample.answer, sample.question, details=True), sample.answer
        )
        if found is None:
            left_out.append(sample.seed)
            continue
        forced, full = found
        places = token_positions("misses: needle", sample.needle, lm.tokens(forced.ids))
        costs = given_evidence(forced, places)
        needed = costs.loc[costs["logprob"] >= LEAST_COST, "position"].tolist()
        for label, method in resolved.items():
            numbers = _numbers(forced, method, needed, full)
            rows.append({"seed": sample.seed, "method": label, "full": full.total, **numbers})
    import pandas as pd

    table = pd.DataFrame(rows)
    every = [column for column in table.columns if column.startswith("nats: ")]
    table[every] = table[every].fillna(0.0)
    table.attrs["left_out"] = left_out
    return table


def _numbers(forced: ForcedAnswer, method: Method, needed: Sequence[int], full: Score) -> dict[str, Any]:
    losses, recorder = LossObserver(needed), Recorder()

    def observe(layer: LayerCache, queries: torch.Tensor, selection: Selection, output: torch.Tensor, s: float) -> None:
        losses(layer, queries, selection, output, s)
        recorder(layer, queries, selection, output, s)

    score = forced.score(method, observer=observe)
    prompt = forced.exact_cache()[0]
    proof = Proof(forced, method, score, attended_by(losses.selections, prompt), losses.choices)
    chain = proof.waterfall(full)
    fed, lm = forced.fed, forced.lm
    recording = recorder.recording(
        method, model=lm.name, geometry=lm.geometry, tokens=lm.tokens([*forced.ids[0].tolist(), *fed[:-1]]),
        token_ids=[*forced.ids[0].tolist(), *fed[:-1]], next_tokens=lm.tokens(fed[1:]),
        prompt_length=forced.ids.shape[1], ledgers={},
    )  # fmt: skip
    summary = recording.summary()
    table = to_table(LOSSES, losses.rows)
    return {
        "logprob": score.total, "answered": score.answered,
        **{name: summary[name] for name in ("recall", "attention_mass", "output_error", "attended_tokens")},
        "evidence_recall": evidence_recall(table),
        "weighted_evidence_recall": evidence_recall(table, weighted=True),
        **{outcome: int((table["stage"] == outcome).sum()) for outcome in OUTCOMES},
        **{f"nats: {name}": nats for name, nats in causes(chain, method.stages)},
    }  # fmt: skip


def predictors(table: pd.DataFrame, *, resamples: int = 2000, seed: int = 0, confidence: float = 0.95) -> pd.DataFrame:
    """How well each number of `misses` predicts whether the answer is given: Spearman's rank correlation.

    Columns: number, correlation, low, high. Over all methods and samples; the interval is from resamples of whole
    samples, since the rows of one sample are not independent. `output_error` counts the other way round: a negative
    correlation means that less error goes with more answers.
    """
    of_seed = table["seed"].to_numpy()
    seeds = np.unique(of_seed)
    rng = np.random.default_rng(seed)
    rows = []
    for name in PREDICTORS:
        values, given = table[name].to_numpy(float), table["answered"].to_numpy(float)
        drawn = [
            spearman(values[picked], given[picked])
            for picked in (
                np.concatenate([np.flatnonzero(of_seed == number) for number in rng.choice(seeds, len(seeds))])
                for _ in range(resamples)
            )
        ]
        known = [value for value in drawn if not np.isnan(value)] or [np.nan]  # none if a number never varies
        low, high = np.quantile(known, [(1 - confidence) / 2, (1 + confidence) / 2])
        rows.append({"number": name, "correlation": spearman(values, given), "low": low, "high": high})
    import pandas as pd

    return pd.DataFrame(rows)


def spearman(one: NDArray[Any], two: NDArray[Any]) -> float:
    """Spearman's rank correlation of two series, ties at their mean rank; NaN if one of them is constant."""
    import pandas as pd

    first, second = (pd.Series(values).rank().to_numpy(float) for values in (one, two))
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])
