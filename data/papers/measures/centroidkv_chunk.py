"""CentroidKV's figure 1: one round of chunked soft matching on real keys."""

from __future__ import annotations

from typing import Any

from measures import Rows, measure, texts


@measure(tokens=64, layer=2, sinks=4, chunk_size=16)
def centroidkv_chunk(
    lm: Any, tokens: int = 256, layer: int = 14, head: int = 0, sinks: int = 16, chunk_size: int = 12,
    ratio: float = 0.8,
) -> Rows:  # fmt: skip
    """Per token after the sinks: its chunk, side and link, whether the link is kept, its centroid and that's degree.

    Links and similarities are those of the kernel that `chunked_soft_matching` calls; centroids and degrees are its
    result.
    """
    import torch
    from kvviz_kernels.matching import link_sources

    import kvviz

    (ids,) = texts(lm, tokens, 1)
    trace = kvviz.capture(lm, ids, layers=(layer,))
    parts = (trace.keys[layer][head, sinks:], trace.values[layer][head, sinks:])
    keys, values = (torch.from_numpy(part.astype("float32")) for part in parts)
    merged = kvviz.clustering.chunked_soft_matching(
        keys, values, torch.ones(len(keys), dtype=torch.int32), chunk_size=chunk_size, ratio=ratio
    )
    partners, cosines = (part[0] for part in kvviz.kernels.soft_match(keys[None], chunk_size))
    sources = link_sources(len(keys), chunk_size, keys.device)
    links = dict(zip(sources.tolist(), zip(partners.tolist(), cosines.tolist(), strict=True), strict=True))
    rows = []
    for token, centroid in enumerate(merged.members.tolist()):
        partner, cosine = links.get(token, (None, None))
        rows.append({
            "token": token, "text": trace.tokens[sinks + token], "chunk": token // chunk_size,
            "side": "B" if token % chunk_size % 2 else "A", "partner": partner, "cosine": cosine,
            "kept": partner is not None and centroid == int(merged.members[partner]), "centroid": centroid,
            "degree": int(merged.degree[centroid]),
        })  # fmt: skip
    return rows
