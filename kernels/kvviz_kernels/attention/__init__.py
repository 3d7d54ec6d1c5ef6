"""Attention over selected tokens, their softmax weights, and merging of partial attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..dispatch import Impl, form, use_fused
from ..selection.shared import Group, check_group
from . import naive

__all__ = ["gather_attention", "gather_weights", "merge_attention"]


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
    """Attention of one query token over the selected tokens: output [B, Q, D] and log-sum-exp float32 [B, Q].

    queries [B, Q, D]; keys and values [B, H, N, D], with any strides, never copied as a whole; indices int64 [B, R, S]:
    positions in [0, N), or -1 for padding, with R == H (a group shares its tokens) or R == Q (one row per query head).
    `padded=False` promises that there is no padding, which saves time. bias float [B, R, S] is added to the logits;
    -inf excludes a token. softcap: logits become softcap·tanh(logits / softcap) before the bias (Gemma 2, arXiv
    2408.00118, section 2).

    Keys and values may be views expanded over sequences and heads (stride 0), that is one pool of rows for all;
    indices are then positions in the pool. It is fastest if keys and values are in one row of memory,
    keys = rows[..., :D] and values = rows[..., D:], which is then read once.

    Logits and softmax are float32; the output has the dtype of `queries`; the log-sum-exp (natural log) is that of the
    final logits. A row without tokens gives output 0 and log-sum-exp -inf. Padding is never attended to. No gradients.
    Raises ValueError if R is neither H nor Q, or H does not divide Q.

    If batch times heads would leave a GPU idle, the fused form splits the slots over programs and merges the parts in a
    second launch (Flash-Decoding, Dao et al., pytorch.org/blog/flash-decoding, October 2023).
    """
    query_heads, kv_heads, rows = queries.shape[1], keys.shape[1], indices.shape[1]
    if query_heads % kv_heads:
        wanted = f"a multiple of the {kv_heads} key/value heads"
        raise ValueError(f"gather_attention: got {query_heads} query heads; wanted {wanted}")
    if rows not in (kv_heads, query_heads):
        wanted = f"{kv_heads} (key/value) or {query_heads} (query)"
        raise ValueError(f"gather_attention: got indices for {rows} heads; wanted {wanted}")
    options: dict[str, Any] = {"scale": scale, "bias": bias, "softcap": softcap, "padded": padded}
    chosen = form("gather_attention", impl, queries, keys, values, dense=True)
    if chosen == "fused":
        from . import fused

        return fused.gather_attention(queries, keys, values, indices, **options)
    if chosen == "compiled":
        from . import compiled

        return compiled.gather_attention(queries, keys, values, indices, **options)
    return naive.gather_attention(queries, keys, values, indices, **options)


def gather_weights(
    queries: Tensor,
    keys: Tensor,
    indices: Tensor,
    *,
    scale: float,
    group: Group,
    softcap: float | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """Softmax weights of selected tokens among themselves, float32 [B, R, S], reduced over the group; -1 for padding.

    queries [B, Q, D]; keys [B, H, N, D], with any strides; indices int64 [B, R, S]: positions in [0, N), or -1 for
    padding. Each query's weights over the tokens of its row add up to 1, before `group` reduces them: "mean", "max" or
    "sum" over the query heads of a KV head (R = H), or "each" (R = Q). softcap: as in `gather_attention`. Computed in
    float32. It has no fused form; "auto" is naive on a GPU. No gradients. Raises ValueError for another `group`, R that
    does not match it, H that does not divide Q, or impl="fused".

    Source: the reranking of CTkvr (arXiv 2512.15550), section 3.2.
    """
    check_group("gather_weights", group, queries.shape[1], keys.shape[1])
    rows = queries.shape[1] if group == "each" else keys.shape[1]
    if indices.shape[1] != rows:
        wanted = f"{rows} rows for group={group!r}"
        raise ValueError(f"gather_weights: got indices with {indices.shape[1]} rows; wanted {wanted}")
    if impl == "fused":
        raise ValueError("gather_weights: got impl='fused', which it does not have; wanted 'auto', 'naive', 'compiled'")
    options: dict[str, Any] = {"scale": scale, "group": group, "softcap": softcap}
    if form("gather_weights", impl, queries, keys, dense=True) == "compiled":
        from . import compiled

        return compiled.gather_weights(queries, keys, indices, **options)
    return naive.gather_weights(queries, keys, indices, **options)


def merge_attention(outputs: list[Tensor], lses: list[Tensor], *, impl: Impl = "auto") -> tuple[Tensor, Tensor]:
    """Attention over a union of disjoint token sets, `(output, lse)`: partial attention merged by log-sum-exp.

    outputs are [B, Q, D], lses float32 [B, Q] (natural logarithm of the sum of exponentiated logits). The result has
    the dtype of the first output. A set without tokens has log-sum-exp -inf and no weight, whatever its output holds;
    if no set has tokens, the output is 0 and the log-sum-exp -inf. No gradients. Raises ValueError for no sets, or
    different numbers of outputs and log-sum-exps.

    Source: online softmax (Milakov & Gimelshein, arXiv 1805.02867, section 3).
    """
    if not outputs or len(outputs) != len(lses):
        wanted = "the same number of both, at least one"
        raise ValueError(f"merge_attention: got {len(outputs)} outputs and {len(lses)} log-sum-exps; wanted {wanted}")
    if use_fused("merge_attention", impl, outputs[0]):
        from . import fused_merge

        return fused_merge.merge_attention(outputs, lses)
    return naive.merge_attention(outputs, lses)
