"""Numbers that CentroidKV (OpenReview T3EeupQhGj) prints, as data for figures in the style of ours."""

from __future__ import annotations

from typing import Any

import pandas as pd

# Tables 6 and 7: context in thousands of tokens, method, TTFT in s, TPOT in ms, KV cache in GB.
LLAMA = [
    (32, "full", 4.006, 43.64, 4.03), (32, "snapkv", 4.096, 35.21, 1.10), (32, "streaming_llm", 4.000, 35.08, 1.10),
    (32, "pyramidkv", 4.109, 35.48, 1.10), (32, "centroidkv", 4.267, 34.72, 1.10), (64, "full", 10.837, 57.29, 7.93),
    (64, "snapkv", 11.057, 37.10, 2.08), (64, "streaming_llm", 10.860, 36.87, 2.08),
    (64, "pyramidkv", 11.057, 38.11, 2.08), (64, "centroidkv", 11.291, 37.87, 2.08),
    (128, "full", 34.938, 85.12, 15.75),
    (128, "snapkv", 34.551, 44.32, 4.03), (128, "streaming_llm", 34.145, 44.30, 4.03),
    (128, "pyramidkv", 34.532, 44.42, 4.03), (128, "centroidkv", 35.001, 44.57, 4.03),
]  # fmt: skip
MISTRAL = [
    (32, "full", 3.920, 43.42, 4.03), (32, "snapkv", 4.027, 34.23, 1.10), (32, "streaming_llm", 3.918, 34.95, 1.10),
    (32, "pyramidkv", 3.961, 35.31, 1.10), (32, "centroidkv", 4.184, 34.79, 1.10), (64, "full", 10.650, 57.09, 7.93),
    (64, "snapkv", 10.872, 37.12, 2.08), (64, "streaming_llm", 10.637, 36.98, 2.08),
    (64, "pyramidkv", 10.884, 37.49, 2.08), (64, "centroidkv", 11.111, 37.23, 2.08),
    (128, "full", 34.661, 84.71, 15.75),
    (128, "snapkv", 33.897, 44.19, 4.03), (128, "streaming_llm", 33.802, 44.54, 4.03),
    (128, "pyramidkv", 34.182, 44.50, 4.03), (128, "centroidkv", 34.668, 44.12, 4.03),
]  # fmt: skip
# Tables 13 and 14: context in thousands of tokens, full's and the method's TTFT in s and TPOT in ms.
UNIFORM = {
    "centroidkv": [
        (4, 0.371, 35.53, 0.444, 39.23), (8, 0.780, 35.82, 0.963, 37.80), (16, 1.735, 38.47, 2.036, 36.58),
        (32, 4.186, 44.67, 4.513, 35.34), (64, 11.300, 59.02, 11.881, 35.44),
    ],
    "clusterkv": [
        (4, 0.355, 13.89, 0.453, 16.44), (8, 0.758, 14.01, 0.962, 16.45), (16, 1.683, 14.92, 2.084, 16.65),
        (32, 4.179, 16.30, 5.134, 17.05),
    ],
}  # fmt: skip
# Table 8: RULER score by chunk size; table 9: by r_init, then by δ_r = 0, 0.1, 0.2, 0.3.
CHUNKS = {"64": 59.76, "128": 59.06, "256": 59.87, "none": 60.62}
SCHEDULES = {
    1.0: (19.22, 23.77, 25.80, 26.69), 0.9: (47.29, 56.25, 59.26, 56.77), 0.8: (51.44, 58.97, 60.46, 57.33),
}  # fmt: skip
STEPS = (0.0, 0.1, 0.2, 0.3)
# Table 12: context in thousands of tokens, full's and CentroidKV's throughput in tokens per second.
VLLM = [
    (4, 1263.8, 2960.2), (8, 669.3, 2255.2), (16, 388.1, 1335.6), (32, 203.7, 664.7), (64, 100.5, 401.7),
    (128, 50.4, 155.2),
]  # fmt: skip
# Tables 15 to 18: mean scores by share of the cache, 75, 50 and 25 %.
MEANS: dict[str, dict[str, tuple[float, float, float]]] = {
    "RULER, Llama-3.1-8B": {
        "streaming_llm": (80.69, 58.59, 37.20), "snapkv": (80.97, 68.67, 41.78), "pyramidkv": (81.95, 68.33, 41.59),
        "centroidkv": (90.66, 79.24, 60.26),
    },
    "RULER, Mistral-7B": {
        "streaming_llm": (75.42, 56.57, 37.64), "snapkv": (58.38, 42.06, 32.77), "pyramidkv": (62.21, 39.81, 30.58),
        "centroidkv": (82.60, 58.81, 38.02),
    },
    "LongBench, Llama-3.1-8B": {
        "streaming_llm": (41.10, 37.69, 33.61), "snapkv": (45.86, 44.54, 41.64), "pyramidkv": (45.82, 44.52, 41.11),
        "centroidkv": (46.77, 45.39, 40.82),
    },
    "LongBench, Mistral-7B": {
        "streaming_llm": (33.50, 30.30, 26.66), "snapkv": (36.98, 35.64, 32.55), "pyramidkv": (36.65, 33.99, 31.70),
        "centroidkv": (36.42, 34.35, 28.56),
    },
}  # fmt: skip
SHARES = (0.75, 0.5, 0.25)


def time_per_token(rows: list[tuple[int, str, float, float, float]]) -> pd.DataFrame:
    """The rows of table 6 or 7 for `plots.latency`."""
    return pd.DataFrame([
        {"method": method, "part": "a decode step", "length": 1000 * context, "seconds": tpot / 1e3}
        for context, method, _, tpot, _ in rows
    ])  # fmt: skip


def uniform(name: str) -> pd.DataFrame:
    """The rows of table 13 or 14 for `plots.latency`."""
    return pd.DataFrame([
        {"method": method, "part": "a decode step", "length": 1000 * context, "seconds": seconds / 1e3}
        for context, _, full, _, own in UNIFORM[name]
        for method, seconds in (("full", full), (name, own))
    ])  # fmt: skip


def means(*benchmarks: str) -> pd.DataFrame:
    """Mean scores for `plots.score_by_budget`, one panel per benchmark and model."""
    rows: list[dict[str, Any]] = [
        {"task": benchmark, "method": method, "budget": share, "score": score}
        for benchmark in benchmarks
        for method, scores in MEANS[benchmark].items()
        for share, score in zip(SHARES, scores, strict=True)
    ]
    return pd.DataFrame(rows)
