"""MagicPIG: sampling against loops over bits, probabilities against the binomial, sums against exact attention."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

import kvviz
from kvviz.cache.decoding import attend_selection
from kvviz.methods.attention import attention_weights, weighted_values
from kvviz.methods.base import LayerContext
from kvviz.methods.magicpig import sampling_probability
from kvviz.offload import DeviceStore

DIM, SCALE = 8, 0.3
GROUPS = ["mean", "max", "sum", "each"]
HEADS = [(4, 4), (6, 2), (3, 1)]


def context(heads, kv_heads):
    return LayerContext(4, 8, heads, kv_heads, DIM, SCALE, details=True)


def random_tensors(length, heads, kv_heads, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, n, length, DIM, generator=generator) for n in (heads, kv_heads, kv_heads))


def built(method, keys, values, heads, new=0):
    """State after a prompt of all but the last `new` tokens, and one decode step for each of those."""
    prompt, kv_heads = keys.shape[2] - new, keys.shape[1]
    nothing = keys.new_empty(1, heads, 0, DIM)
    state = method.build(context(heads, kv_heads), nothing, keys[:, :, :prompt], values[:, :, :prompt])
    for step in range(prompt, prompt + new):
        newest = slice(step, step + 1)
        state = method.extend(state, torch.randn(1, heads, 1, DIM), keys[:, :, newest], values[:, :, newest])
    return state


def code(vector, directions, table, bits):
    """Hash code of a vector in one table: the side of each hyperplane on which it lies."""
    return tuple(bool(vector @ directions[:, table * bits + bit] > 0) for bit in range(bits))


def by_hand(method, state, query, keys, step_budget):
    """[(position, collisions, bias)] per row, one token, table and bit at a time; sinks and recent have bias 0."""
    heads, kv_heads, length = query.shape[0], keys.shape[0], keys.shape[1]
    start, built = method.sinks, max(state.prompt_length - method.recent, method.sinks)
    end = built if method.generated == "on_top" else max(built, length - max(method.recent, 1))
    directions = state.directions.numpy()
    rows = []
    for kv in range(kv_heads):
        group = query[kv * heads // kv_heads : (kv + 1) * heads // kv_heads].numpy()
        centre = keys[kv, start:built].numpy().mean(0) if built > start else np.zeros(DIM, np.float32)
        centred = {m: keys[kv, m].numpy() - centre for m in range(start, end)}
        codes = {m: [code(key, directions, t, method.bits) for t in range(method.tables)] for m, key in centred.items()}
        rows_by_group = {"each": [[q] for q in group], "max": [list(group)]}.get(method.group, [[group.mean(0)]])
        for row_queries in rows_by_group:
            counts, missed = dict.fromkeys(centred, 0), dict.fromkeys(centred, 1.0)
            for row_query in row_queries:
                query_codes = [code(row_query, directions, t, method.bits) for t in range(method.tables)]
                for m, key in centred.items():
                    counts[m] = max(counts[m], sum(a == b for a, b in zip(query_codes, codes[m], strict=True)))
                    norms = float(np.linalg.norm(row_query) * np.linalg.norm(key))
                    angle = math.acos(np.clip(float(row_query @ key) / norms, -1, 1)) if norms else math.pi / 2
                    missed[m] *= binom.cdf(1, method.tables, (1 - angle / math.pi) ** method.bits)
            sampled = sorted((m for m in centred if counts[m] >= 2), key=lambda m: (-counts[m], m))
            sampled = sampled[: max(step_budget - start - (length - end), 0)]
            window = range(max(end, length - (step_budget - start)), length)
            row = [(m, counts[m], -math.log(1 - missed[m] + method.floor)) for m in sampled]
            rows.append(sorted(row + [(m, None, 0.0) for m in (*range(start), *window)]))
    return rows


class TestProbability:
    @pytest.mark.parametrize(("bits", "tables"), [(1, 2), (3, 8), (10, 150), (8, 75), (30, 500)])
    def test_is_the_binomial(self, bits, tables):
        """At least two of L independent tables, each with probability p^K."""
        cosines = torch.linspace(-0.999, 1, 200, dtype=torch.float64)
        expected = binom.sf(1, tables, (1 - np.arccos(cosines.numpy()) / np.pi) ** bits)
        probabilities = sampling_probability(cosines, bits, tables).numpy()
        likely = expected > 1e-15  # below, the formula's difference is lost in rounding
        assert np.allclose(probabilities[likely], expected[likely], rtol=1e-4)
        assert np.allclose(probabilities[~likely], 0, atol=1e-14)

    def test_the_edges(self):
        probabilities = sampling_probability(torch.tensor([1.0, 1.0000001, -1.0, -1.0000001]), 10, 150)
        assert probabilities.tolist() == [1, 1, 0, 0]

    @pytest.mark.slow
    def test_is_how_often_hashing_samples(self):
        """60 keys in 1,500 sets of hyperplanes, within four standard errors; by chance 1 key in 8,000 is outside."""
        trials, length = 1500, 64
        queries, keys, values = random_tensors(length, 1, 1, seed=3)
        keys += 0.3  # so that centring matters
        query = queries[:, :, 0]
        hits = torch.zeros(length)
        for seed in range(trials):
            method = kvviz.methods.create(
                "magicpig", budget=length - 1, sinks=2, recent=2, bits=4, tables=12, seed=seed
            )
            chosen = method.select(built(method, keys, values, 1), query).indices[0, 0]
            hits[chosen[chosen >= 0]] += 1
        middle = keys[0, 0, 2:-2] - keys[0, 0, 2:-2].mean(0)
        angles = torch.nn.functional.cosine_similarity(middle, query[0], dim=-1).acos().numpy()
        expected = binom.sf(1, 12, (1 - angles / np.pi) ** 4)
        errors = np.sqrt(expected * (1 - expected) / trials)
        assert np.all(np.abs(hits[2:-2].numpy() / trials - expected) < 4 * errors + 1e-9)
        assert expected.max() > 0.5 > 0.02 > expected.min(), "the angles differ enough"


class TestSampling:
    @settings(max_examples=40)
    @given(st.data())
    def test_against_loops(self, data):
        (heads, kv_heads), prompt = data.draw(st.sampled_from(HEADS)), data.draw(st.sampled_from([1, 20, 63, 100]))
        new = data.draw(st.integers(0, 5))
        method = kvviz.methods.create(
            "magicpig",
            budget=data.draw(st.integers(12, 60)),
            sinks=data.draw(st.integers(0, 4)),
            recent=data.draw(st.integers(0, 8)),
            group=data.draw(st.sampled_from(GROUPS)),
            bits=data.draw(st.integers(1, 5)),
            tables=data.draw(st.sampled_from([2, 9, 33])),
            floor=data.draw(st.sampled_from([0.0, 1e-4])),
            seed=data.draw(st.integers(0, 9)),
            generated=data.draw(st.sampled_from(["within", "on_top"])),
        )
        queries, keys, values = random_tensors(prompt + new, heads, kv_heads, seed=data.draw(st.integers(0, 99)))
        state = built(method, keys, values, heads, new)
        selection = method.select(state, queries[:, :, 0])
        budget = method.budget + (new if method.generated == "on_top" else 0)
        if prompt + new <= budget:
            assert selection.bias is None
            assert selection.indices.shape[-1] == prompt + new
            return
        expected = by_hand(method, state, queries[0, :, 0], keys[0], budget)
        for row, expected_row in enumerate(expected):
            real = selection.indices[0, row] >= 0
            assert selection.indices[0, row][real].tolist() == [position for position, _, _ in expected_row]
            scores = selection.scores[0, row][real].nan_to_num(-1).tolist()
            assert scores == [-1 if count is None else count for _, count, _ in expected_row]
            biases = selection.bias[0, row][real].numpy()
            assert np.allclose(biases, [bias for *_, bias in expected_row], rtol=1e-3, atol=1e-4)
        assert bool((selection.groups == -1).all())

    @pytest.mark.parametrize(
        ("bits", "dtype"), [(10, torch.int16), (15, torch.int16), (16, torch.int32), (30, torch.int32)]
    )
    def test_codes_fit_their_type(self, bits, dtype):
        """The prompt is longer than one chunk of hashing."""
        _, keys, values = random_tensors(1200, 2, 2)
        method = kvviz.methods.create("magicpig", budget=128, bits=bits, tables=3)
        state = built(method, keys, values, 2)
        codes = state.codes.tensor
        assert codes.dtype == dtype
        assert codes.shape == (1, 2, 3, 1200 - 68)
        for place in (0, 1023, 1024, 1131):
            vector = (keys[0, 1, place + 4] - keys[0, 1, 4:-64].mean(0)).numpy()
            for table in range(3):
                sides = code(vector, state.directions.numpy(), table, bits)
                assert int(codes[0, 1, table, place]) == sum(side << i for i, side in enumerate(sides))

    def test_nothing_sampled_leaves_sinks_and_recent(self):
        queries, keys, values = random_tensors(300, 6, 2)
        method = kvviz.methods.create("magicpig", budget=128, bits=30, tables=2)
        selection = method.select(built(method, keys, values, 6, new=1), queries[:, :, 0])
        for row in selection.indices[0]:
            assert row[row >= 0].tolist() == [0, 1, 2, 3, *range(236, 300)]
        assert bool((selection.bias == 0).all())

    def test_a_budget_without_room_samples_nothing(self):
        queries, keys, values = random_tensors(300, 6, 2)
        method = kvviz.methods.create("magicpig", budget=68, bits=1, tables=20)
        selection = method.select(built(method, keys, values, 6), queries[:, :, 0])
        assert selection.indices[0, 0].tolist() == [0, 1, 2, 3, *range(236, 300)]

    def test_the_budget_keeps_the_tokens_with_most_collisions(self):
        queries, keys, values = random_tensors(300, 6, 2)
        methods = (kvviz.methods.create("magicpig", budget=budget, bits=2, tables=20) for budget in (100, 299))
        selections = [method.select(built(method, keys, values, 6), queries[:, :, 0]) for method in methods]
        for row in range(6):
            scores = (selection.scores[0, row] for selection in selections)
            kept, all_counts = (counts[~counts.isnan()].sort(descending=True).values for counts in scores)
            assert len(kept) == 32 < len(all_counts)
            assert torch.equal(kept, all_counts[:32])

    @pytest.mark.parametrize("group", GROUPS)
    def test_degenerate_keys_and_queries(self, group):
        """Zero vectors are on no hyperplane's positive side. Their code is like any other, with p = 1/2."""
        queries, keys, values = random_tensors(300, 6, 2)
        method = kvviz.methods.create("magicpig", budget=299, group=group, bits=2, tables=8)
        for degenerate_keys in (torch.zeros_like(keys), torch.ones_like(keys), keys[:, :, :3].repeat(1, 1, 100, 1)):
            for query in (queries[:, :, 0], torch.zeros_like(queries[:, :, 0])):
                selection = method.select(built(method, degenerate_keys, values, 6), query)
                assert bool(selection.bias.isfinite().all())
                assert bool((selection.bias >= 0).all())

    def test_a_key_opposite_to_the_query_has_a_finite_bias(self):
        _, keys, values = random_tensors(100, 1, 1)
        method = kvviz.methods.create("magicpig", budget=99, sinks=0, recent=1, bits=1, tables=2)
        state = built(method, keys, values, 1)
        opposite = -(keys[0, 0, 7] - state.centre[0, 0, 0])
        indices = torch.arange(99)[None, None]
        logs = method._log_probability(state, opposite.view(1, 1, 1, DIM), indices)
        assert bool(logs.isfinite().all())


class TestEstimator:
    @pytest.mark.parametrize(("group", "seeds"), [("each", 1000), ("mean", 1000)])
    def test_sums_are_unbiased(self, group, seeds):
        """The means over hyperplanes of Σ exp(logit) and Σ exp(logit)·value are those of exact attention.

        2 x (1 + 8) sums within 4 standard errors: by chance 1 of 900 such tests would fail; the seeds are fixed.
        Without the bias, or with the angles of keys that are not centred, the deviation exceeds 20 of them.
        """
        length, heads = 60, 2
        queries, keys, values = random_tensors(length, heads, 1, seed=1)
        keys += 0.5
        query = queries[:, :, 0]
        logits = torch.einsum("qd,ld->ql", query[0], keys[0, 0]).double() * SCALE
        terms = logits.exp()[..., None] * torch.cat([torch.ones(length, 1), values[0, 0]], dim=-1).double()  # [Q, L, 9]
        exact = terms.sum(1)
        sums = []
        for seed in range(seeds):
            method = kvviz.methods.create(
                "magicpig", budget=length - 1, sinks=2, recent=3, bits=3, tables=10, group=group, seed=seed
            )
            selection = method.select(built(method, keys, values, heads), query)
            rows = selection.indices.shape[1]
            indices, bias = (t[0].repeat_interleave(heads // rows, 0) for t in (selection.indices, selection.bias))
            weights = bias.double().exp().masked_fill(indices < 0, 0)[..., None]
            sums.append((terms.gather(1, indices.clamp(min=0)[..., None].expand(-1, -1, 9)) * weights).sum(1))
        estimates = torch.stack(sums)
        errors = (estimates.mean(0) - exact) / (estimates.std(0) / seeds**0.5)
        assert bool((errors.abs() < 4).all()), errors
        assert bool((estimates.std(0) > 0.02 * exact[:, :1]).all()), "the samples differ"

    def test_more_tables_approach_exact_attention(self):
        queries, keys, values = random_tensors(1000, 6, 2)
        query = 3 * queries[:, :, 0]
        store = DeviceStore()
        store.append(keys, values)
        exact = weighted_values(attention_weights(query, keys, SCALE), values)
        errors = []
        for tables in (10, 100, 1000):
            method = kvviz.methods.create("magicpig", budget=999, bits=6, tables=tables)
            output = attend_selection(query, store, method.select(built(method, keys, values, 6), query), SCALE)
            errors.append(float((output - exact).norm() / exact.norm()))
        assert errors[0] > 2 * errors[1] > 4 * errors[2]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bits", 0),
        ("bits", 31),
        ("bits", 2.5),
        ("tables", 1),
        ("seed", -1),
        ("floor", -0.1),
        ("floor", 2),
        ("sinks", -1),
    ],
)
def test_fields_out_of_range(field, value):
    with pytest.raises(kvviz.InvalidInputError, match=f"magicpig: {field}"):
        kvviz.methods.create("magicpig", **{field: value})


def test_a_budget_below_sinks_and_window_is_refused():
    with pytest.raises(kvviz.InvalidInputError, match="at least 68"):
        kvviz.methods.create("magicpig", budget=67)


def test_metadata_is_codes_hyperplanes_and_the_mean_key():
    _, keys, values = random_tensors(500, 6, 2)
    method = kvviz.methods.create("magicpig", budget=128)
    state = built(method, keys, values, 6)
    assert state.metadata_bytes() == 2 * 150 * (500 - 68) * 2 + DIM * 1500 * 4 + 2 * DIM * 4
