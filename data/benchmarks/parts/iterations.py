"""The iterations of PQCache's clustering that one layer's prefill hides on this machine (its equations 1 to 3)."""

from __future__ import annotations

from typing import Any

from .inputs import model, prose

LENGTHS = (1024, 2048, 4096, 8192)


def run() -> dict[str, Any]:
    """The fit, its measurements, and the iterations that it allows."""
    import torch

    from kvviz.clustering.iterations import fit_iterations, profile_clustering, profile_compute

    lm = model()
    ids, geometry = lm.encode(prose()), lm.geometry

    def prefill(tokens: int) -> None:
        with torch.no_grad():
            lm.model(ids[:, :tokens], logits_to_keep=1)

    compute = profile_compute(prefill, LENGTHS, n_layers=geometry.n_layers, repeats=1)
    clustering = profile_clustering(LENGTHS, n_heads=geometry.n_kv_heads, head_dim=geometry.head_dim)
    fit = fit_iterations(clustering, compute)
    print(fit.describe(), flush=True)
    return {
        "lengths": LENGTHS,
        "description": fit.describe(),
        "allowed": [fit.max_iterations(tokens) for tokens in LENGTHS],
        "table": fit.table().astype(object).where(fit.table().notna(), None).to_dict("records"),
    }
