"""Attention over selected tokens against torch's attention over all tokens, and against flex_attention with a mask.

Calls use many buffers and selections in turn, like the layers of a model, so that caches are cold. On a GPU they run as
one CUDA graph, so that only the GPU's work is timed. `fused_launched` has the same calls launched from Python; it is
compared with flex_attention, which is launched in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
from kvviz_kernels import gather_attention, merge_attention
from kvviz_kernels.tuning import Config
from kvviz_kernels.tuning import tune as tune_kernel
from timing import ROUNDS, Call, Row, alternate, captured, copy_bandwidth, forms, paired_ratio, row_of, waiting
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

SEED = 0
LAYERS = 12  # minimum number of calls in one timing
_NO_FLEX: dict[str, str] = {}  # device types on which flex_attention did not compile, with reasons: trying is slow
COLD_BYTES = 2**28  # bytes read between two reads of the same rows: several times the largest cache of a GPU


@dataclass(frozen=True)
class Size:
    """The size of one decode step: tokens, selected tokens and heads."""

    batch: int
    heads: int
    kv_heads: int
    tokens: int
    selected: int
    width: int
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """A description of the measurement."""
        shape = f"{self.heads} query heads, {self.kv_heads} key/value heads"
        batch = f", batch {self.batch}, {self.width} channels" if self.batch > 1 or self.heads > 9 else ""
        return f"attention, {self.selected} of {self.tokens} tokens, {shape}{batch}"

    @property
    def selected_bytes(self) -> int:
        """Bytes of keys, values and positions that one call must read."""
        return self.batch * self.kv_heads * self.selected * (2 * self.width * self.dtype.itemsize + 8)

    @property
    def cached_bytes(self) -> int:
        """Bytes of all keys and values."""
        return 2 * self.batch * self.kv_heads * self.tokens * self.width * self.dtype.itemsize


@dataclass(frozen=True)
class Step:
    """Queries [B, Q, D], keys and values [B, H, N, D] in one row of memory, and the selection [B, H, S]."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    indices: Tensor

    @property
    def grouped(self) -> Tensor:
        """The queries of each group as queries of one head [B, H, G, D], the fastest form for SDPA."""
        return self.queries.unflatten(1, (self.keys.shape[1], -1))


@torch.no_grad()
def check(device: torch.device) -> None:
    """Assert that our kernels, and flex_attention if it compiles, equal torch's attention over the gathered tokens."""
    size = Size(1, 8, 2, 1000, 100, 64, torch.float32)
    (step,) = _steps(size, 1, 1, device)
    places = step.indices[..., None].expand(-1, -1, -1, size.width)
    expected = scaled_dot_product_attention(step.grouped, step.keys.gather(2, places), step.values.gather(2, places))
    for impl in forms(device):
        output, _ = gather_attention(step.queries, step.keys, step.values, step.indices, scale=0.125, impl=impl)
        torch.testing.assert_close(output, expected.flatten(1, 2), rtol=1e-5, atol=1e-5)
    flex, _ = _flex(size, [step])
    if flex is not None:
        torch.testing.assert_close(flex()[:, :, 0], expected.flatten(1, 2), rtol=1e-3, atol=1e-3)  # may take TF32


@torch.no_grad()
def rows(device: torch.device) -> list[Row]:
    """One row per size, in microseconds per call; `ratio` compares ours (the last form) with SDPA over all tokens."""
    if device.type == "cpu":
        return [_row(Size(1, 9, 3, 8192, 512, 64, torch.float32), device)]
    bandwidth = copy_bandwidth(device)
    by_size = []
    for tokens, selected in ((8192, 512), (131_072, 1024)):
        for batch in (1, 8):
            row = _row(Size(batch, 32, 8, tokens, selected, 128, torch.bfloat16), device)
            for impl in forms(device):
                row[f"{impl}_share_of_copy_bandwidth"] = 1e6 * row["read_bytes"] / row[f"{impl}_us"] / bandwidth
            by_size.append(row | {"copy_bytes_per_s": bandwidth})
    return [*by_size, *(_merge_row(batch, device) for batch in (1, 8))]


def tune(device: torch.device) -> dict[str, Config]:
    """The best configurations on this GPU, for half precision and for float32."""
    from kvviz_kernels.attention import fused

    best = {}
    for kernel, dtype in (("gather_attention", torch.bfloat16), ("gather_attention_float32", torch.float32)):
        (step,) = _steps(Size(8, 32, 8, 32_768, 1024, 128, dtype), 1, 1, device)
        attend = partial(fused.gather_attention, step.queries, step.keys, step.values, step.indices, scale=0.1)
        best[kernel] = tune_kernel(kernel, fused.CANDIDATES, attend, device)
    return best


def _row(size: Size, device: torch.device) -> Row:
    """All implementations at one size; `ours` is the fused form on a GPU."""
    count = min(64, max(LAYERS, COLD_BYTES // size.selected_bytes)) if device.type == "cuda" else LAYERS
    buffers = min(count, -(-COLD_BYTES // size.cached_bytes)) if device.type == "cuda" else count
    steps = _steps(size, count, buffers, device)
    calls: dict[str, Call] = {impl: partial(_selected, steps, impl) for impl in forms(device)}
    ours = next(reversed(calls))
    calls[f"{ours}_with_pads"] = partial(_selected, _padded(steps), ours, padded=True)
    if device.type == "cpu":
        calls[f"{ours}_two_buffers"] = partial(_selected, _apart(steps), ours)
    calls["full_sdpa"] = partial(_full, steps)
    launched = calls[ours]
    if device.type == "cuda":
        calls = {name: captured(call) for name, call in calls.items()}
        calls |= waiting({f"{ours}_launched": launched}, device)
    flex, missing = _flex(size, steps)
    if flex is not None:
        calls |= waiting({"flex_attention": flex}, device)
    if device.type == "cuda":
        times = alternate(calls)
    else:  # as a model's other layers and weights pass through the caches between two calls of one layer
        evicting = torch.zeros(COLD_BYTES // 4)
        times = alternate(calls, 5 * ROUNDS, before=lambda: evicting.add_(1.0))
    row = row_of(size.name, times, ours, calls=count)
    if f"{ours}_launched" in times and flex is not None:
        row["ratio_to_flex_attention"] = paired_ratio(times[f"{ours}_launched"], times["flex_attention"])
    row |= {"ratio": row["ratio_to_full_sdpa"], "read_bytes": size.selected_bytes}
    return row | ({"missing": missing} if missing else {})


def _merge_row(batch: int, device: torch.device) -> Row:
    """merge_attention of three parts, naive and fused."""
    outputs = [torch.randn(batch, 32, 128, device=device, dtype=torch.bfloat16) for _ in range(3)]
    lses = [torch.randn(batch, 32, device=device) for _ in range(3)]
    calls = {impl: partial(merge_attention, outputs, lses, impl=impl) for impl in forms(device)}
    repeated = {impl: captured(partial(_repeat, call, 20)) for impl, call in calls.items()}
    return row_of(
        f"merging of 3 parts, batch {batch}, 32 heads", alternate(repeated), next(reversed(repeated)), calls=20
    )


def _repeat(call: Call, count: int) -> None:
    for _ in range(count):
        call()


def _steps(size: Size, count: int, buffers: int, device: torch.device) -> list[Step]:
    """`count` steps with different selections, which use `buffers` buffers in turn."""
    generator = torch.Generator(device).manual_seed(SEED)
    options: Any = {"generator": generator, "device": device, "dtype": size.dtype}
    shape = (size.batch, size.kv_heads, size.tokens, 2 * size.width)
    memory = [torch.randn(shape, **options) for _ in range(buffers)]
    steps = []
    for both in islice(cycle(memory), count):
        queries = torch.randn(size.batch, size.heads, size.width, **options)
        chances = torch.rand(size.batch, size.kv_heads, size.tokens, generator=generator, device=device)
        indices = chances.topk(size.selected).indices.sort().values
        steps.append(Step(queries, both[..., : size.width], both[..., size.width :], indices))
    return steps


def _padded(steps: list[Step]) -> list[Step]:
    """The same steps, with padding in a sixteenth of their slots."""
    padded = []
    for step in steps:
        indices = step.indices.clone()
        indices[..., -(indices.shape[-1] // 16) :] = -1
        padded.append(Step(step.queries, step.keys, step.values, indices))
    return padded


def _apart(steps: list[Step]) -> list[Step]:
    """The same steps, with keys and values in separate buffers."""
    return [Step(step.queries, step.keys.contiguous(), step.values.contiguous(), step.indices) for step in steps]


def _selected(steps: list[Step], impl: Any, *, padded: bool = False) -> None:
    for step in steps:
        scale = step.queries.shape[-1] ** -0.5
        gather_attention(step.queries, step.keys, step.values, step.indices, scale=scale, padded=padded, impl=impl)


def _full(steps: list[Step]) -> None:
    for step in steps:
        scaled_dot_product_attention(step.grouped, step.keys, step.values)


def _flex(size: Size, steps: list[Step]) -> tuple[Call | None, str]:
    """flex_attention over all tokens with the first step's selection as a mask, or the reason why it does not run."""
    first = steps[0]
    chosen = torch.zeros(size.batch, size.kv_heads, size.tokens, dtype=torch.bool, device=first.keys.device)
    chosen.scatter_(-1, first.indices, True)
    group = size.heads // size.kv_heads

    def mask(batch: Tensor, head: Tensor, query: Tensor, token: Tensor) -> Tensor:
        return chosen[batch, head // group, token]

    def run() -> Any:
        for step in steps:
            output = compiled(step.queries[:, :, None], step.keys, step.values, block_mask=blocks, enable_gqa=True)
        return output

    if first.keys.device.type in _NO_FLEX:
        return None, _NO_FLEX[first.keys.device.type]
    try:
        blocks = create_block_mask(mask, size.batch, size.heads, 1, size.tokens, device=str(first.keys.device))
        compiled = torch.compile(flex_attention)
        run()
    except Exception as error:  # torch.compile raises any error of its backend, such as a missing compiler
        reason = f"flex_attention: {type(error).__name__}: {str(error).strip().splitlines()[0]}"
        _NO_FLEX[first.keys.device.type] = reason
        return None, reason
    return run, ""
