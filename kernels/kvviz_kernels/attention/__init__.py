"""Attention over selected tokens."""

from __future__ import annotations

from torch import Tensor

from ..dispatch import Impl, use_fused
from . import naive

__all__ = ["gather_attention"]


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
    if use_fused("gather_attention", impl, queries):
        from . import fused

        chosen = fused.gather_attention
    else:
        chosen = naive.gather_attention
    return chosen(queries, keys, values, indices, scale=scale, bias=bias, softcap=softcap, padded=padded)


def _check_heads(query_heads: int, kv_heads: int, rows: int) -> None:
    if query_heads % kv_heads:
        wanted = f"a multiple of the {kv_heads} key/value heads"
        raise ValueError(f"gather_attention: got {query_heads} query heads; wanted {wanted}")
    if rows not in (kv_heads, query_heads):
        wanted = f"{kv_heads} (key/value) or {query_heads} (query)"
        raise ValueError(f"gather_attention: got indices for {rows} heads; wanted {wanted}")
