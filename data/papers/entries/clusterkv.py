"""ClusterKV (arXiv 2412.03213): figures 1 to 13 and table I."""

from __future__ import annotations

import sources

from entries import Finding, entry
from kvviz import plots


@entry(
    "ClusterKV", "fig. 3",
    headline="(a) tokens that matter little at one step matter at another; (b) a page of 16 tokens holds one or two "
    "important tokens",
    claim="the median token among the 64 most important of one step falls below rank 512 at another, and a page with "
    "an important token holds at most two of them in the median",
    call="kvviz.plots.importance_drift(trace, 14, 0); kvviz.plots.page_fragmentation(trace, 14, 0)",
)  # fmt: skip
def importance_and_pages() -> Finding:
    """How the importance of tokens changes over decoding steps, and how important tokens are spread over pages."""
    table = sources.measured("importance_and_pages")
    by_text = table.groupby("text").mean()
    return Finding(
        ours=f"(a) worst rank {sources.with_interval(by_text['worst_rank'], 0)}; (b) important tokens per page that "
        f"holds one: {sources.with_interval(by_text['tokens_per_page'])}, median "
        f"{table['median_tokens_per_page'].median():.0f}; {100 * by_text['wasted'].mean():.0f} % of such a page is "
        "wasted",
        holds=bool(table["worst_rank"].median() > 512 and table["median_tokens_per_page"].median() <= 2),
        run=sources.described(table, "all layers and KV heads, sinks and recent window left out"),
        draw=lambda: plots.page_fragmentation(sources.runs().trace("prose"), 14, 0),
    )
