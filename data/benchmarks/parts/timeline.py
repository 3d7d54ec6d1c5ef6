"""Overlap of clustering and transfers with the model's work on SmolLM2, and predicted transfer times by link."""

from __future__ import annotations

from typing import Any

from .inputs import model, prose

TOKENS, STEPS, BUDGET, METHOD, STORE = 4096, 32, 512, "clusterkv", "host"
PAPER_BUILD_SHARE = [0.06, 0.08]  # ClusterKV, section V-C: prompts of 8k to 32k tokens, NVIDIA Ada 6000 GPU


def run() -> dict[str, Any]:
    """Shares of overlap, of the prefill and of the decode steps, and predicted seconds of transfer by link."""
    import torch

    import kvviz
    from kvviz.cache.attachment import attached
    from kvviz.cache.selective_cache import SelectiveCache
    from kvviz.generation.generating import fill, wait_for_states
    from kvviz.offload import LinkModel

    lm, timeline = model(), kvviz.Timeline()
    ids = lm.encode(prose())[:, : TOKENS + STEPS]
    cache = SelectiveCache(lm.model, kvviz.methods.create(METHOD, budget=BUDGET), STORE, timeline=timeline)
    with torch.no_grad(), attached(lm.model):
        fill(lm, cache, ids[:, :TOKENS])
        wait_for_states(cache)
        prefill_bytes = cache.ledger().moved_bytes  # a prompt in chunks reads its earlier chunks back
        for step in range(TOKENS, TOKENS + STEPS):
            lm.model(ids[:, step : step + 1], past_key_values=cache, use_cache=True, logits_to_keep=1)
    moved = cache.ledger().moved_bytes - prefill_bytes
    fetches = sum(event.what == "fetch" and event.phase == "decode" for event in timeline.events)
    decode_s = timeline.seconds("pass", phase="decode")
    links = [*LinkModel.PRESETS.values(), LinkModel.measured("cpu")]
    return {
        "model": lm.name, "method": METHOD, "store": STORE, "tokens": TOKENS, "steps": STEPS, "budget": BUDGET,
        "prefill_s": timeline.seconds("pass", phase="prefill"), "step_s": decode_s / STEPS,
        "build_share_of_prefill": timeline.build_share(), "paper_build_share_of_prefill": PAPER_BUILD_SHARE,
        "build_after_prefill_share": _after_prefill(timeline) / timeline.seconds("pass", phase="prefill"),
        "overlap_prefill": {name: timeline.overlap("prefill")[name] for name in ("clustering", "transfer")},
        "share_of_step": {
            what: timeline.seconds(what=what, phase="decode") / decode_s
            for what in ("select", "fetch", "attention", "store", "projections and FFN", "FFN and logits")
        },
        "moved_bytes_a_step": moved / STEPS, "fetches_a_step": fetches / STEPS,
        "fetch_s_a_step": timeline.seconds(what="fetch", phase="decode") / STEPS,
        "links": [
            {
                "label": link.label, "bytes_per_s": link.bytes_per_s, "latency_s": link.latency_s,
                "predicted_s_a_step": link.seconds(moved, fetches) / STEPS,
            }
            for link in links
        ],
    }  # fmt: skip


def _after_prefill(timeline: Any) -> float:
    """Seconds for which building continued after the prompt's last forward pass."""
    events = timeline.events
    over_s = max(event.end_s for event in events if (event.stream, event.phase) == ("pass", "prefill"))
    return max(max(event.end_s for event in events if event.what == "build") - over_s, 0.0)
