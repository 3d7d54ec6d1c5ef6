"""PQCache's settings on captured traces: power law of attention, bits, budget, extra communication and iterations."""

from __future__ import annotations

from typing import Any

import numpy as np

from measures import Rows, measure, texts

CONFIGURATIONS = ((1, 8), (2, 4), (2, 6), (2, 8), (4, 4), (4, 8), (8, 2))  # m × b
SHARES = (0.05, 0.1, 0.2, 0.4)  # of the prompt's tokens, fig. 10(c)
ITERATIONS = (1, 2, 3, 5, 10, 30, 100)
# Presets and fields with the least extra communication that each method can have (section 4.1.3).
BASELINES: dict[str, dict[str, Any]] = {
    "oracle": {}, "h2o": {}, "snapkv": {}, "pyramidkv": {}, "sparq": {"preset": "pqcache"},
    "infllm": {"n_representatives": 1},
}  # fmt: skip
REPRESENTATIVES, RANKS = (1, 2, 4, 8), (1, 2, 4)  # fig. 10(d): InfLLM's tokens per block of 128, SparQ's channels
SPLITS = ((2, 4), (2, 8), (4, 8), (8, 8))  # PQCache's m × b: 1/128 to 1/16 of the keys at head dimension 64


@measure(tokens=96, count=2, steps=16, last=32)
def attention_power_law(lm: Any, tokens: int = 2048, count: int = 3, steps: int = 64, last: int = 256) -> Rows:
    """Per text, layer and query head: the power law of the attention weights by rank, up to rank `last`.

    The weights are geometric means over the last `steps` positions, at each rank. `share_90`: the fewest tokens that
    hold 90 % of the attention, as a share of all, median over the steps.
    """
    import kvviz
    from kvviz import metrics

    rows = []
    for text, ids in enumerate(texts(lm, tokens, count)):
        trace = kvviz.capture(lm, ids)
        positions = np.arange(tokens - steps, tokens)
        for layer in trace.layers:
            weights = metrics.attention_weights(
                trace.queries[layer], trace.keys[layer], positions, scale=trace.scale, group="each"
            )  # [Q, T, N]
            ranked = metrics.sorted_mass(weights)[0][..., :last]
            for head, by_rank in enumerate(np.exp(np.log(np.maximum(ranked, 1e-30)).mean(1))):
                law = metrics.power_law(by_rank, first=1, last=last)
                held = np.median(metrics.tokens_for_mass(weights[head], 0.9)) / tokens
                rows.append({
                    "text": text, "layer": layer, "head": head, "exponent": float(law.exponent),
                    "r_squared": float(law.r_squared), "share_90": float(held),
                })  # fmt: skip
    return rows


@measure(tokens=200, count=1, steps=4, layers=(2,), share=0.5, shares=(0.5,))
def pqcache_settings(
    lm: Any, tokens: int = 2048, count: int = 3, steps: int = 32, layers: tuple[int, ...] = (3, 15, 27),
    share: float = 0.1, shares: tuple[float, ...] = SHARES,
) -> Rows:  # fmt: skip
    """Recall, attention mass and output error of the last `steps` positions, means over layers, per text and setting.

    `varied`: "bits" (m × b), "budget" (with the baselines), "communication" (extra bytes as a share of the keys' in
    float16) or "iterations". The budget is `share` of the prompt unless it varies, and 1/5 for the communication.
    """
    import kvviz

    rows = []
    for text, ids in enumerate(texts(lm, tokens, count)):
        trace = kvviz.capture(lm, ids, layers=list(layers))
        for varied, method, value, budget, fields in _settings(lm, share, shares):
            chosen = kvviz.methods.create(method, budget=budget, **fields)
            recording = kvviz.replay(trace, chosen, queries=steps)
            summary = recording.summary()
            rows.append({
                "text": text, "varied": varied, "method": method, "value": value, "budget": budget,
                "bits": fields.get("n_partitions", 2) * fields.get("n_bits", 6) if method == "pqcache" else None,
                **{name: float(summary[name]) for name in ("recall", "attention_mass", "output_error")},
                "attended_tokens": float(summary["attended_tokens"]),
            })  # fmt: skip
    return rows


def _settings(
    lm: Any, share: float, shares: tuple[float, ...]
) -> list[tuple[str, str, str | float, float, dict[str, Any]]]:
    """What is varied, method, value, budget and fields of every setting."""
    width = lm.geometry.head_dim
    settings: list[tuple[str, str, str | float, float, dict[str, Any]]] = [
        ("bits", "pqcache", f"{m}×{b}", share, {"n_partitions": m, "n_bits": b}) for m, b in CONFIGURATIONS
    ]
    for budget in shares:
        settings.append(("budget", "pqcache", budget, budget, {}))
        settings += [("budget", name, budget, budget, fields) for name, fields in BASELINES.items()]
    fifth = max(share, 0.2)
    settings += [
        ("communication", "pqcache", m * b / (16 * width), fifth, {"n_partitions": m, "n_bits": b}) for m, b in SPLITS
    ]
    settings += [("communication", "sparq", rank / width, fifth, {"rank": rank}) for rank in RANKS]
    settings += [
        ("communication", "infllm", number / 128, fifth, {"n_representatives": number}) for number in REPRESENTATIVES
    ]
    settings += [("iterations", "pqcache", count, share, {"max_iter": count}) for count in ITERATIONS]
    return settings
