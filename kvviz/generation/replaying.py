"""replay(): a method on a trace, without a model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from ..cache.accounting import ledger_of
from ..cache.editing import LayerEdit
from ..cache.layer_cache import LayerCache
from ..cache.recorder import Recorder
from ..cache.tiers import make_store
from ..errors import InvalidInputError
from ..methods import resolve
from ..methods.base import LayerContext, Method
from ..offload.kvstore import KVStore, resolve_store
from ..trace import Ledger, Recording, Trace
from ..trace.edit_parts import Group
from ..trace.edits import Edit


def trace_context(trace: Trace, layer: int) -> LayerContext:
    """The LayerContext of a captured layer, with details."""
    geometry = trace.geometry
    scale = geometry.head_dim**-0.5 if trace.scale is None else trace.scale
    return LayerContext(
        layer, geometry.n_layers, geometry.n_heads, geometry.n_kv_heads, geometry.head_dim, scale, trace.softcap,
        details=True, rotation=trace.rotations.get(layer),
    )  # fmt: skip


def check_finite(operation: str, trace: Trace, layer: int, kv_heads: slice = slice(None)) -> None:
    """Raise InvalidInputError if queries, keys or values of these KV heads of a layer contain NaN or infinity."""
    group = trace.geometry.n_heads // trace.geometry.n_kv_heads
    heads = range(trace.geometry.n_kv_heads)[kv_heads]
    rows = slice(heads.start * group, heads.stop * group)
    for name, selected in (("queries", rows), ("keys", kv_heads), ("values", kv_heads)):
        finite = np.isfinite(getattr(trace, name)[layer][selected])
        if not finite.all():
            first = np.argwhere(~finite)[0].tolist()
            got = f"NaN or infinity in the {name} of layer {layer}, first at {first}"
            raise InvalidInputError(operation, got, "finite numbers; a trace is float16, whose largest is 65,504")


class LayerReplay:
    """One layer of a trace, built for a method, and the decode steps to play on it.

    The tokens before the last `queries` of the trace are the prompt. `cache` is the built layer.
    """

    def __init__(
        self,
        trace: Trace,
        index: int,
        method: Method,
        queries: int,
        store: KVStore | None = None,
        edit: Edit | None = None,
    ) -> None:
        length = len(trace)
        prompt, context = length - queries, trace_context(trace, index)
        kept = None if store is None else make_store(store, context, method)
        cache = LayerCache(context, method, kept, edit=edit)
        unread = 0 if method.needs_queries else prompt  # converting them takes longer than many methods
        q = _tensor(trace.queries[index][:, unread:])
        k, v = _tensor(trace.keys[index]), _tensor(trace.values[index])
        cache.store.reserve(k, v, length)
        cache.store.append(k[:, :, :prompt], v[:, :, :prompt])
        cache.keep_queries(q[:, :, : prompt - unread])
        cache.build()
        self.cache = cache
        self._steps = q[:, :, prompt - unread :], k[:, :, prompt:], v[:, :, prompt:]

    def copy_for(self, method: Method) -> LayerReplay:
        """An independent copy, built for `method`; a method that differs only in its budget needs no new build."""
        copied = copy.copy(self)  # shares the steps' tensors, which are only read
        copied.cache = self.cache.fork(method)
        return copied

    def play(self) -> None:
        """Play all decode steps."""
        queries, keys, values = self._steps
        for step in range(queries.shape[2]):
            token = slice(step, step + 1)
            self.cache.store.append(keys[:, :, token], values[:, :, token])
            self.cache.decode(queries[:, :, step])


@torch.no_grad()
def replay(
    trace: Trace,
    method: str | Method,
    queries: int = 64,
    ledgers: dict[int, Ledger] | None = None,
    store: str | KVStore = "device",
    edit: Edit | None = None,
    **values: Any,
) -> Recording:
    """The Recording of a method on a trace, whose last `queries` positions play the decode steps.

    The tokens before them are the prompt; each step feeds the next token of the text. `edit` and `values` as for
    `generate`, `store` as for `SelectiveCache`: "host" really offloads and fetches tokens. The recording's `ledgers`
    holds the ledger of each layer that selects, after its last step. Layers with a sliding window are left out: no
    method serves them (`exact_layers`). A dict passed as `ledgers` receives them; this is
    deprecated. Raises InvalidInputError if `queries` leaves no prompt.
    """
    chosen, kv_store = resolve(method, **values), resolve_store(store)
    length = len(trace)
    if not 1 <= queries < length:
        raise InvalidInputError("replay: queries", queries, f"1 to {length - 1} of the trace's {length} tokens")
    placed = None if edit is None else edit.on(trace.tokens[: length - queries], trace.geometry)
    if placed is not None and placed.grouped:
        placed = placed.with_groups(partial(_group_tokens, trace, chosen, queries))
    indices = [i for i in trace.full_layers if not chosen.is_dense(i) or LayerEdit.of(placed, chosen, i)]
    progress = tqdm(indices, desc=f"replay {chosen.name}", leave=False, disable=None)
    layers = (LayerReplay(trace, index, chosen, queries, kv_store, placed) for index in progress)
    recording = record(trace, chosen, queries, layers, placed)
    if ledgers is not None:
        message = "replay(ledgers={...}) is deprecated: take them from the recording, replay(...).ledgers[layer]"
        warnings.warn(message, DeprecationWarning, stacklevel=3)  # torch.no_grad() wraps this function
        ledgers.update(recording.ledgers)
    return recording


@torch.no_grad()
def record(
    trace: Trace, method: Method, queries: int, layers: Iterable[LayerReplay], edit: Edit | None = None
) -> Recording:
    """The Recording of the decode steps of these layers, played one layer after the other; `edit` is theirs."""
    recorder = Recorder()
    ledgers: dict[int, Ledger] = {}
    for layer in layers:
        recorder.watch([layer.cache])
        layer.play()
        ledgers[layer.cache.context.index] = ledger_of([layer.cache], ())
    prompt = len(trace) - queries
    return recorder.recording(
        method,
        model=trace.model,
        geometry=trace.geometry,
        tokens=trace.tokens,
        token_ids=trace.token_ids.tolist(),
        next_tokens=[*trace.tokens[prompt + 1 :], ""],
        prompt_length=prompt,
        question_length=queries,
        exact_layers=tuple(index for index in trace.layers if index not in trace.full_layers),
        ledgers=ledgers,
        edit=edit,
    )


def _group_tokens(trace: Trace, method: Method, queries: int, group: Group) -> tuple[int, ...]:
    layer = LayerReplay(trace, trace.check_layer(group.layer), method, queries)
    return layer.cache.group_tokens(group.head, group.number)


def _tensor(array: np.ndarray) -> torch.Tensor:
    """An array [heads, L, D] as a float32 tensor [1, heads, L, D]."""
    return torch.from_numpy(array.astype("float32"))[None]
