"""replay(): a method on a stored trace, without a model."""

from __future__ import annotations

from typing import Any

import torch
from tqdm.auto import tqdm

from .errors import InvalidInputError
from .layer import LayerCache, layer_store
from .ledger import Ledger, ledger_of
from .methods import resolve
from .methods.base import LayerContext, Method
from .offload.kvstore import KVStore, resolve_store
from .recorder import Recorder
from .trace import Recording, Trace


@torch.no_grad()
def replay(
    trace: Trace,
    method: str | Method,
    queries: int = 64,
    ledgers: dict[int, Ledger] | None = None,
    store: str | KVStore = "device",
    **values: Any,
) -> Recording:
    """A recording without a model: the last `queries` positions of a trace play the decode steps.

    The tokens before them are the prompt; each step feeds the next token of the text. `values` as for `generate`. A
    dict given as `ledgers` receives the ledger of each layer that selects, after its last step. `store` as for
    `SelectiveCache`: "host" moves what a step attends for real.
    Raises InvalidInputError where `queries` leaves no prompt.
    """
    chosen, keeps = resolve(method, **values), resolve_store(store)
    length = len(trace)
    if not 1 <= queries < length:
        raise InvalidInputError("replay: queries", queries, f"1 to {length - 1} of the trace's {length} tokens")
    prompt, geometry = length - queries, trace.geometry
    recorder = Recorder()
    for index in tqdm(trace.layers, desc=f"replay {chosen.name}", leave=False, disable=None):
        if chosen.is_dense(index):
            continue
        context = LayerContext(
            index,
            geometry.n_layers,
            geometry.n_heads,
            geometry.n_kv_heads,
            geometry.head_dim,
            geometry.head_dim**-0.5 if trace.scale is None else trace.scale,
            trace.softcap,
            details=True,
        )
        layer = LayerCache(context, chosen, layer_store(keeps, context, chosen))
        q, k, v = (
            torch.from_numpy(array[index].astype("float32"))[None]
            for array in (trace.queries, trace.keys, trace.values)
        )
        layer.store.reserve(k, v, length)
        layer.store.append(k[:, :, :prompt], v[:, :, :prompt])
        layer.keep_queries(q[:, :, :prompt])
        layer.build()
        recorder.watch([layer])
        for step in range(prompt, length):
            layer.store.append(k[:, :, step : step + 1], v[:, :, step : step + 1])
            layer.decode(q[:, :, step])
        if ledgers is not None:
            ledgers[index] = ledger_of([layer], ())
    return recorder.recording(
        chosen,
        model=trace.model,
        geometry=geometry,
        tokens=trace.tokens,
        token_ids=trace.token_ids.tolist(),
        next_tokens=[*trace.tokens[prompt + 1 :], ""],
        prompt_length=prompt,
        question_length=queries,
    )
