"""ClusterKV, figure 11b: distance metrics and numbers of clusters, over budgets, layers, texts and seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from measures import Rows, measure, texts

METRICS = ("cosine", "l2", "ip")
QUALITY = ("recall", "attention_mass", "output_error")
DEFAULT = 80  # tokens per cluster, the paper's choice


@measure(tokens=136, count=1, steps=4, seeds=[0], tokens_per_cluster=[80], budgets=[48, 64])
def clusterkv_metrics(
    lm: Any, tokens: int = 2048, count: int = 3, steps: int = 16, seeds: tuple[int, ...] = (0, 1, 2),
    tokens_per_cluster: tuple[int, ...] = (160, 80, 40, 20), budgets: tuple[int, ...] = (128, 256, 512, 1024),
) -> Rows:  # fmt: skip
    """Quality of ClusterKV's selection by metric, number of clusters and budget, with the outlier channels of keys.

    The last `steps` positions of each text are the queries, all tokens before them are the prompt; what counts is which
    of the prompt's tokens a query attends to, so that the tokens after it change nothing. Rows of kind "text" are means
    over all layers and KV heads, one per text and seed. Rows of kind "head", one per text, layer and KV head, have the
    `outlier_ratio` of its keys; their quality is the mean over seeds and budgets, with a cluster per 80 tokens.
    """
    import kvviz

    rows: Rows = []
    for text, ids in enumerate(texts(lm, tokens, count)):
        trace = kvviz.capture(lm, ids)
        cells: dict[tuple[Any, ...], list[np.ndarray]] = {}  # by seed, metric, tokens per cluster, budget: [3, H]
        for layer in trace.layers:
            prompt = Prompt(trace, layer, steps)
            for seed in seeds:
                for metric in METRICS:
                    for per_cluster in tokens_per_cluster:
                        fields = {"metric": metric, "tokens_per_cluster": per_cluster, "seed": seed}
                        for budget, quality in prompt.qualities(budgets, fields).items():
                            cells.setdefault((seed, metric, per_cluster, budget), []).append(quality)
        rows += [
            {
                "kind": "text", "text": text, "seed": seed, "metric": metric, "tokens_per_cluster": per_cluster,
                "budget": budget, **_named(np.mean(by_layer, axis=(0, 2))),
            }
            for (seed, metric, per_cluster, budget), by_layer in cells.items()
        ]  # fmt: skip
        rows += _heads(trace, text, cells)
    return rows


def _heads(trace: Any, text: int, cells: dict[tuple[Any, ...], list[np.ndarray]]) -> Rows:
    """One row per metric, layer and KV head, with the default number of clusters: means over seeds and budgets."""
    from kvviz import metrics

    rows = []
    for metric in METRICS:
        chosen = [by_layer for (_, name, per, _), by_layer in cells.items() if (name, per) == (metric, DEFAULT)]
        means = np.mean(chosen, axis=0)  # [layers, 3, H]
        for place, layer in enumerate(trace.layers):
            ratios = metrics.outlier_ratio(trace.keys[layer])
            rows += [
                {
                    "kind": "head", "text": text, "metric": metric, "layer": layer, "head": head,
                    "outlier_ratio": float(ratio), **_named(means[place, :, head]),
                }
                for head, ratio in enumerate(ratios)
            ]  # fmt: skip
    return rows


def _named(values: np.ndarray) -> dict[str, float]:
    return {name: round(float(value), 6) for name, value in zip(QUALITY, values, strict=True)}


class Prompt:
    """One layer's prompt, and the queries that follow it, with their exact attention over the prompt's tokens."""

    def __init__(self, trace: Any, layer: int, steps: int) -> None:
        import torch

        from kvviz.generation.replaying import trace_context

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array.astype(np.float32))[None]

        prompt = len(trace) - steps
        self.context = trace_context(trace, layer)
        self.keys, self.values = tensor(trace.keys[layer][:, :prompt]), tensor(trace.values[layer][:, :prompt])
        self.queries = tensor(trace.queries[layer][:, prompt:])[0].transpose(0, 1)  # [T, Q, D]: a batch of queries
        scores = self.queries.unflatten(1, (self.keys.shape[1], -1)) @ self.keys.transpose(-1, -2)  # [T, H, G, L]
        self.weights = self.context.logits(scores).softmax(-1)
        self.mean = self.weights.mean(2).numpy()  # [T, H, L]
        self.exact = self.weights @ self.values
        self.ranked: dict[int, np.ndarray] = {}  # by number of tokens

    def qualities(self, budgets: tuple[int, ...], fields: dict[str, Any]) -> dict[int, np.ndarray]:
        """Recall, attention mass and output error [3, H] by budget, means over the queries; clustered once."""
        import kvviz

        methods = {budget: kvviz.methods.create("clusterkv", budget=budget, **fields) for budget in budgets}
        first = next(iter(methods.values()))
        state = first.build(self.context, self.queries[:0], self.keys, self.values)
        count = len(self.queries)
        batch = {name: getattr(state, name).expand(count, *getattr(state, name).shape[1:])
                 for name in ("centroids", "sizes", "offsets", "order")}  # fmt: skip
        batch["pending"] = [part.expand(count, *part.shape[1:]) for part in state.pending]
        state = replace(state, **batch)
        return {budget: self._quality(method.choose(state, self.queries)) for budget, method in methods.items()}

    def _quality(self, selection: Any) -> np.ndarray:
        from kvviz import metrics

        indices = selection.indices.numpy()  # [T, H, S]
        length = self.keys.shape[2]
        mask = metrics.member_mask(indices, length)
        size = indices.shape[-1]
        if size not in self.ranked:
            self.ranked[size] = metrics.member_mask(metrics.top_tokens(self.mean, size), length)
        true = self.ranked[size]
        assert (mask.sum(-1) == size).all(), "as many tokens as the budget"
        recall = (mask & true).sum(-1) / size
        mass = (self.mean * mask).sum(-1)
        output = self._output(mask)
        error = metrics.output_error(output, self.exact.numpy()).mean(-1)  # over the group's query heads
        return np.stack([values.mean(0) for values in (recall, mass, error)])

    def _output(self, mask: np.ndarray) -> np.ndarray:
        """Attention output [T, H, G, D] over the tokens of `mask` [T, H, L]."""
        import torch

        chosen = self.weights * torch.from_numpy(mask)[:, :, None]
        return (chosen / chosen.sum(-1, keepdim=True) @ self.values).numpy()
