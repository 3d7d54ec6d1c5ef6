"""Which tiers keep a layer's keys and values, by what its method attends."""

from __future__ import annotations

from ..errors import InvalidInputError
from ..methods.base import LayerContext, Method
from ..offload.kvstore import KVStore
from ..offload.layer_store import LayerStore


def make_store(kept: KVStore, context: LayerContext, method: Method) -> LayerStore:
    """An empty store for a layer that `method` serves.

    Raises InvalidInputError where a lower tier gains nothing: a method that drops tokens keeps no more than its budget,
    and one that attends everything would fetch it all at every step.
    """
    attends_all = method.is_dense(context.n_layers - 1)
    if kept.tier != "device" and (method.drops_tokens or attends_all):
        why = "attends everything at every step" if attends_all else "keeps no more than its budget"
        wanted = 'a method that retrieves, or store="device"'
        raise InvalidInputError(f"store={kept.tier!r}", f"{method.name}, which {why}", wanted)
    heads_of_a_kv_head = context.selection_heads(method.group) // context.n_kv_heads

    def budget(prompt_length: int) -> int:
        return method.budget_tokens(prompt_length) * heads_of_a_kv_head

    return kept.layer(budget, stays=method.is_dense(context.index), cache=method.device_cache)
