"""The tokens that a step attends to if one stage of the method's choice is exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..methods.attention import attention_weights
from ..methods.base import LayerContext
from ..methods.selection import Selection
from ..methods.stages import step_stages
from ..offload.layer_store import LayerStore
from .rows import Run


def exact_at(
    stage: str,
    runs: Sequence[Run],
    queries: Tensor,
    selection: Selection,
    context: LayerContext,
    history: LayerStore,
) -> Tensor:
    """The tokens of each row, bool [B, R, N], with this stage exact; `runs` as of `LayerCache.runs`."""
    chosen = []
    for rows, start, state, method in runs:
        asked, keys = queries[rows], history.keys[rows, :, start:]
        weights = attention_weights(asked, keys, context.scale, context.softcap)
        found = step_stages(method, state, asked, keys, _unpadded(selection, rows, start), weights)
        chosen += [pad(stages.exact_at(stage), (start, 0)) for stages in found]
    return torch.stack(chosen)


def _unpadded(selection: Selection, rows: slice, start: int) -> Selection:
    """These rows of a selection, with positions that count from the first token after the left padding."""
    indices = selection.indices[rows]
    merged = selection.merged
    if merged is not None:
        merged = replace(merged, degree=merged.degree[rows])
    scores = None if selection.scores is None else selection.scores[rows]
    return Selection(torch.where(indices < 0, indices, indices - start), scores=scores, merged=merged)
