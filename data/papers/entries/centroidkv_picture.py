"""The picture of CentroidKV's figure 1: chunks, sides, links and degrees of real keys."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import sources
from plotly.colors import sample_colorscale

from kvviz.plots.labels import escape, heading, set_title
from kvviz.plots.theme import MAP, color_bar, color_bar_entry, ink, method_style, template_name

SHOWN = 2  # chunks
ENTRIES, SIDES = 0, {"B": 1, "A": 2}  # heights
MOST = 0.8  # of the colour map: its end is too light for a white page


def chunks() -> go.Figure:
    """Tokens of the first chunks on sides A and B, their links by cosine, and what is left, with degrees."""
    whole = sources.measured("centroidkv_chunk")
    table, about = whole[whole["chunk"] < SHOWN], whole.attrs
    links = table.dropna(subset="partner")
    low, high = float(links["cosine"].min()), float(links["cosine"].max())
    figure = go.Figure([_link(link, low, high) for link in links.sort_values("kept").to_dict("records")])
    color = ink(False)
    for side, height in SIDES.items():
        tokens = table[table["side"] == side]
        symbol = {"A": "circle", "B": "square"}[side]
        figure.add_trace(_points(tokens, height, tokens["text"], size=6, color=color.foreground, symbol=symbol))
    left = table[~table["token"].isin(links.loc[links["kept"], "token"])]
    size, merged = 5 + 4 * (left["degree"] - 1) ** 0.5, method_style("centroidkv")["color"]
    figure.add_trace(_points(left, ENTRIES, left["degree"], size=size, color=merged, symbol="circle"))
    for row in left[left["degree"] > 1].to_dict("records"):
        figure.add_annotation(x=row["token"], y=ENTRIES, text=str(row["degree"]), showarrow=False, yshift=-18)
    for chunk in range(1, SHOWN):
        figure.add_vline(x=int(table.loc[table["chunk"] == chunk, "token"].min()) - 0.5, line={"color": color.muted})
    for name, line in (("merged", {"color": _at(0.5), "width": 2}), ("pruned", {"color": color.muted, "dash": "dot"})):
        figure.add_scatter(x=[None], y=[None], mode="lines", name=f"link, {name}", line=line)
    shades = [[share, _at(share)] for share in (0, 0.25, 0.5, 0.75, 1)]
    scale = {"colorscale": shades, "cmin": low, "cmax": high, "colorbar": color_bar("cosine of link")}
    figure.add_trace(color_bar_entry(scale))
    heights = {"left, with degree": ENTRIES, "side B": SIDES["B"], "side A": SIDES["A"]}
    figure.update_yaxes(
        tickvals=list(heights.values()), ticktext=list(heights), range=[-0.5, 2.3], showgrid=False, zeroline=False
    )
    figure.update_xaxes(title_text="token after the sinks", showgrid=False, zeroline=False)
    figure.update_layout(template=template_name(False), height=400)
    place = f"layer {about['sizes']['layer']}, KV head {about['sizes']['head']}"
    set_title(figure, heading(None, ["One round of chunked soft matching", place]))
    return figure


def _link(link: dict[str, Any], low: float, high: float) -> go.Scatter:
    """A line from a token of A to its most similar token of B in the chunk."""
    share = (link["cosine"] - low) / (high - low)
    line = {"color": _at(share), "width": 2} if link["kept"] else {"color": ink(False).muted, "dash": "dot"}
    return go.Scatter(
        x=[link["token"], link["partner"]], y=[SIDES["A"], SIDES["B"]], mode="lines", line=line, showlegend=False,
        hovertemplate=f"cosine {link['cosine']:.3f}<extra></extra>",
    )  # fmt: skip


def _points(tokens: Any, height: int, words: Any, **marker: Any) -> go.Scatter:
    """Marks at the tokens' positions."""
    return go.Scatter(
        x=tokens["token"], y=[height] * len(tokens), mode="markers", customdata=[escape(str(word)) for word in words],
        marker=marker, showlegend=False, hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip


def _at(share: float) -> str:
    """A colour that contrasts with a white page, from dark (0) to light (1)."""
    color: str = sample_colorscale(MAP, [MOST * share])[0]
    return color
