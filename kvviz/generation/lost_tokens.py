"""Where each decode step lost given tokens: what a diagnosis notes while a method decodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..cache.attended import Attended
from ..cache.layer_cache import LayerCache
from ..cache.recorder import merged_share_of
from ..methods.attention import attention_weights, centroid_weights
from ..methods.selection import Selection, reduce_group
from ..methods.stages import StepStages, step_stages

UNTRIMMED = "ranking and trimming"  # both stages exact


class LossObserver:
    """Observes the layers of a run: the selections, the rows of `Diagnosis.losses` for the given positions, and the
    tokens that each step would attend to if one stage were exact.

    `choices` are these tokens, by stage and layer, one bool [R, N] per step.
    """

    def __init__(self, positions: Sequence[int]) -> None:
        self.positions = list(positions)
        self.selections: dict[int, list[Selection]] = defaultdict(list)
        self.rows: list[dict[str, Any]] = []
        self._choices: dict[str, dict[int, list[Tensor]]] = defaultdict(lambda: defaultdict(list))

    def __call__(
        self, layer: LayerCache, queries: Tensor, selection: Selection, output: Tensor, select_s: float
    ) -> None:
        """Note one decode step of one layer, of one sequence."""
        context, index = layer.context, layer.context.index
        step = len(self.selections[index])
        self.selections[index].append(selection)
        weights = attention_weights(queries, layer.history.keys, context.scale, context.softcap)  # [1, Q, N]
        (state,) = layer.states
        (stages,) = step_stages(layer.method, state, queries, layer.history.keys, selection, weights)
        for stage in layer.method.stages:
            if stage != "kept":
                self._choices[stage][index].append(stages.exact_at(stage))
        if "trimming" in layer.method.stages:
            self._choices[UNTRIMMED][index].append(stages.exact_at("ranking", trim=False))
        self._note(step, layer, stages, given_weights(layer, queries, selection, weights))

    def choices(self, stage: str) -> dict[int, Tensor]:
        """The tokens of all steps by layer, bool [R, T, N], if this stage alone is exact."""
        found = {}
        for layer, of_steps in self._choices[stage].items():
            total = of_steps[-1].shape[-1]
            found[layer] = torch.stack([pad(mask, (0, total - mask.shape[-1])) for mask in of_steps], dim=1)
        return found

    def _note(self, step: int, layer: LayerCache, stages: StepStages, given: Tensor) -> None:
        places = self.positions
        rows, heads = len(stages.kept), layer.context.n_kv_heads
        outcome = stages.outcome(places)
        score, rank, cut = stages.ranks(places)
        group, group_rank, group_cut = stages.group_ranks(places)
        columns = {
            "stage": outcome, "exact_weight": stages.weights[:, places].cpu().numpy(),
            "weight": given[:, places].cpu().numpy(), "score": score, "rank": rank, "cut": cut,
            "exact_rank": stages.exact_ranks(places), "group": group, "group_rank": group_rank, "group_cut": group_cut,
        }  # fmt: skip
        for row in range(rows):
            where = {"step": step, "layer": layer.context.index, "head": row // (rows // heads)}
            where["query_head"] = row if rows > heads else -1
            for at, position in enumerate(places):
                numbers = {name: values[row, at] for name, values in columns.items()}
                self.rows.append({**where, "position": position, **numbers})


def given_weights(layer: LayerCache, queries: Tensor, selection: Selection, weights: Tensor) -> Tensor:
    """The weight that the step gave to each token, [R, N], from the exact `weights` [1, Q, N].

    If tokens are stored in fewer bits, it is that of the stored keys.

    A merged token has its part of its centroid's weight, at most its exact weight (see `metrics.merged_share`).
    """
    context, rows, length = layer.context, selection.indices.shape[1], weights.shape[-1]
    attended = Attended.of([selection], context.n_heads, length - 1)
    if not layer.store.exact:
        weights = attention_weights(queries, layer.store.keys, context.scale, context.softcap)
    given = (weights[0].log() + attended.mask[:, 0]).softmax(-1).nan_to_num()  # [Q, N]
    if selection.value_correction is not None:
        given = given * (1 - selection.value_correction.share[0][:, None])
    if selection.merged is None:
        return reduce_group(given[None], rows, "mean")[0]
    fetched = layer.store.fetch(selection.indices, padded=selection.padded)
    centroids = centroid_weights(queries, *fetched, selection, context.scale, context.softcap)
    given = given * (1 - centroids[0].sum(-1, keepdim=True))
    by_row = reduce_group(given[None], rows, "mean")[0]
    share = merged_share_of(layer, queries, selection, weights)
    if share is None:
        return by_row
    exact = reduce_group(weights, rows, "mean")[0]
    of_members = torch.from_numpy(share.astype("float32")).to(exact.device)
    by_row[:, : of_members.shape[-1]] += of_members * exact[:, : of_members.shape[-1]]
    return by_row
