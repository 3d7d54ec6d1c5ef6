"""ShadowKV: chunks ranked by their mean keys, outlier chunks always attended, low-rank keys for the others."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from kvviz_kernels.softcap import softcap_
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ..errors import InvalidInputError
from ..trace.styles import Style
from .attention import attention_weights
from .base import LayerContext, Method
from .fields import number, whole
from .selection import Group, Selection, reduce_group, to_selection_heads
from .state import TokenState, tensor_bytes


@dataclass
class LowRankKeys:
    """Keys as products: `coefficients` [B, n, r] of the tokens in chunks times `basis` [B, H, r, D]."""

    coefficients: Tensor
    basis: Tensor


@dataclass
class ShadowKVState(TokenState):
    """Beside the counts, which chunks are outliers and the landmarks of the others."""

    auxiliary = ("landmarks", "low_rank")

    start: int  # of the first chunk
    end: int  # of the last chunk
    outliers: Tensor  # [B, H, O], ascending chunks
    others: Tensor  # [B, H, C-O], ascending chunks
    landmarks: Tensor  # [B, H, C-O, D], mean keys of the others
    low_rank: LowRankKeys | None

    def read_bytes(self) -> int:
        """Bytes of all metadata but the coefficients of keys, of which a step reads those of recalled tokens alone."""
        return self.metadata_bytes() - (0 if self.low_rank is None else tensor_bytes(self.low_rank.coefficients))


@dataclass
class ShadowKV(Method[ShadowKVState]):
    """Recalls the chunks of `chunk_size` tokens whose mean keys get the largest softmax weights.

    Source: ShadowKV (arXiv 2410.21465), section 4. Post-RoPE keys are cut into chunks from the sinks on, each with
    its mean as landmark. The chunks whose least similar key (cosine) is furthest from its landmark are
    outliers and always attended, and so are the last `recent` tokens, the chunk that is not full, and every generated
    token. The weights of a query head are a softmax of q·landmark over all but the outliers; `group` reduces them over
    the query heads of a KV head, by their maximum as in the published code. Recall is by whole chunks.

    The paper counts its 48 outlier chunks, 384 tokens, beside a budget of 2,048. Here they are part of the budget, and
    `outlier_share` bounds them to that part of it that no sinks and recent tokens take: 48 chunks from a budget of
    about 2,440 on, 19 at 1,024.

    `rank` makes the logits of recalled chunks those of low-rank keys (paper: 160), with outliers, recent and generated
    tokens exact as in the paper. It is None, exact keys, by default, for a reason: the paper factorises keys *before*
    RoPE, whose rank is low; a method here sees keys after RoPE, which are of much higher rank (paper, figure 1). The
    factors are the best of their rank over all KV heads together, [L, H·D], as in the paper. The cache still holds the
    exact keys, and a bias turns each logit into that of the approximate key. A bias of its own for every query head
    needs group="each". The factors count as metadata.

    Deviations: the sinks are a field (the paper has none but its outliers); RoPE is never recomputed.
    """

    name = "shadowkv"
    title = "ShadowKV"
    paper = "arXiv 2410.21465"
    kind = "retrieval"
    group_name = "chunk"
    style = Style(dash="dashdot", symbol="triangle-up-open")
    needs_queries = False
    expected_failures = {
        "extension_equals_one_build": "generated tokens are attended in full and never cut into chunks",
    }

    recent: int = 32
    group: Group = "max"
    chunk_size: int = whole(8, 1)
    n_outliers: int = whole(48, 0)
    outlier_share: float = number(0.16, 0, 1)
    rank: int | None = whole(None, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank is not None and self.group != "each":
            raise InvalidInputError(f"{self.name}: rank", f"{self.rank} with group={self.group!r}", 'group="each"')

    @property
    def reserved(self) -> int:
        """Sinks, the recent window, and a chunk that is not full."""
        return self.sinks + self.recent + self.chunk_size - 1

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> ShadowKVState:
        """Landmarks, outliers and, with a `rank`, the factors of the keys; O(L·D), with a rank O(L·(H·D)²)."""
        length = keys.shape[2]
        start = min(self.sinks, length)
        count = max(length - self.recent - start, 0) // self.chunk_size
        end = start + count * self.chunk_size
        chunks = keys[:, :, start:end].float().unflatten(2, (count, self.chunk_size))  # [B, H, C, chunk, D]
        means = chunks.mean(3)
        nearness = cosine_similarity(means[:, :, :, None], chunks, dim=-1).amin(-1)  # [B, H, C], of the furthest key
        ranked = nearness.argsort(dim=-1, stable=True)
        n_outliers = min(self._outliers_allowed(length), count)
        others = ranked[..., n_outliers:].sort(-1).values
        landmarks = means.gather(2, others[..., None].expand(-1, -1, -1, keys.shape[-1])).to(keys.dtype)
        return ShadowKVState(
            layer,
            length,
            length,
            layer.token_cache(keys, values),
            start,
            end,
            ranked[..., :n_outliers].sort(-1).values,
            others,
            landmarks,
            None if self.rank is None else _low_rank(keys[:, :, start:end], self.rank),
        )

    def recent_start(self, state: ShadowKVState) -> int:
        """The first token behind the last chunk."""
        return state.end

    def choose(self, state: ShadowKVState, queries: Tensor) -> Selection:
        """Sinks, outliers, the best chunks within the budget, and all tokens behind the last chunk."""
        layer = state.layer
        weights = attention_weights(queries, state.landmarks, layer.scale, layer.softcap)
        scores = reduce_group(weights, layer.n_kv_heads, self.group)  # [B, R, C-O]
        heads, size = scores.shape[1], self.chunk_size
        count = (self.free_budget(state) - state.outliers.shape[-1] * size) // size
        best = scores.argsort(dim=-1, descending=True, stable=True)[..., :count]
        outliers = to_selection_heads(state.outliers, heads)
        chunks = torch.cat([outliers, to_selection_heads(state.others, heads).gather(-1, best)], dim=-1)
        chunks, order = chunks.sort(-1)
        within = torch.arange(size, device=chunks.device)
        indices = (state.start + chunks[..., None] * size + within).flatten(-2)  # [B, R, S]
        recalled = order >= outliers.shape[-1]
        chosen = Selection(indices, bias=self._bias(state, queries, indices, recalled))
        if layer.details:
            unranked = torch.full_like(outliers, torch.nan, dtype=scores.dtype)
            ranked_by = torch.cat([unranked, scores.gather(-1, best)], dim=-1)
            chosen = Selection(
                indices,
                chunks.masked_fill(~recalled, -1).repeat_interleave(size, dim=-1).to(torch.int32),
                ranked_by.gather(-1, order).repeat_interleave(size, dim=-1),
                bias=chosen.bias,
            )
        return self.with_sinks_and_recent(state, chosen)

    def _outliers_allowed(self, prompt_length: int) -> int:
        """The number of outlier chunks that the budget has room for."""
        free = self.budget_tokens(prompt_length) - self.reserved
        return min(self.n_outliers, math.floor(self.outlier_share * free / self.chunk_size))

    def _bias(self, state: ShadowKVState, queries: Tensor, indices: Tensor, recalled: Tensor) -> Tensor | None:
        """What turns the logits of recalled chunks [B, Q, C'] into those of low-rank keys: [B, Q, S], 0 elsewhere."""
        if state.low_rank is None:
            return None
        asking = queries.float()
        keys = state.tokens.take_keys(indices).float()  # [B, Q, S, D]
        exact = (keys @ asking[..., None])[..., 0] * state.layer.scale
        basis = to_selection_heads(state.low_rank.basis, queries.shape[1])  # [B, Q, r, D]
        projected = (basis @ asking[..., None])[..., 0]  # [B, Q, r]
        every = torch.arange(indices.shape[0], device=indices.device)[:, None, None]
        coefficients = state.low_rank.coefficients[every, indices - state.start]  # [B, Q, S, r]
        approximate = (coefficients @ projected[..., None])[..., 0] * state.layer.scale
        exact, approximate = (softcap_(logits, state.layer.softcap) for logits in (exact, approximate))
        return (approximate - exact) * recalled.repeat_interleave(self.chunk_size, dim=-1)


def _low_rank(keys: Tensor, rank: int) -> LowRankKeys:
    """The best approximation of rank `rank` of keys [B, H, n, D], all heads of a token in one row.

    Projecting on the leading right singular vectors gives the truncated SVD (Eckart and Young); these vectors come from
    the Gram matrix, [H·D, H·D], whatever the number of tokens.
    """
    heads, dim = keys.shape[1], keys.shape[3]
    rows = keys.float().transpose(1, 2).flatten(2)  # [B, n, H·D]
    gram = torch.einsum("bnd,bne->bde", rows.double(), rows.double())
    leading = torch.linalg.eigh(gram).eigenvectors[..., -min(rank, heads * dim) :].float()  # [B, H·D, r]
    basis = leading.transpose(1, 2).unflatten(-1, (heads, dim)).transpose(1, 2)  # [B, H, r, D]
    return LowRankKeys(rows @ leading, basis.contiguous())
