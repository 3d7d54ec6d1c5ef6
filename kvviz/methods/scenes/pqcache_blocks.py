"""The blocks of PQCache's scene: which of the chosen tokens the GPU's block cache holds, and which blocks it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from ...offload import BlockCache, KVStore
from ...offload.block_cache import Policy
from ...offload.layer_store import LayerStore
from ...trace.scene import Bars, Frame, Row, Rows, refer
from ..pqcache import PQCache
from .moment import Moment
from .selected import MOST_BARS

Blocks = NDArray[np.int64]


def block_frames(method: PQCache, moment: Moment) -> Iterator[Frame]:
    """The frames of the fetch, with a host store that has played the steps before this one."""
    cache = method.device_cache
    start, end = method.sinks, method.recent_start(moment.state)
    chosen = moment.attended[(moment.attended >= start) & (moment.attended < end)]
    if not isinstance(cache, BlockCache) or not len(chosen):
        return
    store = _played(method, moment)
    fetched = _missing(store, chosen)
    size = cache.block_size
    held = _held(store, size, end)
    blocks = np.arange(-(-end // size))
    counts = np.bincount(chosen // size, minlength=len(blocks))
    shown = np.sort(np.argsort(-counts, kind="stable")[:MOST_BARS])
    bars = Bars(
        title=f"chosen tokens per block of {size}", kind="block", numbers=shown, values=counts[shown],
        labels=[f"block {number}" for number in shown],
    )  # fmt: skip
    slots = cache.slots(moment.prompt_length)
    yield Frame(
        chapter="blocks", panels=[bars],
        text=f"Keys and values are kept in host memory. In blocks of {size} tokens, the {len(chosen):,} chosen ones "
        f"lie in {int((counts > 0).sum())} of {len(blocks)} blocks.",
        result=f"The GPU has room for {slots} whole block{'s' if slots > 1 else ''} of this head.",
    )  # fmt: skip
    inside, absent = int(counts[held].sum()), int(fetched.sum())
    newest = len(chosen) - absent - inside
    left = f"Earlier steps have left {len(held)} block{'s' if len(held) > 1 else ''} on the GPU: {inside:,} of the "
    more = f"{newest:,} more {'are' if newest > 1 else 'is'} still there, having left the recent window only lately. "
    lately = more if newest else ""
    yield Frame(
        chapter="blocks", panels=[_marked(bars, held), _places(shown, held)],
        text=f"{left}chosen tokens are there." if len(held) else "No block is on the GPU yet.",
        result=f"{lately}The other {absent:,} are fetched from the host, one by one." if absent
        else f"{lately}No token has to be fetched from the host.",
    )  # fmt: skip
    store.fetch(moment.selection.indices)
    store.offload(method.local_window(moment.state))
    store.wait()
    kept = _held(store, size, end)
    yield Frame(
        chapter="blocks", panels=[_marked(bars, kept), _places(shown, kept)],
        text="After the step, the GPU keeps the blocks with the most chosen tokens. The newest block waits until it is "
        "whole.",
        result=_changes(np.setdiff1d(kept, held), np.setdiff1d(held, kept), cache.policy),
    )  # fmt: skip


def _played(method: PQCache, moment: Moment) -> LayerStore:
    """A host store with the method's device cache, after the steps before this one, and with this step's token."""
    rows = moment.state.layer.selection_heads(method.group)
    store = KVStore("host").layer(lambda prompt: method.budget_tokens(prompt) * rows, cache=method.device_cache)
    keys, values, prompt = moment.keys, moment.values, moment.prompt_length
    store.append(keys[:, :, :prompt], values[:, :, :prompt])
    window = method.local_window(moment.state)
    store.offload(window, torch.arange(method.sinks)[None])
    for step, selection in enumerate([*moment.earlier, None], start=prompt):
        token = slice(step, step + 1)
        store.append(keys[:, :, token], values[:, :, token])
        if selection is not None:
            store.fetch(selection.indices)
            store.offload(window)
    store.wait()
    return store


def _missing(store: LayerStore, positions: Blocks) -> NDArray[np.bool_]:
    """Whether each token would be fetched from the host."""
    missing = store.missing(torch.from_numpy(positions)[None, None])
    assert missing is not None, "the prompt is offloaded"
    flags: NDArray[np.bool_] = missing[0, 0].numpy()
    return flags


def _held(store: LayerStore, size: int, end: int) -> Blocks:
    """The blocks of offloaded tokens of which the device holds all."""
    whole = end // size
    present = ~_missing(store, np.arange(whole * size)).reshape(whole, size)
    return np.flatnonzero(present.all(1))


def _marked(bars: Bars, held: Blocks) -> Bars:
    """The bars, with those of blocks that the device does not hold drawn faint."""
    return replace(bars, strength=np.where(np.isin(bars.numbers, held), 1.0, 0.35))


def _places(blocks: Blocks, held: Blocks) -> Rows:
    """The blocks as chips, in the row of the tier where they are."""
    names = (("on the GPU", np.intersect1d(blocks, held)), ("host only", np.setdiff1d(blocks, held)))
    rows = [
        Row(name=name, kind="block", numbers=numbers, labels=[str(number) for number in numbers])
        for name, numbers in names
    ]  # fmt: skip
    return Rows(title="blocks", rows=rows)


def _changes(joined: Blocks, left: Blocks, policy: Policy) -> str:
    if not len(joined):
        return "This time, no block changes its place."

    def told(numbers: Blocks) -> str:
        named = ", ".join(refer(str(number), f"block:{number}") for number in numbers[:2])
        return f"{named} and {len(numbers) - 2} more" if len(numbers) > 2 else named

    rule = "least recently used" if policy == "lru" else "least frequently used"
    leaves = f"; the {rule} leave{'s' if len(left) == 1 else ''}: {told(left)}" if len(left) else ""
    return f"New blocks: {told(joined)}{leaves}."
