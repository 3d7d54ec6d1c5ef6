"""The proof of a diagnosis: which heads and stages bring an answer back when they are restored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ..cache.attended import Attended
from ..cache.frozen import Change
from ..methods.base import Method
from ..trace import diagnosis
from ..trace.edits import Edit, exact
from ..trace.outcomes import EVERYTHING
from ..trace.score import Score
from ..trace.tables import to_table
from .lost_tokens import UNTRIMMED
from .teacher_forcing import ForcedAnswer

if TYPE_CHECKING:
    import pandas as pd

Head = tuple[int, int]  # layer and KV head
BY_STAGE = 8  # heads of which each stage is restored alone: those that bring back most


class Proof:
    """Restores heads of a method's run, and scores the answer again.

    `score` is that of the run and `attended` what its steps attended to, by layer; `choices(stage)` are the tokens that
    they attend to if this stage is exact, by layer. A method that stores tokens in fewer bits reads them so in all
    heads, restored or not.
    """

    def __init__(
        self,
        forced: ForcedAnswer,
        method: Method,
        score: Score,
        attended: Mapping[int, Attended],
        choices: Callable[[str], dict[int, Tensor]],
    ) -> None:
        self._forced, self._method, self._score, self._attended = forced, method, score, attended
        self._choices = {stage: choices(stage) for stage in (*method.stages, UNTRIMMED)}
        self._stored = forced.stored_cache(method)
        heads = range(forced.lm.geometry.n_kv_heads)
        self.heads: list[Head] = [(layer, head) for layer in sorted(attended) for head in heads]
        self._frozen = self._scored()  # as `score`, up to rounding
        self._everywhere: dict[str, Score] = {}  # with a stage exact in all heads
        self._of_head: dict[Head, float] = {}

    def pinned(self, positions: Sequence[int]) -> list[float]:
        """The log-probability that comes back if every head attends to one of these tokens in addition, for each."""
        changes = [Change(shown=[position]) for position in positions]
        scores = self._forced.frozen_scores(self._attended, changes, self._stored)
        return [score.total - self._frozen.total for score in scores]

    def restored(self) -> pd.DataFrame:
        """The table `Diagnosis.restored`: all heads at once, each head, and each stage of the most effective heads."""
        everywhere = (diagnosis.ALL, diagnosis.ALL)
        stages = self._method.stages
        rows = [self._row(everywhere, stage, self._all_heads(stage)) for stage in (EVERYTHING, *stages)]
        whole = dict(zip(self.heads, self._rows([(head, EVERYTHING) for head in self.heads]), strict=True))
        self._of_head = {head: row["logprob"] for head, row in whole.items()}
        rows += whole.values()
        if len(stages) > 1:
            picked = self._by_effect()[:BY_STAGE]
            found = iter(self._rows([(head, stage) for head in picked for stage in stages if stage != "kept"]))
            for head in picked:  # "kept" exact is the whole head restored
                rows += [whole[head] | {"stage": stage} if stage == "kept" else next(found) for stage in stages]
        return to_table(diagnosis.RESTORED, rows)

    def waterfall(self, full: Score) -> pd.DataFrame:
        """The table `Diagnosis.waterfall`: from the method to full attention, with one more stage exact in each row.

        If tokens are stored in fewer bits, reading them exactly comes after all stages.
        """
        rows = [{"stage": diagnosis.METHOD, "logprob": self._frozen.total}]
        for stage in reversed(self._method.stages):
            exact_stages = UNTRIMMED if stage == "ranking" and "trimming" in self._method.stages else stage
            rows.append({"stage": stage, "logprob": self._all_heads(exact_stages).total})
        if self._stored is not None:
            exactly = self._forced.frozen_score(self._attended, self._change(self.heads, EVERYTHING))
            rows.append({"stage": diagnosis.STORAGE, "logprob": exactly.total})
        return to_table(diagnosis.WATERFALL, [*rows, {"stage": diagnosis.FULL, "logprob": full.total}])

    def smallest(self) -> tuple[tuple[Head, ...] | None, Score | None]:
        """The smallest set of heads found that brings the answer back in a real decode, and its Score there.

        Heads are taken in the order of what each brings back alone: by bisection as many as are needed, then without
        those that are not needed.
        """
        if self._score.answered:
            return (), self._score
        order = self._by_effect()
        count = self._least_count(order)
        while not (score := self.decoded(order[:count])).answered:
            if count == len(order):
                return None, None
            count = min(2 * count, len(order))
        thinned = self._thinned(order[:count])
        if len(thinned) < count and (of_thinned := self.decoded(thinned)).answered:
            return tuple(sorted(thinned)), of_thinned
        return tuple(sorted(order[:count])), score

    def control(self, count: int, seeds: int) -> pd.DataFrame:
        """The table `Diagnosis.control`: random sets of `count` heads, each decoded with these heads restored."""
        rows = []
        for seed in range(seeds if count else 0):
            picked = np.random.default_rng(seed).choice(len(self.heads), count, replace=False)
            score = self.decoded([self.heads[number] for number in picked])
            gained = {"seed": seed, "logprob": score.total - self._score.total, "answered": score.answered}
            for layer, head in sorted(self.heads[number] for number in picked):
                rows.append({**gained, "layer": layer, "head": head})
        return to_table(diagnosis.CONTROL, rows)

    def decoded(self, heads: Sequence[Head]) -> Score:
        """The answer's Score in a real decode with these heads restored."""
        edit = Edit()
        for layer in sorted({layer for layer, _ in heads}):
            edit |= exact(layers=[layer], heads=[head for other, head in heads if other == layer])
        return self._forced.score(self._method, edit)

    def _all_heads(self, stage: str) -> Score:
        """The Score with this stage exact in all heads; "kept" is the oracle, as is "all"."""
        stage = EVERYTHING if stage == "kept" else stage
        if stage not in self._everywhere:
            self._everywhere[stage] = self._scored(self.heads, stage)
        return self._everywhere[stage]

    def _scored(self, restored: Collection[Head] = (), stage: str = EVERYTHING) -> Score:
        return self._forced.frozen_score(self._attended, self._change(restored, stage), self._stored)

    def _change(self, restored: Collection[Head], stage: str) -> Change:
        """The heads restored, or with one stage exact."""
        return Change(restored, choices=None if stage == EVERYTHING else self._choices[stage])

    def _rows(self, tried: Sequence[tuple[Head, str]]) -> list[dict[str, Any]]:
        """The table's rows for single heads and stages."""
        changes = [self._change([head], stage) for head, stage in tried]
        scores = self._forced.frozen_scores(self._attended, changes, self._stored)
        return [self._row(head, stage, score) for (head, stage), score in zip(tried, scores, strict=True)]

    def _row(self, head: Head, stage: str, score: Score) -> dict[str, Any]:
        gained = score.total - self._frozen.total
        return {"layer": head[0], "head": head[1], "stage": stage, "logprob": gained, "answered": score.answered}

    def _by_effect(self) -> list[Head]:
        return sorted(self.heads, key=lambda head: -self._of_head[head])

    def _least_count(self, order: Sequence[Head]) -> int:
        """The smallest number of first heads that bring the answer back, by bisection; all if that many don't."""
        low, high = 0, len(order)  # high brings it back, as far as is known
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._scored(order[:middle]).answered else (middle, high)
        return high

    def _thinned(self, heads: Sequence[Head]) -> list[Head]:
        """The heads without those that the answer comes back without, the least effective ones tried first."""
        left = list(heads)
        for head in reversed(heads):
            without = [other for other in left if other != head]
            if without and self._scored(without).answered:
                left = without
        return left
