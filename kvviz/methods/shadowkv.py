"""ShadowKV: chunks ranked by their mean keys; outlier chunks are always attended to, other keys can be low-rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ..errors import InvalidInputError
from ..offload.growing import GrowingTensor
from ..trace.styles import Style
from .attention import attention_weights
from .base import LayerContext, Method
from .fields import number, whole
from .ranking import Ranking, of_groups
from .selection import Group, Selection, positions, reduce_group, to_selection_heads
from .state import TokenState, tensor_bytes


@dataclass
class LowRankKeys:
    """Low-rank keys of the tokens in chunks: `coefficients` [B, n, r] times `basis` [B, H, r, D]."""

    coefficients: Tensor
    basis: Tensor


@dataclass
class ShadowKVState(TokenState):
    """A state with the outlier chunks and the landmarks of the other chunks.

    Chunks from number `exact_from` on are of generated tokens; their keys stay exact.
    """

    auxiliary = ("landmarks", "low_rank")

    start: int  # of the first chunk
    end: int  # of the last chunk
    outliers: Tensor  # [B, H, O], chunk numbers, that with the least similar key first
    others: GrowingTensor  # [B, H, C-O], ascending chunk numbers
    landmarks: GrowingTensor  # [B, H, C-O, D], mean keys of the other chunks
    low_rank: LowRankKeys | None
    exact_from: int

    def read_bytes(self) -> int:
        """Bytes of all metadata except the coefficients, which a step reads only for recalled tokens."""
        return self.metadata_bytes() - (0 if self.low_rank is None else tensor_bytes(self.low_rank.coefficients))


@dataclass
class ShadowKV(Method[ShadowKVState]):
    """Recalls the chunks of `chunk_size` tokens whose mean keys get the largest softmax weights.

    Source: ShadowKV (arXiv 2410.21465), section 4. Post-RoPE keys after the sinks are cut into chunks; the landmark of
    a chunk is its mean key. Outliers are the chunks with the key least similar (cosine) to its landmark. Outliers, the
    last `recent` tokens and an unfinished chunk are always attended to. The weights of a query head are a softmax of
    q·landmark over all other chunks; `group` reduces them over the query heads of a KV head, by default by their
    maximum, as in the published code. Chunks are recalled whole.

    In the paper all generated tokens are always attended to, on top of the budget, and never cut into chunks:
    generated="on_top". By default they count within the budget, where they would soon take all of it. So eight of them
    that left the recent window form a chunk with a landmark, ranked like those of the prompt (eight is `chunk_size`).
    Outliers always come from the prompt.

    The paper has 48 outlier chunks, 384 tokens, in addition to a budget of 2,048. Here they are part of the budget:
    they take at most the share `outlier_share` of what sinks and recent tokens leave, which is 48 chunks from a budget
    of about 2,440 on, and 19 at 1,024.

    `rank` replaces the keys of recalled chunks by low-rank ones (paper: 160); outliers, recent and generated tokens
    stay exact, as in the paper, also in chunks. The factors are the best of their rank over all KV heads together, [L,
    H·D], as in the paper. The cache still holds the exact keys, and a bias turns each logit into that of the
    approximate key. The bias differs per query head, so it needs group="each". The factors count as metadata.

    `rope_base` factorises keys *before* RoPE, as the paper does, because their rank is low (figure 1). A method gets
    keys after RoPE, which rotates each pair of channels by position · base^(−2i/D). With the model's base (`rope_theta`
    of its config) that is undone before the factorisation, and recalled keys are rotated again. Token i has position i;
    an offset common to all tokens changes nothing. It must be plain RoPE over the whole head that pairs channel i with
    i + D/2, as in Llama 2, Mistral, Qwen2 and SmolLM2; scaled frequencies (Llama 3.1, YaRN) are not undone. None, the
    default, factorises keys after RoPE, whose rank is much higher: with rank 32 of 192, the output error of SmolLM2's
    layer 14 is 0.156 instead of 0.060 (2,048 tokens of prose, budget 256).

    No preset has the paper's low-rank keys, since `rope_base` belongs to the model, which a preset does not know. For a
    model with plain RoPE: `group="each", rank=160, rope_base=model.config.rope_parameters["rope_theta"]`. The rank is
    limited to H·D, which is 192 for SmolLM2-135M and 1,024 in the paper: a smaller rank compares better there.

    Deviations: there is a field for sinks (the paper has only its outliers); the default `rank` None keeps all keys
    exact.
    """

    name = "shadowkv"
    title = "ShadowKV"
    paper = "arXiv 2410.21465"
    score_name = "attention weight of a chunk's mean key"
    kind = "retrieval"
    stages = ("kept", "grouping", "ranking")
    group_name = "chunk"
    style = Style(dash="dashdot", symbol="triangle-up-open")
    needs_queries = False
    least_recent = 1

    recent: int = 32
    group: Group = "max"
    chunk_size: int = whole(8, 1)
    n_outliers: int = whole(48, 0)
    outlier_share: float = number(0.16, 0, 1)
    rank: int | None = whole(None, 1)
    rope_base: float | None = number(None, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank is not None and self.group != "each":
            raise InvalidInputError(f"{self.name}: rank", f"{self.rank} with group={self.group!r}", 'group="each"')
        if self.rope_base is not None and self.rank is None:
            raise InvalidInputError(f"{self.name}: rope_base", f"{self.rope_base} without a rank", "a rank, or None")

    @property
    def reserved(self) -> int:
        """Sinks, the recent window, and an unfinished chunk."""
        return self.sinks + self.always_recent + self.chunk_size - 1

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> ShadowKVState:
        """The state with outliers, landmarks and, for a `rank`, low-rank keys; O(L·D), with a rank O(L·(H·D)²)."""
        length = keys.shape[2]
        start = min(self.sinks, length)
        count = max(length - self.always_recent - start, 0) // self.chunk_size
        end = start + count * self.chunk_size
        chunks = keys[:, :, start:end].float().unflatten(2, (count, self.chunk_size))  # [B, H, C, chunk, D]
        means = chunks.mean(3)
        similarity = cosine_similarity(means[:, :, :, None], chunks, dim=-1).amin(-1)  # [B, H, C], least similar key
        ranked = similarity.argsort(dim=-1, stable=True)
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
            ranked[..., :n_outliers],
            GrowingTensor(others, 2),
            GrowingTensor(landmarks, 2),
            None if self.rank is None else self._low_rank_keys(keys[:, :, start:end], start, self.rank),
            exact_from=count,
        )

    def extend(self, state: ShadowKVState, queries: Tensor, keys: Tensor, values: Tensor) -> ShadowKVState:
        """The state with the new tokens added; within the budget, tokens that left the window form chunks."""
        state.append(keys, values)
        if self.generated == "on_top":
            return state
        start = self.recent_start(state)  # beyond `end` only after a prompt within the sinks
        count = max(state.length - self.always_recent - start, 0) // self.chunk_size
        if count:
            if start > state.end:
                state.start = state.end = start
            state.end += count * self.chunk_size
            chunked = state.tokens.take_keys(positions(start, state.end, *keys.shape[:2], keys.device))
            landmarks = chunked.float().unflatten(2, (count, self.chunk_size)).mean(3)
            first = (start - state.start) // self.chunk_size
            state.landmarks.append(landmarks.to(keys.dtype))
            state.others.append(positions(first, first + count, *keys.shape[:2], keys.device))
        return state

    def recent_start(self, state: ShadowKVState) -> int:
        """The first token after the last chunk."""
        return max(state.end, self.sinks)

    def local_window(self, state: ShadowKVState) -> int:
        """The recent window and, if generated tokens form chunks, an unfinished one, whose keys are needed then."""
        return self.always_recent if self.generated == "on_top" else state.length - self.recent_start(state)

    def choose(self, state: ShadowKVState, queries: Tensor) -> Selection:
        """Sinks, outliers, the best chunks within the budget, and all tokens after the last chunk."""
        layer, scores = state.layer, self._scores(state, queries)
        heads, size = scores.shape[1], self.chunk_size
        room = self.free_budget(state) // size  # generated tokens may leave none, not even for all outliers
        outliers = to_selection_heads(state.outliers[..., :room], heads)
        best = scores.argsort(dim=-1, descending=True, stable=True)[..., : room - outliers.shape[-1]]
        chunks = torch.cat([outliers, to_selection_heads(state.others.tensor, heads).gather(-1, best)], dim=-1)
        chunks, order = chunks.sort(-1)
        offsets = torch.arange(size, device=chunks.device)
        indices = (state.start + chunks[..., None] * size + offsets).flatten(-2)  # [B, R, S]
        recalled = order >= outliers.shape[-1]
        chosen = Selection(indices, bias=self._bias(state, queries, indices, recalled & (chunks < state.exact_from)))
        if layer.details:
            outlier_scores = torch.full_like(outliers, torch.nan, dtype=scores.dtype)
            chunk_scores = torch.cat([outlier_scores, scores.gather(-1, best)], dim=-1)
            groups = chunks.masked_fill(~recalled, -1).repeat_interleave(size, dim=-1).to(torch.int32)
            token_scores = chunk_scores.gather(-1, order).repeat_interleave(size, dim=-1)
            chosen = replace(chosen, groups=groups, scores=token_scores)
        return self.with_sinks_and_recent(state, chosen)

    def ranking(self, state: ShadowKVState, queries: Tensor, keys: Tensor) -> Ranking:
        """The score of each token's chunk, and the exact weight of the token; outliers are not ranked."""
        layer, scores = state.layer, self._scores(state, queries)
        rows, chunks = scores.shape[1], (state.end - state.start) // self.chunk_size
        others = to_selection_heads(state.others.tensor, rows)
        of_chunk = scores.new_full((*scores.shape[:2], chunks + 1), torch.nan)  # the last place is for other tokens
        of_chunk.scatter_(-1, others, scores)
        ranked = torch.zeros_like(of_chunk, dtype=torch.bool).scatter_(-1, others, True)
        places = torch.arange(state.length, device=keys.device)
        chunk = (places - state.start) // self.chunk_size
        chunk[(places < state.start) | (places >= state.end)] = chunks
        chunk = chunk.expand(*scores.shape[:2], -1)
        groups = torch.where(ranked.gather(-1, chunk), chunk, -1)
        weights = attention_weights(queries, keys, layer.scale, layer.softcap)
        return of_groups(of_chunk[..., :-1], reduce_group(weights, layer.n_kv_heads, self.group), groups)

    def _scores(self, state: ShadowKVState, queries: Tensor) -> Tensor:
        """The scores of all landmarks, [B, R, C-O]."""
        layer = state.layer
        weights = attention_weights(queries, state.landmarks.tensor, layer.scale, layer.softcap)
        return reduce_group(weights, layer.n_kv_heads, self.group)

    def _outliers_allowed(self, prompt_length: int) -> int:
        """The number of outlier chunks that the budget allows."""
        free = self.budget_tokens(prompt_length) - self.reserved
        return min(self.n_outliers, math.floor(self.outlier_share * free / self.chunk_size))

    def _low_rank_keys(self, keys: Tensor, start: int, rank: int) -> LowRankKeys:
        """Low-rank keys of keys [B, H, n, D] from position `start` on, before RoPE with a `rope_base`."""
        if self.rope_base is not None:
            positions = torch.arange(start, start + keys.shape[2], device=keys.device)
            keys = _rotated(keys.float(), -positions, self.rope_base)
        return _low_rank(keys, rank)

    def _bias(self, state: ShadowKVState, queries: Tensor, indices: Tensor, approximate: Tensor) -> Tensor | None:
        """Bias [B, Q, S] that turns logits of `approximate` chunks [B, Q, C'] into those of low-rank keys; else 0."""
        if state.low_rank is None:
            return None
        columns = queries.float()[..., None]  # [B, Q, D, 1]
        keys = state.tokens.take_keys(indices).float()  # [B, Q, S, D]
        exact = state.layer.logits((keys @ columns)[..., 0])
        basis = to_selection_heads(state.low_rank.basis, queries.shape[1])  # [B, Q, r, D]
        batch_rows = torch.arange(indices.shape[0], device=indices.device)[:, None, None]
        known = state.low_rank.coefficients
        if not known.shape[1]:  # the prompt has no chunk
            return None
        coefficients = known[batch_rows, (indices - state.start).clamp(max=known.shape[1] - 1)]  # [B, Q, S, r]
        if self.rope_base is None:
            products = coefficients @ (basis @ columns)
        else:
            products = _rotated(coefficients @ basis, indices, self.rope_base) @ columns
        error = state.layer.logits(products[..., 0]) - exact
        return error * approximate.repeat_interleave(self.chunk_size, dim=-1)


def _low_rank(keys: Tensor, rank: int) -> LowRankKeys:
    """The best approximation of keys [B, H, n, D] with rank `rank`; a row holds all heads of a token.

    Projection onto the leading right singular vectors gives the truncated SVD (Eckart and Young). They are eigenvectors
    of the Gram matrix [H·D, H·D], whose size does not depend on the number of tokens.
    """
    heads, dim = keys.shape[1], keys.shape[3]
    rows = keys.float().transpose(1, 2).flatten(2)  # [B, n, H·D]
    gram = torch.einsum("bnd,bne->bde", rows.double(), rows.double())
    leading = torch.linalg.eigh(gram).eigenvectors[..., -min(rank, heads * dim) :].float()  # [B, H·D, r]
    basis = leading.transpose(1, 2).unflatten(-1, (heads, dim)).transpose(1, 2)  # [B, H, r, D]
    return LowRankKeys(rows @ leading, basis.contiguous())


def _rotated(vectors: Tensor, positions: Tensor, base: float) -> Tensor:
    """Vectors [..., S, D] rotated by RoPE to integer `positions` [..., S]; negative positions rotate back.

    Angles are computed in float32, as transformers computes them, so that they are the same at far positions too.
    """
    half = vectors.shape[-1] // 2
    if vectors.shape[-1] % 2:
        raise InvalidInputError("shadowkv: rope_base", f"a head dimension of {vectors.shape[-1]}", "an even one")
    frequencies = 1.0 / base ** (torch.arange(half, device=vectors.device, dtype=torch.float32) / half)
    angles = positions[..., None].float() * frequencies
    cosine, sine = angles.cos(), angles.sin()
    first, second = vectors[..., :half], vectors[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
