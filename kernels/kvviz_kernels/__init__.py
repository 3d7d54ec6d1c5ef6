"""Kernels of kvviz: plain torch ("naive") beside Triton ("fused"), one signature, chosen here.

Every function takes `impl`: "naive", "fused", or "auto", which is fused for CUDA tensors where Triton is installed and
naive otherwise. Fused kernels need a GPU, or TRITON_INTERPRET=1 (Triton's interpreter: slow, for tests).
"""

from __future__ import annotations

import importlib.util
import logging
import os
from functools import cache
from typing import Literal

from torch import Tensor

from .attention import naive as _naive_attention
from .kmeans import naive as _naive_kmeans
from .kmeans.shared import sort_by_label

__all__ = ["Impl", "gather_attention", "kmeans_assign", "kmeans_update", "sort_by_label"]

Impl = Literal["auto", "naive", "fused"]
_logger = logging.getLogger(__name__)


def kmeans_assign(keys: Tensor, centroids: Tensor, *, metric: str = "cosine", impl: Impl = "auto") -> Tensor:
    """Label of each key's nearest centroid, int64 [..., L]; equal scores go to the lowest label.

    keys [..., L, D] and centroids [..., C, D], the same leading dimensions, any float dtype, computed in float32.
    metric: "cosine" (a zero vector has similarity 0 to everything), "l2" or "ip" (largest inner product).
    Raises ValueError for another metric.
    """
    if _use_fused("kmeans_assign", impl, keys):
        from .kmeans import fused

        return fused.kmeans_assign(keys, centroids, metric=metric)
    return _naive_kmeans.kmeans_assign(keys, centroids, metric=metric)


def kmeans_update(keys: Tensor, labels: Tensor, n_clusters: int, *, impl: Impl = "auto") -> tuple[Tensor, Tensor]:
    """Sum of each cluster's keys, float32 [..., C, D], and its number of keys, int64 [..., C].

    keys [..., L, D], any float dtype; labels int64 [..., L], each in [0, n_clusters). Keys are added in the order of
    their positions, without atomics, so the same input gives the same bits. An empty cluster has sum 0.
    """
    if _use_fused("kmeans_update", impl, keys):
        from .kmeans import fused

        return fused.kmeans_update(keys, labels, n_clusters)
    return _naive_kmeans.kmeans_update(keys, labels, n_clusters)


def gather_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    indices: Tensor,
    *,
    scale: float,
    bias: Tensor | None = None,
    softcap: float | None = None,
    padded: bool = True,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """Attention of one query token over selected tokens only: output [B, Q, D] and log-sum-exp float32 [B, Q].

    queries [B, Q, D]; keys and values [B, H, N, D], of any strides, never copied whole; indices int64 [B, R, S],
    positions in [0, N) or -1 for a pad, with R == H (a group shares its tokens) or R == Q (each query head has its
    own). `padded=False` promises that there are no pads, which saves time. bias float [B, R, S] is added to the logits
    (-inf shuts a token out). softcap: logits become softcap·tanh(logits / softcap) before the bias (Gemma 2,
    arXiv 2408.00118, section 2).

    Logits and softmax are float32; the output has the dtype of `queries`; the log-sum-exp (natural log) is that of the
    final logits. A row without tokens gives output 0 and log-sum-exp -inf. Pads are never read as tokens, whatever
    memory holds there. No gradients. Raises ValueError where R is neither H nor Q, or H does not divide Q.
    """
    _check_heads(queries.shape[1], keys.shape[1], indices.shape[1])
    if _use_fused("gather_attention", impl, queries):
        from .attention import fused

        chosen = fused.gather_attention
    else:
        chosen = _naive_attention.gather_attention
    return chosen(queries, keys, values, indices, scale=scale, bias=bias, softcap=softcap, padded=padded)


def _check_heads(query_heads: int, kv_heads: int, rows: int) -> None:
    if query_heads % kv_heads:
        wanted = f"a multiple of the {kv_heads} key/value heads"
        raise ValueError(f"gather_attention: got {query_heads} query heads; wanted {wanted}")
    if rows not in (kv_heads, query_heads):
        wanted = f"{kv_heads} (key/value) or {query_heads} (query)"
        raise ValueError(f"gather_attention: got indices for {rows} heads; wanted {wanted}")


def _use_fused(kernel: str, impl: str, tensor: Tensor) -> bool:
    if impl == "naive":
        return False
    if impl == "auto":
        fused = tensor.is_cuda and _has_triton()
        _log_once(kernel, "fused" if fused else "naive", tensor.device.type)
        return fused
    if impl != "fused":
        raise ValueError(f"{kernel}: got impl={impl!r}; wanted 'auto', 'naive' or 'fused'")
    if not _has_triton():
        wanted = 'it installed: pip install "kvviz[kernels]"'
        raise ImportError(f"{kernel}: got impl='fused' without Triton; wanted {wanted}")
    if not tensor.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError(f"{kernel}: got impl='fused' for a tensor on {tensor.device}; wanted one on an NVIDIA GPU")
    return True


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@cache
def _log_once(kernel: str, impl: str, device: str) -> None:
    _logger.info("%s: %s on %s", kernel, impl, device)
