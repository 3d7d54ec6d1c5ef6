"""Attention over selected tokens, and merging of attention over parts."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..dispatch import Impl, use_fused
from . import naive

__all__ = ["gather_attention", "merge_attention"]


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

    Keys and values may be views expanded over sequences and heads (stride 0): a pool of rows that all share, in which
    indices then count. Keys and values that lie in one row of memory, keys = rows[..., :D] and values = rows[..., D:],
    are read together, which is fastest.

    Logits and softmax are float32; the output has the dtype of `queries`; the log-sum-exp (natural log) is that of the
    final logits. A row without tokens gives output 0 and log-sum-exp -inf. Pads are never read as tokens, whatever
    memory holds there. No gradients. Raises ValueError where R is neither H nor Q, or H does not divide Q.

    The fused form splits the slots over programs and merges the parts in a second launch where batch times heads alone
    would leave a GPU idle (Flash-Decoding, Dao et al., pytorch.org/blog/flash-decoding, October 2023).
    """
    _check_heads(queries.shape[1], keys.shape[1], indices.shape[1])
    options: dict[str, Any] = {"scale": scale, "bias": bias, "softcap": softcap, "padded": padded}
    if use_fused("gather_attention", impl, queries):
        from . import fused

        return fused.gather_attention(queries, keys, values, indices, **options)
    return naive.gather_attention(queries, keys, values, indices, **options)


def merge_attention(outputs: list[Tensor], lses: list[Tensor], *, impl: Impl = "auto") -> tuple[Tensor, Tensor]:
    """Attention over the union of disjoint token sets from the attention over each, by log-sum-exp.

    outputs are [B, Q, D], lses float32 [B, Q] (natural logarithm of the sum of exponentiated logits); returns one of
    each, the output in the dtype of the first. A set without tokens has log-sum-exp -inf and weighs nothing, whatever
    its output holds; where no set has tokens the output is 0 and the log-sum-exp -inf. No gradients. Raises ValueError
    for no sets, or not as many outputs as log-sum-exps.

    Source: online softmax (Milakov & Gimelshein, arXiv 1805.02867, section 3).
    """
    if not outputs or len(outputs) != len(lses):
        wanted = "as many of one as of the other, at least one"
        raise ValueError(f"merge_attention: got {len(outputs)} outputs and {len(lses)} log-sum-exps; wanted {wanted}")
    if use_fused("merge_attention", impl, outputs[0]):
        from . import fused_merge

        return fused_merge.merge_attention(outputs, lses)
    return naive.merge_attention(outputs, lses)


def _check_heads(query_heads: int, kv_heads: int, rows: int) -> None:
    if query_heads % kv_heads:
        wanted = f"a multiple of the {kv_heads} key/value heads"
        raise ValueError(f"gather_attention: got {query_heads} query heads; wanted {wanted}")
    if rows not in (kv_heads, query_heads):
        wanted = f"{kv_heads} (key/value) or {query_heads} (query)"
        raise ValueError(f"gather_attention: got indices for {rows} heads; wanted {wanted}")
