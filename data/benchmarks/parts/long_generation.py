"""Long generations: attended tokens, kept bytes, hit rate, loss and time per token by step, over many generated tokens.

All methods decode the same tokens, those of the text, in turns of one block of steps, so that their times compare.
Methods that drop no tokens keep keys and values in host memory. SnapKV's generated tokens come on top of the budget, as
in its paper; the steps of the other methods have a fixed budget, ClusterKV's on top of the tokens that wait for their
cluster. H2O, TOVA, R-KV and TriAttention evict while decoding: what they keep is a part of the budget at every step.
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
    "snapkv": {"generated": "on_top"}, "streaming_llm": {}, "h2o": {}, "tova": {},
    "r_kv": {"buffer": 32}, "triattention": {"buffer": 32},  # the papers' 128 would take half of this budget
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
    for methods on the device. `nats` is the mean loss of the block, −log p of the text's next token. `ratio` is the
    median step's time against that of full attention in the same block.
    """
    import torch

    from kvviz.cache.attachment import attached

    rows: list[dict[str, Any]] = []
    with torch.no_grad(), attached(lm.model):
        caches = {name: filled(lm, name, ids[:, :prompt], budget) for name in METHODS}
        for start in range(prompt, ids.shape[1], block):
            fed, following = ids[:, start : start + block], ids[0, start + 1 : start + block + 1]
            decoded = {name: _decoded(lm, cache, fed, following) for name, cache in caches.items()}
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


def _decoded(lm: Any, cache: Any, fed: Any, following: Any) -> dict[str, Any]:
    """What the steps of one block took, moved, hit and foretold, and what is kept after it.

    `following` [n] are the tokens after those that are fed, one fewer at the end of the text.
    """
    before, times, losses = _counters(cache), [], []
    for step, token in enumerate(fed.split(1, dim=1)):
        started = time.perf_counter()
        logits = lm.model(token, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
        times.append(time.perf_counter() - started)
        if step < len(following):
            losses.append(-float(logits.float().log_softmax(-1)[following[step]]))
    lookups, misses, moved = (now - then for now, then in zip(_counters(cache), before, strict=True))
    ledger = cache.ledger()
    return {
        "attended": ledger.attended, "hit_rate": 1 - misses / lookups if lookups else None,
        "device_bytes": ledger.kept_bytes["device"] + ledger.metadata_bytes - ledger.host_metadata_bytes,
        "kept_bytes": sum(ledger.kept_bytes.values()) + ledger.metadata_bytes, "moved_bytes": moved / fed.shape[1],
        "nats": statistics.fmean(losses), "seconds": statistics.median(times),
    }  # fmt: skip


def _counters(cache: Any) -> list[int]:
    """Tokens looked up so far, those without a copy on the device, and bytes moved."""
    stores = [layer.store for layer in cache.selective_layers]
    return [sum(getattr(store, name) for store in stores) for name in ("lookups", "misses", "moved_bytes")]


def each(part: dict[str, Any]) -> str:
    """One row per method: the first block against the last, and the loss over all blocks."""
    cells: dict[str, list[dict[str, Any]]] = {}
    for row in part["rows"]:
        cells.setdefault(row["method"], []).append(row)
    with_loss = "nats" in part["rows"][0]  # results of an earlier version have none
    rows = []
    for name, blocks in cells.items():
        first, last = blocks[0], blocks[-1]
        attended = [row["attended"] for row in blocks]
        hits = f"{first['hit_rate']:.2f} → {last['hit_rate']:.2f}" if first["hit_rate"] is not None else ""
        sizes = [f"{first[key] / 1e6:.1f} → {last[key] / 1e6:.1f}" for key in ("device_bytes", "kept_bytes")]
        losses = [f"{_loss(blocks) - _loss(cells['full']):+.3f}"] if with_loss else []
        ratios = f"{first['ratio']:.2f} → {last['ratio']:.2f}"
        rows.append([f"`{name}`", f"{min(attended):.0f}–{max(attended):.0f}", hits, *sizes, *losses, ratios])
    head = ["method", "attended", "hit rate", "on the device, MB", "kept in all, MB"]
    head += ["loss above full, nats"] if with_loss else []
    loss = "*Loss*: mean −log p of the text's next tokens, less that of full attention. " if with_loss else ""
    return "\n\n".join([
        f"{part['model']} in {part['dtype']}, a prompt of {part['prompt_tokens']:,} tokens, budget {part['budget']}, "
        f"{part['steps']:,} tokens decoded, the same for all methods, in turns of {part['block']}.",
        table([*head, "time, share of full"], rows),
        "*Attended*: fewest and most tokens per KV head at the ends of the blocks. Arrows lead from the first block to "
        f"the last. {loss}Times are medians of a block's steps. `snapkv` counts its generated tokens on top of the "
        "budget.",
    ])  # fmt: skip


def _loss(blocks: list[dict[str, Any]]) -> float:
    return statistics.fmean(row["nats"] for row in blocks)
