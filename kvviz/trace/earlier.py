"""Group names, styles and titles of methods, for data written before recordings and tables stored them.

The lists are closed: each method now declares its `group_name` and `style`, and its data carry them.
"""

from __future__ import annotations

GROUP_NAMES = {"quest": "page", "pqcache": "block", "infllm": "block", "shadowkv": "chunk", "ctkvr": "query centroid",
               "centroidkv": "centroid"}  # fmt: skip

_RETRIEVAL, _EVICTION, _PREFILL = "#7A8CA3", "#A3877A", "#86957E"
# Colour, dash and symbol.
STYLES: dict[str, tuple[str, str, str]] = {
    "clusterkv": ("#0072B2", "solid", "circle"),
    "centroidkv": ("#D55E00", "dash", "diamond"),
    "pqcache": ("#009E73", "solid", "square"),
    "ctkvr": ("#CC79A7", "dashdot", "triangle-up"),
    "quest": ("#E69F00", "dash", "triangle-down"),
    "streaming_llm": ("#56B4E9", "dot", "x"),
    "oracle": ("foreground", "solid", "diamond-tall"),
    "full": ("muted", "dot", "line-ew-open"),
    "h2o": (_EVICTION, "solid", "circle-open"),
    "snapkv": (_EVICTION, "dash", "square-open"),
    "pyramidkv": (_EVICTION, "dot", "triangle-up-open"),
    "infinigen": (_RETRIEVAL, "solid", "circle-open"),
    "sparq": (_RETRIEVAL, "dash", "square-open"),
    "infllm": (_RETRIEVAL, "dot", "diamond-open"),
    "shadowkv": (_RETRIEVAL, "dashdot", "triangle-up-open"),
    "magicpig": (_RETRIEVAL, "longdash", "triangle-down-open"),
    "retrieval_attention": (_RETRIEVAL, "longdashdot", "star-open"),
    "squeezed_attention": (_RETRIEVAL, "dash", "cross-open"),
    "minference": (_PREFILL, "solid", "hexagon-open"),
}
# For processes that draw without loading the methods.
TITLES = {
    "clusterkv": "ClusterKV",
    "centroidkv": "CentroidKV",
    "pqcache": "PQCache",
    "ctkvr": "CTkvr",
    "quest": "Quest",
    "streaming_llm": "StreamingLLM",
    "oracle": "Oracle (exact top tokens)",
    "full": "Full attention",
    "h2o": "H2O",
    "snapkv": "SnapKV",
    "pyramidkv": "PyramidKV",
    "infinigen": "InfiniGen",
    "sparq": "SparQ Attention",
    "infllm": "InfLLM",
    "shadowkv": "ShadowKV",
    "magicpig": "MagicPIG",
    "retrieval_attention": "RetrievalAttention",
    "squeezed_attention": "Squeezed Attention",
    "minference": "MInference",
}
