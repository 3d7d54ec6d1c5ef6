"""No method computes exact scores of all cached keys to select, except those that are exact by definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import kvviz
from kvviz.methods.base import LayerContext, Method
from kvviz.methods.rotation import Rotation
from kvviz.offload import DeviceStore
from kvviz.offload.token_cache import TokenCache
from notebooks.operations import OperationCounter, counted

HEADS, QUERY_HEADS, LENGTH, DIM = 2, 6, 2048, 64
BUDGETS = (256, 512, 1024)  # tests use the first budget that is large enough for a method's sinks and recent window
ALL_KEYS = HEADS * LENGTH * DIM  # numbers
ROTATION = Rotation(tuple(10_000 ** (-2 * pair / DIM) for pair in range(DIM // 2)))
CONTEXT = LayerContext(
    index=5, n_layers=8, n_heads=QUERY_HEADS, n_kv_heads=HEADS, head_dim=DIM, scale=DIM**-0.5, rotation=ROTATION
)
NEEDS_A_MODEL = (("kvzip", "paper"),)  # its other preset selects in the same way
# Prefill methods, and the retrieval heads of duo_attention over full attention, attend to all tokens in a decode step;
# exact methods are the baseline.
CHOOSING = [
    (name, preset)
    for name in kvviz.methods.names()
    if kvviz.methods.get(name).kind not in ("exact", "prefill") and not kvviz.methods.get(name).ignores_budget
    for preset in kvviz.methods.get(name).presets
    if (name, preset) not in NEEDS_A_MODEL
]


def smallest(name: str, preset: str = "paper") -> Method:
    for budget in BUDGETS:
        try:
            return kvviz.methods.create(name, preset=preset, budget=budget)
        except kvviz.InvalidInputError as error:
            refusal = error
    raise refusal


def inputs(length: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(1, QUERY_HEADS, length, DIM, generator=generator)
    keys, values = (torch.randn(1, HEADS, length, DIM, generator=generator) for _ in range(2))
    return queries, keys, values


def cost_of_selecting(method: Method, length: int = LENGTH) -> OperationCounter:
    """The cost of `select` in the third step after a prompt; the first two steps fill the method's caches."""
    queries, keys, values = inputs(length, seed=0)
    store = DeviceStore()
    store.append(keys, values)
    context = replace(CONTEXT, cached=TokenCache(store))
    queries = queries if method.needs_queries else queries[:, :, :0]
    state = method.build(context, queries, store.keys, store.values)
    for step in range(1, 4):
        queries, keys, values = inputs(1, seed=step)
        store.append(keys, values)
        state = method.extend(state, queries, keys, values)
        counts = counted(lambda: method.select(state, queries[:, :, 0]))  # noqa: B023  # called at once
    assert method.step_budget(state) < length, "a method that attends to all tokens does not select"
    return counts


def too_much(counts: OperationCounter, length: int = LENGTH) -> list[str]:
    """Counts that reach the least cost of a scan of all keys."""
    excesses = []
    if counts.largest_operand >= HEADS * length * DIM:
        excesses.append(f"{counts.operand_of} takes {counts.largest_operand} numbers")
    if counts.largest_copy >= HEADS * length * DIM:
        excesses.append(f"{counts.copy_of} writes {counts.largest_copy} numbers")
    if counts.macs >= QUERY_HEADS * length * DIM:
        excesses.append(f"{counts.macs} MACs")
    return excesses


@pytest.mark.parametrize(("name", "preset"), CHOOSING)
def test_no_selection_scans_all_keys(name: str, preset: str) -> None:
    assert not too_much(cost_of_selecting(smallest(name, preset)))


def test_the_oracle_scans_all_keys() -> None:
    counts = cost_of_selecting(smallest("oracle"))
    assert len(too_much(counts)) == 2
    assert counts.macs == QUERY_HEADS * (LENGTH + 3) * DIM


class TestTheCount:
    keys = torch.randn(2, 50, 8)

    def test_products_are_counted_by_shape(self) -> None:
        assert counted(lambda: torch.randn(3, 8) @ torch.randn(8, 5)).macs == 3 * 8 * 5
        assert counted(lambda: self.keys[0] @ torch.ones(8)).macs == 50 * 8
        assert counted(lambda: torch.ones(8) @ torch.ones(8)).macs == 8
        products = counted(lambda: torch.einsum("hd,hld->hl", torch.ones(2, 8), self.keys))
        assert products.macs == 2 * 50 * 8
        linear = counted(lambda: torch.nn.functional.linear(self.keys[0], torch.ones(5, 8), torch.ones(5)))
        assert linear.macs == 50 * 8 * 5

    @pytest.mark.parametrize(
        "scan",
        [
            lambda keys: (keys * torch.ones(8)).sum(-1),
            lambda keys: torch.cdist(keys, torch.ones(2, 1, 8)),
            lambda keys: torch.einsum("hd,hld->hl", torch.ones(2, 8), keys),
            lambda keys: keys.sum(-1),
            lambda keys: keys @ torch.ones(8),
            lambda keys: keys.transpose(1, 2).unsqueeze(0).mul(2),
        ],
    )
    def test_every_form_of_a_scan_is_counted(self, scan) -> None:
        assert counted(lambda: scan(self.keys)).largest_operand >= self.keys.numel()

    def test_a_broadcast_counts_all_its_elements(self) -> None:
        assert counted(lambda: torch.ones(50, 1) * torch.ones(1, 8)).largest_operand == 400

    def test_partial_reads_count_their_part(self) -> None:
        counts = counted(lambda: self.keys.gather(1, torch.zeros(2, 3, 8, dtype=torch.int64)) @ torch.ones(8))
        assert (counts.largest_copy, counts.largest_operand) == (48, 48)
        assert counted(lambda: self.keys[:, :5].transpose(1, 2)).largest_copy == 0, "a view costs nothing"
        assert counted(lambda: self.keys[:, :5].transpose(1, 2).contiguous()).largest_copy == 80
        assert counted(lambda: torch.cat([self.keys, self.keys])).largest_copy == 1600

    def test_integers_are_not_counted(self) -> None:
        counts = counted(lambda: torch.arange(1000) * 2 + torch.arange(1000).cumsum(0))
        assert (counts.largest_operand, counts.largest_copy, counts.macs) == (0, 0, 0)
