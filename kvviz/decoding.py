"""Decode attention over what a selection names: tokens, merged tokens, and parts attended where they are kept."""

from __future__ import annotations

import torch
from kvviz_kernels import gather_attention
from torch import Tensor

from .attention import merge_attention
from .offload.base import LayerStore
from .selection import Blend, Merged, Selection


def attend_selection(
    queries: Tensor, store: LayerStore, selection: Selection, scale: float, softcap: float | None = None
) -> Tensor:
    """Attention output [B, Q, D] of queries [B, Q, D] over what a selection names, in the dtype of the queries."""
    outputs, lses = [], []
    for part in _parts(selection, store):
        indices = selection.indices if part is None else selection.indices[..., part]
        output, lse = gather_attention(
            queries,
            *store.fetch(indices, padded=selection.padded),
            scale=scale,
            bias=selection.bias if part is None or selection.bias is None else selection.bias[..., part],
            softcap=softcap,
            padded=selection.padded,
        )
        outputs.append(output)
        lses.append(lse)
    if selection.merged is not None:
        output, lse = merged_attention(queries, selection.merged, scale, softcap)
        outputs.append(output)
        lses.append(lse)
    output = outputs[0] if len(outputs) == 1 else merge_attention(outputs, lses)[0]
    return output if selection.blend is None else _blended(output, selection.blend)


def merged_attention(
    queries: Tensor, merged: Merged, scale: float, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention over merged tokens, softmax(q·k̂·scale + log degree)·v̂: output [B, Q, D], log-sum-exp [B, Q].

    Source: CentroidKV (OpenReview T3EeupQhGj), eq. 3. A degree of 0 is a pad.
    """
    count = merged.keys.shape[2]
    every = torch.arange(count, device=queries.device).expand(*merged.degree.shape)
    bias = merged.degree.float().log()
    return gather_attention(
        queries, merged.keys, merged.values, every, scale=scale, bias=bias, softcap=softcap, padded=False
    )


def _parts(selection: Selection, store: LayerStore) -> list[slice | Tensor | None]:
    """The slots attended together: all (None), those `apart` and the others, or as many as the device takes at once."""
    if selection.apart is None:
        parts = store.parts(selection.indices)
        return [None] if parts is None else [*parts]
    start, stop = selection.apart
    everyone = torch.arange(selection.indices.shape[-1], device=selection.indices.device)
    return [torch.cat([everyone[:start], everyone[stop:]]), slice(start, stop)]


def _blended(output: Tensor, blend: Blend) -> Tensor:
    share = blend.share[..., None]
    values = blend.values.repeat_interleave(output.shape[1] // blend.values.shape[1], dim=1)
    return (output * (1 - share) + values * share).to(output.dtype)
