"""Recordings to look at and to time: real English with coherent clusters, and hostile tokens."""

from __future__ import annotations

import re
from pydoc_data.topics import topics

import numpy as np

from kvviz.trace import Geometry, LayerEvents, Recording

from ..synthetic import recording

HOSTILE = [
    " <script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    " 🦜",
    "\ufffd",
    " שלום",
    "\n",
    "\u202e",
    "&lt;b&gt;",
    "{title}",
    "\u2028",
    "<!--",
    "\x00",
]
ANSWER = (
    " The special magic number is 7463. The with statement wraps the execution of a block with methods defined by a"
    " context manager, so that common try and except and finally patterns can be kept in one place and used again. Its"
    " value is bound to the target, if there is one, before the block runs."
)
TOPICS = ("with", "compound", "exceptions", "naming", "objects", "typesseq", "formatstrings", *sorted(topics))


def words(count: int) -> list[str]:
    """The first `count` word-like tokens of Python's language reference."""
    text = "".join(topics[name] for name in TOPICS)
    return re.findall(r"\n| ?\w{1,7}|[^\w\n]", text)[:count]


def prose_recording(
    *,
    prompt_length: int = 2048,
    steps: int = 64,
    budget: int = 256,
    layers: tuple[int, ...] = (2, 8, 14, 29),
    heads: int = 3,
    sinks: int = 16,
    seed: int = 0,
) -> Recording:
    """A recording whose attention drifts slowly; clusters are nearby words, and each step selects the best clusters."""
    rng = np.random.default_rng(seed)
    fed = re.findall(r" ?\w{1,7}|[^\w]", ANSWER * (1 + steps // 50))[: steps + 1]
    tokens = words(prompt_length) + fed[:steps]
    length, n_clusters = len(tokens), max(4, prompt_length // 80)
    events = {}
    for layer in layers:
        indices = np.full((steps, heads, budget + steps), -1, np.int32)
        groups, scores = np.full_like(indices, -1), np.full(indices.shape, np.nan, np.float32)
        attention = np.zeros((steps, heads, length), np.float32)
        for head in range(heads):
            topic = np.arange(prompt_length) // 9 % n_clusters + rng.normal(scale=0.3, size=prompt_length)
            order = np.argsort(topic, kind="stable")
            clusters = np.empty(prompt_length, np.int64)
            clusters[order] = np.arange(prompt_length) * n_clusters // prompt_length
            base, drift = rng.gumbel(size=length) * 1.3, rng.normal(size=n_clusters)
            base[:sinks] += 2.5
            for step in range(steps):
                drift += rng.normal(scale=0.35, size=n_clusters)
                visible = prompt_length + step + 1
                logits = base[:visible] + np.linspace(-1.5, 1.5, visible)
                logits[:prompt_length] += 1.6 * drift[clusters]
                attention[step, head, :visible] = np.exp(logits - logits.max())
                attention[step, head] /= attention[step, head].sum()
                score = drift + rng.normal(scale=0.4, size=n_clusters)
                candidates = np.arange(sinks, prompt_length)
                ranked = candidates[np.argsort(-score[clusters[candidates]], kind="stable")]
                chosen = np.sort(ranked[: budget - sinks])
                attended = np.concatenate([np.arange(sinks), chosen, np.arange(prompt_length, visible)])
                indices[step, head, : len(attended)] = attended
                groups[step, head, sinks : sinks + len(chosen)] = clusters[chosen]
                scores[step, head, sinks : sinks + len(chosen)] = score[clusters[chosen]]
        count = (indices >= 0).sum((1, 2))
        events[layer] = LayerEvents(
            indices=indices,
            groups=groups,
            scores=scores,
            attention=attention,
            merged=np.zeros((steps, heads), np.int32),
            output_error=rng.uniform(0.05, 0.3, steps).astype(np.float32),
            read_bytes=(count * 512).astype(np.int64),
            moved_bytes=(rng.integers(20, 160, steps) * 512).astype(np.int64),
            select_s=np.full(steps, 1e-4, np.float32),
        )
    return Recording(
        method="clusterkv",
        title="ClusterKV",
        config={"sinks": sinks, "recent": 0},
        budget=budget,
        model="synthetic",
        geometry=Geometry(30, 3 * heads, heads, 64, 8192),
        tokens=tokens,
        token_ids=np.arange(length, dtype=np.int64),
        next_tokens=fed[1 : steps + 1],
        prompt_length=prompt_length,
        events=events,
        dense_layers=(0, 1),
        answer=ANSWER,
    )


def hostile_recording() -> Recording:
    """The synthetic recording with tokens that would break a page that does not escape them."""
    tokens = [HOSTILE[position % len(HOSTILE)] if position % 3 == 0 else f" word{position}" for position in range(126)]
    return recording(tokens=tokens)
