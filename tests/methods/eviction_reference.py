"""Eviction methods by their definitions, in float64, one selection head at a time, and layers to compare with them."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch

from kvviz.methods.base import LayerContext

NAMES = ("streaming_llm", "h2o", "snapkv", "pyramidkv")
DIM = 16
SHAPES = {"mha": (4, 4), "grouped": (6, 2), "mqa": (3, 1)}
FIELDS = {
    "streaming_llm": {"budget": 40, "sinks": 3},
    "h2o": {"budget": 40, "sinks": 3},
    "snapkv": {"budget": 40, "recent": 16, "sinks": 2},
    "pyramidkv": {"budget": 40, "recent": 16, "beta": 4},
}


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


class Session:
    """One layer through several prompts: the tokens that each row keeps, and the attention of the model's queries.

    A row is a selection head. After each prompt it keeps `budget(prompt_length)` tokens, `window(prompt_length)` of
    them the latest. `score(row, candidates, weights)` scores a prompt's candidates; weights [heads, n, candidates].
    With `fixed`, a decoded token takes the place of the kept one with the lowest score outside the window; tokens
    without a score are the lowest.
    """

    def __init__(self, n_heads, n_kv_heads, group, scale, budget, window, sinks=0, softcap=None, fixed=False):
        self.fixed, self.prompt_length, self.votes = fixed, 0, [{} for _ in range(n_heads)]
        self.n_heads, self.n_kv_heads, self.scale, self.softcap = n_heads, n_kv_heads, scale, softcap
        self.rows = n_heads if group == "each" else n_kv_heads
        self.group, self.budget, self.window, self.sinks = group, budget, window, sinks
        self.keys = self.values = None  # [H, L, D], all tokens so far
        self.kept: list[list[int]] = [[] for _ in range(self.rows)]
        self.seen: list[list[int]] = []  # positions that the last step attended to, per row

    @property
    def length(self):
        return 0 if self.keys is None else self.keys.shape[1]

    def heads(self, row):
        per_row = self.n_heads // self.rows
        return range(row * per_row, (row + 1) * per_row)

    def score(self, row, candidates, weights):
        raise NotImplementedError

    def stepped(self, row, weights):
        """Update the scores with the weights [row's heads, kept] of a decoded token."""

    def reduce(self, per_head):
        return per_head[0] if self.group == "each" else getattr(np, self.group)(per_head, axis=0)

    def logits(self, head, query, positions):
        keys = self.keys[head // (self.n_heads // self.n_kv_heads), positions]
        logits = keys @ query * self.scale
        return logits if self.softcap is None else self.softcap * np.tanh(logits / self.softcap)

    def attended(self, head, query, positions):
        values = self.values[head // (self.n_heads // self.n_kv_heads), positions]
        return softmax(self.logits(head, query, positions)) @ values

    def append(self, keys, values):
        keys, values = np.asarray(keys, dtype=np.float64), np.asarray(values, dtype=np.float64)
        self.keys = keys if self.keys is None else np.concatenate([self.keys, keys], 1)
        self.values = values if self.values is None else np.concatenate([self.values, values], 1)

    def stored(self, kv_head):
        """Union of the positions that the rows of a KV head keep."""
        per_head = self.rows // self.n_kv_heads
        return sorted(set().union(*self.kept[kv_head * per_head : (kv_head + 1) * per_head]))

    def prompt(self, queries, keys, values):
        """Attention [Q, n, D] of a prompt over the stored tokens and its own; then each row evicts."""
        queries, first = np.asarray(queries, dtype=np.float64), self.length
        self.append(keys, values)
        new = list(range(first, self.length))
        output = np.zeros(queries.shape)
        for head in range(self.n_heads):
            stored = self.stored(head // (self.n_heads // self.n_kv_heads))
            for i, position in enumerate(new):
                output[head, i] = self.attended(head, queries[head, i], stored + new[: position - first + 1])
        for row in range(self.rows):
            candidates = self.kept[row] + new
            weights = np.zeros((len(self.heads(row)), len(new), len(candidates)))
            for i_head, head in enumerate(self.heads(row)):
                for i in range(len(new)):
                    seen = len(self.kept[row]) + i + 1
                    weights[i_head, i, :seen] = softmax(self.logits(head, queries[head, i], candidates[:seen]))
            scores = self.score(row, candidates, weights)
            self.votes[row] = dict(zip(candidates, scores, strict=True))
            self.kept[row] = self.best(candidates, scores, self.budget(self.length), self.window(self.length))
        self.prompt_length = self.length
        return output

    def standing(self, row):
        """The scores of the kept tokens while decoding."""
        return [self.votes[row].get(position, -np.inf) for position in self.kept[row]]

    def best(self, candidates, scores, count, window):
        if len(candidates) <= count:
            return candidates
        evictable = range(self.sinks, len(candidates) - window)
        ranked = sorted(evictable, key=lambda place: (-scores[place], place))[: count - self.sinks - window]
        return (
            candidates[: self.sinks] + [candidates[p] for p in sorted(ranked)] + candidates[len(candidates) - window :]
        )

    def step(self, query, key, value):
        """Attention [Q, D] of one decoded token over the tokens that its row keeps, including itself."""
        query = np.asarray(query, dtype=np.float64)
        self.append(key, value)
        output, self.seen = np.zeros(query.shape), []
        for row in range(self.rows):
            if self.fixed:
                count, window = self.budget(self.prompt_length) - 1, self.window(self.prompt_length) - 1
                self.kept[row] = self.best(self.kept[row], self.standing(row), count, window)
            self.kept[row] = [*self.kept[row], self.length - 1]
            self.seen.append(self.kept[row])
            weights = []
            for head in self.heads(row):
                output[head] = self.attended(head, query[head], self.kept[row])
                weights.append(softmax(self.logits(head, query[head], self.kept[row])))
            self.stepped(row, np.array(weights))
        return output


class StreamingSession(Session):
    def score(self, row, candidates, weights):
        return [0.0] * len(candidates)


class SnapSession(Session):
    recent, kernel, pooling = 64, 5, "avg"

    def score(self, row, candidates, weights):
        ranked = len(candidates) - self.recent
        if ranked <= 0:
            return [0.0] * len(candidates)
        votes = self.reduce(weights[:, -self.recent :, :ranked].sum(1))
        pooled = []
        for place in range(ranked):
            near = [votes[p] for p in range(place - self.kernel // 2, place + self.kernel // 2 + 1) if 0 <= p < ranked]
            pooled.append(max(near) if self.pooling == "max" else sum(near) / self.kernel)
        return pooled + [0.0] * self.recent


class HeavySession(Session):
    """H2O: `accumulated[head][position]` is the accumulated attention."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.accumulated = [defaultdict(float) for _ in range(self.n_heads)]

    def score(self, row, candidates, weights):
        for i_head, head in enumerate(self.heads(row)):
            for place, position in enumerate(candidates):
                self.accumulated[head][position] += weights[i_head, :, place].sum()
        return self.scores(row, candidates)

    def standing(self, row):
        return self.scores(row, self.kept[row])

    def scores(self, row, candidates):
        return self.reduce(np.array([[self.accumulated[h][p] for p in candidates] for h in self.heads(row)]))

    def stepped(self, row, weights):
        for i_head, head in enumerate(self.heads(row)):
            for place, position in enumerate(self.kept[row]):
                self.accumulated[head][position] += weights[i_head, place]


def context(n_heads, n_kv_heads, **fields):
    return LayerContext(
        **{"index": 1, "n_layers": 4, "n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": DIM, "scale": 0.3}
        | fields
    )


def tensors(n_heads, n_kv_heads, length, seed=0, batch=1):
    generator = torch.Generator().manual_seed(seed)
    heads = (n_heads, n_kv_heads, n_kv_heads)
    return tuple(torch.randn((batch, h, length, DIM), generator=generator) for h in heads)


def session_for(method, layer, group):
    """Reference implementation of a method at one layer."""
    classes = {"streaming_llm": StreamingSession, "h2o": HeavySession}
    windows = {"streaming_llm": method.budget - method.sinks, "h2o": method.budget // 2}
    window = windows.get(method.name, method.recent)

    def budget(length):
        return method.layer_budget(layer, length) if method.name == "pyramidkv" else method.budget

    session = classes.get(method.name, SnapSession)(
        layer.n_heads,
        layer.n_kv_heads,
        group,
        layer.scale,
        budget,
        lambda _: window,
        sinks=method.sinks,
        softcap=layer.softcap,
        fixed=method.generated == "within",
    )
    if isinstance(session, SnapSession):
        session.recent, session.kernel, session.pooling = method.recent, method.kernel, method.pooling
    return session


def prompt_attention(layer, queries):
    """Attention [B, Q, n, D] of a stored prompt over the keys and values that the layer returns for it."""
    new, store = queries.shape[2], layer.store
    causal = torch.full((new, store.used), -torch.inf).triu(store.used - new + 1)
    keys, values, mask = layer.prompt_inputs(new) or (store.keys, store.values, causal)
    group = queries.shape[1] // keys.shape[1]
    logits = queries @ keys.repeat_interleave(group, 1).transpose(-1, -2) * layer.context.scale
    if layer.context.softcap is not None:
        logits = layer.context.softcap * torch.tanh(logits / layer.context.softcap)
    return (logits + mask).softmax(-1) @ values.repeat_interleave(group, 1)


def feed_prompt(layer, queries, keys, values, starts=None):
    layer.store.append(keys, values)
    output = prompt_attention(layer, queries)
    layer.keep_queries(queries)
    layer.build(starts)
    return output


def feed_token(layer, queries, keys, values):
    layer.store.append(keys, values)
    return layer.decode(queries[:, :, 0])


def rows_attended(layer, batch_row=0):
    return [[p for p in row.tolist() if p >= 0] for row in layer.last.indices[batch_row]]


def close(output, expected):
    return np.allclose(output.numpy(), expected, atol=2e-5)
