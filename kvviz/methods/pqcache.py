"""PQCache: tokens ranked by product-quantized keys, one at a time, wherever they lie."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import torch
from kvviz_kernels.selection import pq_scores
from kvviz_kernels.softcap import softcap_
from torch import Tensor

from ..clustering.iterations import IterationModel
from ..clustering.product_quantization import MAX_BITS, Codebook, product_quantize
from ..errors import InvalidInputError
from ..offload.block_cache import BlockCache
from ..offload.prefetch import PrefetchedTensor
from ..offload.store import TokenCache
from ..trace.styles import Style
from .base import LayerContext, Method, State
from .selection import Group, Selection, reduce_group, surround, take_tokens
from .sliders import Slider

CODE_INTERVAL = 64  # generated tokens that are coded together, unless the window is left earlier
BLOCK_SIZE = 128  # tokens of a block of the paper's device cache (section 4.1.4)


@dataclass
class PQCacheState(State):
    """Beside the counts, the codebooks of all tokens behind the sinks, one after the other.

    A step reads all of it, codes and centroids, and no keys. The paper counts packed codes alone, m·b/8 bytes a token
    (section 4.1.3): here a code takes a byte, or two beyond 8 bits, and the centroids count too.

    `uncoded` are the keys [B, H, n, D] of the newest tokens, which get codes together once one of them leaves the
    window: coding them one by one took 37 µs a layer and step of SmolLM2 (EPYC, 2 cores).

    Where the layer's keys are kept outside the device, so are the codes: `outside` holds those of each codebook, whose
    own codes are empty but while they are read (section 3.3).
    """

    books: list[Codebook]
    tokens: TokenCache | None  # every key, where codebooks are to be rebuilt
    rebuilt: int  # length at the last clustering
    outside: list[PrefetchedTensor] = field(default_factory=list)
    uncoded: list[Tensor] = field(default_factory=list)
    coded: int = 0  # position of the first token without codes

    auxiliary = ("uncoded",)

    @property
    def last_start(self) -> int:
        """Position of the first token of the last codebook."""
        return self.coded - (self.outside[-1] if self.outside else self.books[-1]).length

    def add_book(self, book: Codebook) -> None:
        """Put a codebook behind the others; its codes leave the device where the keys do."""
        self.books.append(book)
        self.coded = self.length
        store = None if self.layer.cached is None else self.layer.cached.outside
        if store is not None:
            self.outside.append(PrefetchedTensor(book.codes, store))
            self.unload()

    def append(self, keys: Tensor) -> None:
        """Take the next tokens' keys [B, H, n, D]; `length` counts them already."""
        if self.books:  # without one the prompt was within the sinks, and everything is attended
            self.uncoded.append(keys)
            if self.length - self.coded >= CODE_INTERVAL:
                self.code()

    def code(self) -> None:
        """Give every token codes, by the last codebook."""
        if not self.uncoded:
            return
        keys = torch.cat(self.uncoded, dim=2)
        self.uncoded, self.coded = [], self.length
        if self.outside:
            self.outside[-1].append(self.books[-1].encode(keys))
        else:
            self.books[-1] = self.books[-1].append(keys)

    def replace_last(self, book: Codebook) -> None:
        """Put a codebook of all its tokens in the place of the last one."""
        self.uncoded = []
        self.books.pop()
        if self.outside:
            self.outside.pop().release()
        self.add_book(book)

    def load(self) -> None:
        """Give the codebooks their codes, on the device."""
        for book, codes in zip(self.books, self.outside, strict=False):
            book.codes = codes.result()

    def unload(self) -> None:
        """Free the codes that are kept outside the device."""
        for book, codes in zip(self.books, self.outside, strict=False):
            codes.release()
            book.codes = book.codes.new_empty((*book.codes.shape[:-2], 0, book.codes.shape[-1]))

    def prefetch(self) -> None:
        """Begin to bring the codes to the device."""
        for codes in self.outside:
            codes.start()

    def metadata_bytes(self) -> int:
        """Bytes of codes and centroids, wherever they are; codes that were copied ahead count once."""
        return super().metadata_bytes() + sum(sum(codes.stored_bytes.values()) for codes in self.outside)

    def read_bytes(self) -> int:
        """Bytes of codes and centroids."""
        return self.metadata_bytes() - self.auxiliary_bytes()

    def outer_metadata_bytes(self) -> int:
        """Bytes of the codes in host memory."""
        return sum(codes.stored_bytes["host"] for codes in self.outside)


@dataclass
class PQCache(Method):
    """Ranks every token by the inner product with its product-quantized key, and recalls the best, token by token.

    Source: PQCache (arXiv 2407.12820), sections 3.1, 3.3, 3.4 and 5. The keys behind the first `sinks` tokens are cut
    into `n_partitions` parts; each part is clustered into 2^`n_bits` centroids by `max_iter` iterations of k-means, or
    as many as an `IterationModel` allows for the length. A step attends the sinks, the local window and the best tokens
    between them. The window holds the last `recent` tokens, or the share `recent_share` of what the sinks leave of the
    budget, whichever is more, and at least the newest token. A generated token gets the codes of its nearest centroids;
    they count once it leaves the window.

    `softmax` turns each query head's scores into attention weights over the middle before the group is reduced.
    `rebuild_interval`: cluster anew after so many generated tokens. `cluster_each_turn`: a later prompt gets a codebook
    of its own, which the tokens generated after it join; otherwise it is clustered with all tokens before it. In the
    details, `groups` names each token's block of 128 tokens, the unit of the paper's device cache. With `store="host"`
    or "disk" that cache is used, and the codes are kept in host memory: a layer's are fetched while the layer before it
    is at work.

    Presets: "paper" is m=2, b=6 (LongBench), "infinitebench" m=4, b=8. "official" is the published code: 32 sinks, half
    of the rest recent, scores summed over the group. Its clip of the iterations, 3 to 300, is the default range of an
    `IterationModel`; without one `max_iter` is taken as it is. Deviations: the paper gives no sizes for sinks and
    window and no rule for the group; "paper" takes StreamingLLM's 4 sinks and what kept most attention on SmolLM2 (a
    quarter of the budget recent; softmax, then the mean). The prompt's window is clustered with the middle, as in the
    published code. Sinks come out of the budget, where the published code adds them; generated tokens raise the number
    recalled. A rebuild replaces the last codebook only.
    """

    name = "pqcache"
    title = "PQCache"
    paper = "arXiv 2407.12820"
    kind = "retrieval"
    group_name = "block"
    style = Style("#009E73", "solid", "square")
    sliders = (
        Slider("n_partitions", "partitions m", (1, 2, 4, 8), "parts that a key is cut into, each with its own codes",
               divides_head_dim=True),
        Slider("n_bits", "bits b", (2, 3, 4, 5, 6, 7, 8), "bits of a code: a part is coded by one of 2ᵇ centroids"),
    )  # fmt: skip
    needs_queries = False
    overlaps_build = True
    builds_for_any_budget = True
    device_cache = BlockCache()
    expected_failures: ClassVar[Mapping[str, str]] = {
        "extension_equals_one_build": "centroids are the prompt's, and generated tokens only join them (section 3.4)",
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "infinitebench": {"n_partitions": 4, "n_bits": 8},
        "official": {"sinks": 32, "recent_share": 0.5, "group": "sum"},
    }

    sinks: int = 4
    n_partitions: int = 2
    n_bits: int = 6
    # Recall at 1, 2, 5, 10, 30 and 100 iterations: 0.504, 0.521, 0.534, 0.539, 0.541, 0.541, over seeds ±0.002
    # (SmolLM2-135M, 4,096 tokens of prose, ten layers, budget 256; 4×8 has 0.632, 0.640, 0.647, 0.650, 0.650, 0.650).
    max_iter: int | IterationModel = 10
    recent_share: float = 0.25
    softmax: bool = True
    rebuild_interval: int | None = None
    cluster_each_turn: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_partitions", "n_bits"):
            self._check_at_least(name, 1)
        if self.n_bits > MAX_BITS:
            raise InvalidInputError(f"{self.name}: n_bits", self.n_bits, f"an int from 1 to {MAX_BITS}")
        if not isinstance(self.max_iter, IterationModel):
            self._check_at_least("max_iter", 1)
        if self.rebuild_interval is not None:
            self._check_at_least("rebuild_interval", 1)
        self._check_between("recent_share", 0, 1)

    @property
    def reserved(self) -> int:
        """Sinks, the least recent window, and at least the newest token."""
        return self.sinks + max(self.recent, 1)

    def recent_window(self, state: State) -> int:
        """The window's tokens: `recent`, or the share of the budget behind the sinks, and at least one."""
        free = self.budget_tokens(state.prompt_length) - self.sinks
        return max(self.recent, math.floor(self.recent_share * free), 1)

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> PQCacheState:
        """A codebook of every token but the sinks; O(iterations · 2^b · L · D)."""
        length = keys.shape[2]
        tokens = None if self.rebuild_interval is None else layer.token_cache(keys, values)
        state = PQCacheState(layer, length, length, [], tokens, rebuilt=length)
        if length > self.sinks:
            state.add_book(self._quantize(keys[:, :, self.sinks :]))
        return state

    def extend(self, state: State, queries: Tensor, keys: Tensor, values: Tensor) -> PQCacheState:
        """Codes the new tokens by their nearest centroids; clusters anew where the interval is over."""
        state = cast(PQCacheState, state)
        state.length += keys.shape[2]
        state.append(keys)
        if state.tokens is not None and self.rebuild_interval is not None:
            state.tokens.append(keys, values)
            if state.books and state.length - state.rebuilt >= self.rebuild_interval:
                state.replace_last(self._quantize(state.tokens.keys[:, :, state.last_start : state.length]))
                state.rebuilt = state.length
        return state

    def continue_prompt(self, state: State, queries: Tensor, keys: Tensor, values: Tensor) -> PQCacheState | None:
        """With `cluster_each_turn`, a codebook more for the later prompt's tokens; otherwise all are built anew."""
        state = cast(PQCacheState, state)
        if not self.cluster_each_turn or not state.books:
            return None
        state.code()
        state.length += keys.shape[2]
        state.add_book(self._quantize(keys))
        if state.tokens is not None:
            state.tokens.append(keys, values)
        state.prompt_length = state.rebuilt = state.length
        return state

    def select(self, state: State, queries: Tensor) -> Selection:
        """Sinks, the best tokens of the middle, and the local window."""
        everything = self.everything(state, queries)
        if everything is not None:
            return everything
        state = cast(PQCacheState, state)
        window = self.recent_window(state)
        if state.coded < state.length - window:
            state.code()
        state.load()
        scores = self._scores(state, queries, state.length - window - self.sinks)
        state.unload()
        count = self.allowance(state) - self.sinks - window
        chosen = take_tokens(scores, count, details=state.layer.details)
        chosen.indices.add_(self.sinks)
        if state.layer.details:
            chosen = replace(chosen, groups=(chosen.indices // BLOCK_SIZE).to(torch.int32))
        return surround(chosen, before=self.sinks, after=(state.length - window, state.length))

    def _scores(self, state: PQCacheState, queries: Tensor, middle: int) -> Tensor:
        """What the `middle` tokens behind the sinks are ranked by, [B, R, middle]."""
        layer = state.layer
        scale = layer.scale if self.softmax else None
        if len(state.books) == 1:
            (book,) = state.books
            counts = book.pair_counts(middle) if self.softmax else None
            codes = book.codes[:, :, :middle]
            return pq_scores(
                queries, book.centroids, codes, group=self.group, scale=scale, softcap=layer.softcap, counts=counts
            )
        group: Group = "each" if self.softmax else self.group
        parts = [pq_scores(queries, book.centroids, book.codes, group=group) for book in state.books]
        scores = torch.cat(parts, dim=-1)[..., :middle]
        if scale is None:
            return scores
        scores = scores * scale
        scores = softcap_(scores, layer.softcap)
        return reduce_group(scores.softmax(-1), layer.n_kv_heads, self.group)

    def _quantize(self, keys: Tensor) -> Codebook:
        iterations = self.max_iter
        if isinstance(iterations, IterationModel):
            iterations = iterations.max_iterations(keys.shape[2])
        return product_quantize(
            keys, n_partitions=self.n_partitions, n_bits=self.n_bits, max_iter=iterations, seed=self.seed
        )
