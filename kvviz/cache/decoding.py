"""Decode attention over a selection: tokens on the device, tokens on the host, and merged tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from kvviz_kernels import gather_attention
from torch import Tensor

from ..clustering.merged import Merged
from ..methods.attention import merge_attention
from ..methods.selection import Selection, to_selection_heads
from ..offload.layer_store import LayerStore
from ..trace.timeline import span


def attend_selection(
    queries: Tensor, store: LayerStore, selection: Selection, scale: float, softcap: float | None = None
) -> Tensor:
    """Attention output [B, Q, D] of queries [B, Q, D] over a selection, in the dtype of the queries.

    If the host keeps all tokens of the selection's host part, it attends to them while the device attends to the
    others; log-sum-exp merges the two. Source: CTkvr (arXiv 2512.15550), section 3.2, algorithm 2.
    """
    host_attention = _host_attention(queries, store, selection)  # first: work on the device would delay its copy
    outputs, lses = [], []
    for part in _device_parts(selection, store, host_attention is not None):
        output, lse = gather_attention(
            queries,
            *store.fetch(selection.indices[..., part], padded=selection.padded),
            scale=scale,
            bias=None if selection.bias is None else selection.bias[..., part],
            softcap=softcap,
            padded=selection.padded,
        )
        outputs.append(output)
        lses.append(lse)
    if host_attention is not None:
        with span(store.timeline, "host", "attention"):
            output, lse = host_attention(scale=scale, softcap=softcap)
        outputs.append(store.to_device(output, queries.device))
        lses.append(store.to_device(lse, queries.device))
    if selection.merged is not None:
        output, lse = merged_attention(queries, selection.merged, scale, softcap)
        outputs.append(output)
        lses.append(lse)
    output = outputs[0] if len(outputs) == 1 else merge_attention(outputs, lses)[0]
    correction = selection.value_correction
    if correction is None:
        return output
    share, values = correction.share[..., None], to_selection_heads(correction.values, output.shape[1])
    return (output * (1 - share) + values * share).to(output.dtype)


def _host_attention(
    queries: Tensor, store: LayerStore, selection: Selection
) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The host's attention over the selection's host part: output [B, Q, D], log-sum-exp [B, Q] for scale and softcap.

    Indices, queries and bias are moved to its memory. None if there is no host part or a lower tier lacks some of it.
    """
    if selection.host_part is None or not store.offloads or selection.host_part[0] == selection.host_part[1]:
        return None
    slots = slice(*selection.host_part)
    fetched = store.on_host(selection.indices[..., slots])
    if fetched is None:
        return None
    bias = None if selection.bias is None else store.to_host(selection.bias[..., slots])
    return partial(gather_attention, store.to_host(queries), *fetched, bias=bias, padded=selection.padded)


def merged_attention(
    queries: Tensor, merged: Merged, scale: float, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention over merged tokens, softmax(q·k̂·scale + log degree)·v̂: output [B, Q, D], log-sum-exp [B, Q].

    Source: CentroidKV (OpenReview T3EeupQhGj), eq. 3. A centroid of degree 0 gets no weight.
    """
    count = merged.keys.shape[2]
    indices = torch.arange(count, device=queries.device).expand(*merged.degree.shape)  # [B, H or Q, C]
    bias = merged.degree.float().log()
    return gather_attention(
        queries, merged.keys, merged.values, indices, scale=scale, bias=bias, softcap=softcap, padded=False
    )


def _device_parts(selection: Selection, store: LayerStore, on_host: bool) -> list[slice | Tensor]:
    """The parts of the selection's slots for which the device has room, one after the other.

    The host part comes last; if `on_host`, the host attends to it, and it is left out here. A store that offloads
    nothing attends to all slots at once.
    """
    count = selection.indices.shape[-1]
    if selection.host_part is None or not store.offloads:
        return [*(store.parts(selection.indices) or [slice(0, count)])]
    slots, (start, stop) = torch.arange(count, device=selection.indices.device), selection.host_part
    device_slots = torch.cat([slots[:start], slots[stop:]])
    groups = [device_slots] if on_host else [device_slots, slots[start:stop]]
    return [
        group[part] for group in groups for part in store.parts(selection.indices[..., group]) or [slice(0, len(group))]
    ]
