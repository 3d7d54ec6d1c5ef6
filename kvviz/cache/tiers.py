"""The choice of a layer's store: on which tiers its keys and values are kept, depending on its method."""

from __future__ import annotations

from ..errors import InvalidInputError
from ..methods.base import LayerContext, Method
from ..methods.capabilities import Quantising
from ..offload.kvstore import KVStore
from ..offload.layer_store import LayerStore
from ..offload.quantised_store import QuantisedStore

DEVICE = KVStore("device")


def make_store(store: KVStore, context: LayerContext, method: Method) -> LayerStore:
    """An empty store for a layer with this method.

    Raises InvalidInputError if a lower tier is useless: for a method that drops tokens, which keeps no more than its
    budget, for dense attention, which would fetch all tokens at every step, and for one that stores tokens in fewer
    bits, which only the device does.
    """
    if isinstance(method, Quantising):
        if store.tier != "device":
            got = f"{method.name}, which stores keys and values in fewer bits"
            raise InvalidInputError(f"store={store.tier!r}", got, 'store="device": only the device keeps them packed')
        return QuantisedStore(*method.codecs())
    attends_all = method.is_dense(context.n_layers - 1)
    if store.tier != "device" and (method.drops_tokens or attends_all):
        why = "attends to all tokens at every step" if attends_all else "keeps no more than its budget"
        wanted = 'a method that retrieves, or store="device"'
        raise InvalidInputError(f"store={store.tier!r}", f"{method.name}, which {why}", wanted)
    per_kv_head = context.selection_heads(method.group) // context.n_kv_heads

    def budget(prompt_length: int) -> int:
        return method.budget_tokens(prompt_length) * per_kv_head

    return store.layer(budget, stays=method.is_dense(context.index), cache=method.device_cache)
