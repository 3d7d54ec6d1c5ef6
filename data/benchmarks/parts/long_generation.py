"""Long generations: attended tokens, kept bytes, hit rate and time per token by step, over many generated tokens.

All methods decode the same tokens, those of the text, in turns of one block of steps, so that their times compare.
Methods that drop no tokens keep keys and values in host memory. SnapKV's generated tokens come on top of the budget, as
in its paper; the steps of the other methods have a fixed budget, ClusterKV's on top of the tokens that wait for their
cluster.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from .inputs import model, prose
from .markdown import table

PROMPT, STEPS, BLOCK, BUDGET = 1024, 2000, 100, 256
METHODS: dict[str, dict[str, Any]] = {
    "full": {}, "clusterkv": {}, "quest": {}, "pqcache": {}, "ctkvr": {}, "centroidkv": {},
    "snapkv": {"generated": "on_top"}, "streaming_llm": {}, "h2o": {},
}  # fmt: skip


def run() -> dict[str, Any]:
    """Rows by method and block of steps."""
    lm = model()
    ids = lm.encode(prose())[:, : PROMPT + STEPS]
    return {
        "model": lm.name, "dtype": str(lm.model.dtype).removeprefix("torch."), "prompt_tokens": PROMPT, "steps": STEPS,
        "block": BLOCK, "budget": BUDGET, "rows": measure(lm, ids, PROMPT, BLOCK, BUDGET),
    }  # fmt: skip


def measure(lm: Any, ids: Any, prompt: int, block: int, budget: int) -> list[dict[str, Any]]:
    """One row per method and block of steps, after the block.

    `step` counts the generated tokens. `attended`: tokens per KV head in the last step, mean over the layers that
    select. Bytes are of all layers, metadata included; `moved_bytes` are per step. `hit_rate`, over the block, is None
    for methods on the device. `ratio` is the median step's time against that of full attention in the same block.
    """
    import torch

    from kvviz.cache.attachment import attached

    rows: list[dict[str, Any]] = []
    with torch.no_grad(), attached(lm.model):
        caches = {name: filled(lm, name, ids[:, :prompt], budget) for name in METHODS}
        for start in range(prompt, ids.shape[1], block):
            fed = ids[:, start : start + block]
            decoded = {name: _decoded(lm, cache, fed) for name, cache in caches.items()}
            for name, row in decoded.items():
                ratio = row["seconds"] / decoded["full"]["seconds"]
                rows.append({"method": name, "step": start + fed.shape[1] - prompt, **row, "ratio": ratio})
            print(f"{rows[-1]['step']} steps", flush=True)
    return rows


def filled(lm: Any, name: str, prompt: Any, budget: int) -> Any:
    """The prompt in a cache of the method, in host memory if the method selects and drops no tokens."""
    import kvviz
    from kvviz.generation.generating import fill, wait_for_states

    method = kvviz.methods.create(name, **METHODS[name], **({} if name == "full" else {"budget": budget}))
    store = "device" if method.drops_tokens or name == "full" else "host"
    cache = kvviz.SelectiveCache(lm.model, method, store)
    fill(lm, cache, prompt)
    wait_for_states(cache)
    return cache


def _decoded(lm: Any, cache: Any, fed: Any) -> dict[str, Any]:
    """What the steps of one block took, moved and hit, and what is kept after it."""
    before, times = _counters(cache), []
    for token in fed.split(1, dim=1):
        started = time.perf_counter()
        lm.model(token, past_key_values=cache, use_cache=True, logits_to_keep=1)
        times.append(time.perf_counter() - started)
    lookups, misses, moved = (now - then for now, then in zip(_counters(cache), before, strict=True))
    ledger = cache.ledger()
    return {
        "attended": ledger.attended, "hit_rate": 1 - misses / lookups if lookups else None,
        "device_bytes": ledger.kept_bytes["device"] + ledger.metadata_bytes - ledger.host_metadata_bytes,
        "kept_bytes": sum(ledger.kept_bytes.values()) + ledger.metadata_bytes, "moved_bytes": moved / fed.shape[1],
        "seconds": statistics.median(times),
    }  # fmt: skip


def _counters(cache: Any) -> list[int]:
    """Tokens looked up so far, those without a copy on the device, and bytes moved."""
    stores = [layer.store for layer in cache.selective_layers]
    return [sum(getattr(store, name) for store in stores) for name in ("lookups", "misses", "moved_bytes")]


def each(part: dict[str, Any]) -> str:
    """One row per method: the first block against the last."""
    head = ["method", "attended", "hit rate", "on the device, MB", "kept in all, MB", "time, share of full"]
    cells: dict[str, list[dict[str, Any]]] = {}
    for row in part["rows"]:
        cells.setdefault(row["method"], []).append(row)
    rows = []
    for name, blocks in cells.items():
        first, last = blocks[0], blocks[-1]
        attended = [row["attended"] for row in blocks]
        hits = f"{first['hit_rate']:.2f} → {last['hit_rate']:.2f}" if first["hit_rate"] is not None else ""
        sizes = [f"{first[key] / 1e6:.1f} → {last[key] / 1e6:.1f}" for key in ("device_bytes", "kept_bytes")]
        ratios = f"{first['ratio']:.2f} → {last['ratio']:.2f}"
        rows.append([f"`{name}`", f"{min(attended):.0f}–{max(attended):.0f}", hits, *sizes, ratios])
    return "\n\n".join([
        f"{part['model']} in {part['dtype']}, a prompt of {part['prompt_tokens']:,} tokens, budget {part['budget']}, "
        f"{part['steps']:,} tokens decoded, the same for all methods, in turns of {part['block']}.",
        table(head, rows),
        "*Attended*: fewest and most tokens per KV head at the ends of the blocks. Arrows lead from the first block to "
        "the last. Times are medians of a block's steps. `snapkv` counts its generated tokens on top of the budget.",
    ])  # fmt: skip
