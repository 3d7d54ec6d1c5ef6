"""ClusterKV (arXiv 2412.03213): the figures that explain its mechanism, drawn from recorded runs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
import sources

from entries import Finding, entry
from kvviz import plots

LAYER, HEAD = 14, 0
STEP = 24  # of the recorded decode steps
QUERIES, BUDGET = 32, 256  # of the step that figure 8 takes apart


@entry(
    "ClusterKV", "fig. 1",
    headline="full attention, eviction, pages and semantic clusters: which tokens each attends to, step by step",
    call='kvviz.plots.selection_map([recordings["clusterkv"], recordings["quest"]], layer=14)',
    schematic=True,
)  # fmt: skip
def selected_tokens() -> Finding:
    """Which tokens KV compression methods attend to: none evicted, evicted for good, recalled by page or by cluster."""
    recordings = sources.runs().recordings("decode")
    shares = [
        f"{name} {np.mean([recording.recall(step, LAYER).mean() for step in range(recording.steps)]):.2f}"
        for name, recording in recordings.items()
    ]
    first = next(iter(recordings.values()))
    return Finding(
        ours=f"tokens agreed with, missed and wasted against exact attention; recall {', '.join(shares)}",
        run=f"{first.model}, {first.prompt_length:,} tokens, budget {first.budget}, {first.steps} steps, layer {LAYER}",
        draw=lambda: plots.selection_map(list(recordings.values()), LAYER, HEAD, steps=(0, STEP)),
    )


@entry(
    "ClusterKV", "fig. 2",
    headline="tokens that are near each other in the space of keys have similar attention weights",
    call='kvviz.plots.semantic_space(trace, 14, 0, recording=recording, step=24, projection="tsne")',
    schematic=True,
)  # fmt: skip
def attention_in_semantic_space() -> Finding:
    """The keys of one head in two dimensions, with the attention weights of one step."""
    recording = sources.runs().recordings("decode")["clusterkv"]
    keys = sources.runs().trace("prose").keys[LAYER][HEAD, : recording.visible(STEP)]
    within, all_pairs = _spread_of_logits(keys.astype(np.float64), recording)
    return Finding(
        ours=f"the logarithm of the attention weight varies by {within:.2f} (standard deviation) among the recalled "
        f"tokens of a cluster, by {all_pairs:.2f} among all tokens of the prompt",
        run=f"{recording.model}, {recording.prompt_length:,} tokens, layer {LAYER}, KV head {HEAD}, step {STEP}",
        draw=lambda: plots.semantic_space(
            keys, LAYER, HEAD, recording=recording, step=STEP, projection="tsne"
        ),
    )  # fmt: skip


def _spread_of_logits(keys: Any, recording: Any) -> tuple[float, float]:
    """Standard deviation of the log attention weight within recalled clusters, and over the prompt without sinks."""
    logs = np.log(recording.attention(STEP, LAYER)[HEAD].astype(np.float64))
    indices, groups = recording.indices(STEP, LAYER)[HEAD], recording.groups(STEP, LAYER)[HEAD]
    parts = [logs[indices[groups == group]] for group in np.unique(groups[groups >= 0])]
    squares = np.concatenate([(part - part.mean()) ** 2 for part in parts if len(part) > 1])
    rest = logs[recording.config["sinks"] : recording.prompt_length]
    return float(np.sqrt(squares.mean())), float(rest.std())


@entry(
    "ClusterKV", "fig. 4",
    headline="keys are clustered, a query is compared with the centroids, and the nearest clusters are selected",
    call="kvviz.plots.semantic_space(trace, 14, 0, clusters=clusters.labels, centroids=clusters.centroids, "
    "query=query)",
    schematic=True,
)  # fmt: skip
def clusters_and_query() -> Finding:
    """The process of clustering and selecting: keys, their clusters' centroids, and a query."""
    step, trace = one_step(), sources.runs().trace("prose")
    nearest = ", ".join(str(step.sizes[cluster]) for cluster in step.ranked[:3])
    return Finding(
        ours=f"{len(step.sizes)} clusters of {step.sizes.min()} to {step.sizes.max()} tokens; the three nearest to the "
        f"query have {nearest} tokens",
        run=_where(step),
        draw=lambda: plots.semantic_space(
            trace.keys[LAYER][HEAD, : len(step.labels)], LAYER, HEAD, clusters=step.labels, centroids=step.centroids,
            query=step.query, projection="tsne", max_points=1200,
        ),
    )  # fmt: skip


class Step:
    """One real decode step of ClusterKV: clusters by score, their sizes, and how many tokens of each are recalled."""

    def __init__(self) -> None:
        import kvviz
        from kvviz.generation.explore.clusters import cluster_keys
        from kvviz.generation.explore.selections import select

        self.trace = sources.runs().trace("prose")
        clusters = cluster_keys(self.trace, LAYER, HEAD, queries=QUERIES, budget=BUDGET)
        recording = select(self.trace, LAYER, "clusterkv", queries=QUERIES, budget=BUDGET).recording
        self.step, self.labels, self.centroids = recording.steps - 1, clusters.labels, clusters.centroids
        self.sizes, self.recalled = clusters.sizes, clusters.taken[-1]
        position, group = (
            recording.visible(self.step) - 1,
            len(self.trace.queries[LAYER]) // len(self.trace.keys[LAYER]),
        )
        self.query = self.trace.queries[LAYER][HEAD * group : (HEAD + 1) * group, position].astype(np.float32).mean(0)
        self.scores = self.centroids @ self.query
        self.ranked = np.argsort(-self.scores, kind="stable")
        own = kvviz.methods.get("clusterkv").least_recent  # the step's own token is always attended to
        self.free = recording.budget - recording.config["sinks"] - own
        groups = recording.groups(self.step, LAYER)[HEAD]
        self.recorded = np.bincount(groups[groups >= 0], minlength=len(self.sizes))

    @property
    def expected(self) -> Any:
        """Tokens of each cluster by the paper's rule: whole clusters in order of score, the last one trimmed."""
        before = np.cumsum(self.sizes[self.ranked]) - self.sizes[self.ranked]
        taken = np.zeros(len(self.sizes), np.int64)
        taken[self.ranked] = np.clip(self.free - before, 0, self.sizes[self.ranked])
        return taken


@cache
def one_step() -> Step:
    """The step that figures 4 and 8 show."""
    return Step()


def _where(step: Step) -> str:
    tokens = len(step.labels)
    return f"{step.trace.model}, {tokens:,} tokens, layer {LAYER}, KV head {HEAD}, budget {BUDGET}, step {step.step}"


@entry(
    "ClusterKV", "fig. 8",
    headline="clusters are sorted by q·μ, their sizes added up to the budget; the last one selected is trimmed",
    call='kvviz.methods.create("clusterkv", budget=256).select(state, queries)',
    schematic=True,
)  # fmt: skip
def selection_and_indexing() -> Finding:
    """The process of selection and indexing: sorted clusters, sizes, prefix sum, the cut, and the trimmed cluster."""
    step = one_step()
    whole = int((step.expected == step.sizes)[step.ranked].sum())
    last = step.ranked[whole]
    same = "the same as" if np.array_equal(step.expected, step.recorded) else "NOT the same as"
    return Finding(
        ours=f"{whole} whole clusters with {step.sizes[step.ranked[:whole]].sum()} tokens and "
        f"{step.expected[last]} of the next one's {step.sizes[last]} fill {step.free} tokens (the budget without "
        f"sinks and the step's own token); computed from sizes and prefix sums by hand, this is {same} "
        "what the method recalled",
        run=_where(step),
        draw=lambda: indexing(step),
    )


def indexing(step: Step) -> go.Figure:
    """Clusters from the best score on: their sizes, what is recalled of each, and the prefix sum with the budget."""
    color = plots.method_style("clusterkv")["color"]
    shown = min(len(step.ranked), 2 * int((step.recorded > 0).sum()) + 2)
    chosen = step.ranked[:shown]
    names = [f"cluster {cluster}" for cluster in chosen]
    recalled, sizes = step.recorded[chosen], step.sizes[chosen]
    figure = go.Figure(layout={"template": "kvviz_light", "barmode": "stack", "height": 420})
    hover = "%{x}: %{y} tokens<extra></extra>"
    figure.add_bar(x=names, y=recalled, name="recalled tokens", marker_color=color, hovertemplate=hover)
    left_out = {"color": "rgba(0,0,0,0)", "line": {"color": color, "width": 1}}
    figure.add_bar(x=names, y=sizes - recalled, name="not recalled", marker=left_out, hovertemplate=hover)
    figure.add_scatter(
        x=names, y=np.cumsum(sizes), name="prefix sum of the sizes", mode="lines+markers",
        line={"color": "#444444", "shape": "hv", "dash": "dot"}, hovertemplate=hover,
    )  # fmt: skip
    figure.add_scatter(
        x=names, y=[step.free] * shown, name="budget left by sinks", mode="lines",
        line={"color": "#444444", "width": 1}, hovertemplate=hover,
    )  # fmt: skip
    figure.update_yaxes(title_text="tokens")
    figure.update_xaxes(title_text="clusters by q·μ, the best first", tickangle=-60)
    return figure.update_layout(title_text=f"Selection of one step · layer {LAYER}, KV head {HEAD}")


@entry(
    "ClusterKV", "fig. 6",
    headline="clustering runs beside attention and FFN of its layer and the projections of the next one",
    call='kvviz.plots.timeline(kvviz.generate(lm, prompt, "clusterkv", store="host", timeline=True).timeline)',
    schematic=True,
)  # fmt: skip
def overlapped_clustering() -> Finding:
    """How clustering overlaps with the other work of the prefill."""
    timeline = sources.runs().timelines("overlap")["clusterkv"]
    share, build = timeline.overlap("prefill")["clustering"], timeline.build_share()
    return Finding(
        ours=f"{100 * share:.0f} % of the clustering's time, the model computes too; clustering takes as long as "
        f"{100 * build:.0f} % of the prefill. Both share the processor's cores here, so it slows the prefill down",
        run=timeline.description,
        draw=lambda: plots.timeline(timeline, phase="prefill"),
    )


@entry(
    "ClusterKV", "fig. 5",
    headline="the GPU holds centroids, metadata, sinks and a cache of selected tokens; all other keys and values are "
    "in host memory. The cache: hit rates of 63 % (R = 1) and 74 % (R = 2), 2.3 and 3 times the decoding throughput of "
    "loading from the host (section V-C)",
    call='kvviz.plots.budget_ledger({"clusterkv": kvviz.generate(lm, prompt, "clusterkv", store="host").ledger})',
    schematic=True,
)  # fmt: skip
def system_overview() -> Finding:
    """The system: which tokens a step attends to, where keys and values are kept, and what moves between the tiers."""
    ledgers = sources.runs().table("ledgers")
    caching = sources.measured("clusterkv_caching")
    ours = ledgers[ledgers["method"] == "clusterkv"]
    return Finding(
        ours=_caching_gain(caching),
        run=sources.described(caching, "float32; the picture: `make data`, layers 5, 15, 25, budget 256"),
        why="The paper's throughput includes copies over PCI Express. Here host and device are the same memory, so "
        "that a fetch takes less of a step.",
        draw=lambda: plots.budget_ledger(ours),
    )


def _caching_gain(caching: Any) -> str:
    """Hit rate, bytes, and the time of the fetches by R against R = 0: means over texts with intervals."""
    by_steps = {recent: rows.set_index("text") for recent, rows in caching.groupby("recent_steps")}
    without = by_steps[0]
    parts = []
    for recent, rows in by_steps.items():
        if recent == 0:
            continue
        fewer = without["moved_bytes"] / rows["moved_bytes"]
        faster, fetched = without["step_s"] / rows["step_s"], without["fetch_s"] / rows["fetch_s"]
        parts.append(
            f"R = {recent}: hit rate {sources.with_interval(rows['hit_rate'])}, bytes moved reduced by a factor of "
            f"{sources.with_interval(fewer, 1)}, the time of fetches by {sources.with_interval(fetched, 1)}, tokens "
            f"per second × {sources.with_interval(faster)}"
        )
    return "; ".join(parts)
