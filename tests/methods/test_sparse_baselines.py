"""SparQ and InfiniGen against loops in NumPy and hand-computed outputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import kvviz
from kvviz.cache.layer_cache import LayerCache
from kvviz.methods.infinigen import skewing_matrix
from kvviz.methods.selection import GROUPS
from kvviz.offload.channels import ChannelCache
from tests.methods.stepped import DIM, HEADS, LENGTHS, SCALE, assert_best, context, reduced, softmax, stepped, tensors


class TestSparQ:
    def weights(self, query, keys, rank, group, softcap=None):
        """Approximate weights [Q, L] of queries [Q, D] over keys [H, L, D]: algorithm 1, one head at a time."""
        rows = []
        shared = len(query) // len(keys)
        for head, head_query in enumerate(query):
            kv = head // shared
            size = np.abs(head_query) if group == "each" else np.abs(query[kv * shared : (kv + 1) * shared]).sum(0)
            channels = np.argsort(-size, kind="stable")[:rank]
            coverage = np.abs(head_query[channels]).sum() / np.abs(head_query).sum()
            logits = np.array([head_query[channels] @ key[channels] for key in keys[kv]]) * SCALE / np.sqrt(coverage)
            rows.append(softmax(logits if softcap is None else softcap * np.tanh(logits / softcap)))
        return np.stack(rows)

    @settings(max_examples=40)
    @given(
        st.sampled_from(HEADS), st.sampled_from(LENGTHS), st.sampled_from(GROUPS), st.integers(1, DIM),
        st.sampled_from((None, 2.0)), st.integers(0, 1000),
    )  # fmt: skip
    def test_against_loops(self, heads, length, group, rank, softcap, seed):
        budget, sinks = 32, 3
        method, state, q, k, _ = stepped(
            "sparq", *heads, length, seed=seed, softcap=softcap, budget=budget, sinks=sinks, rank=rank, group=group
        )
        chosen = method.select(state, q[:, :, -1]).indices[0].numpy()
        if length + 1 <= budget:
            assert np.array_equal(chosen, np.tile(np.arange(length + 1), (len(chosen), 1)))
            return
        local = budget // 4
        query, keys = q[0, :, -1].double().numpy(), k[0].double().numpy()
        scores = reduced(self.weights(query, keys, rank, group, softcap), heads[1], group)
        for row, best in zip(chosen, scores, strict=True):
            assert list(row[:sinks]) == [0, 1, 2]
            assert list(row[-local:]) == list(range(length + 1 - local, length + 1))
            assert_best(best[sinks:-local], row[sinks:-local] - sinks, budget - sinks - local)

    @pytest.mark.parametrize("group", GROUPS)
    def test_all_channels_are_the_oracle(self, group):
        """The oracle reduces exact weights; "max" and "each" agree too, since SparQ's weights are then exact."""
        fields = {"budget": 40, "recent": 1, "group": group}
        method, state, q, k, v = stepped("sparq", 6, 2, 300, rank=1.0, local_share=0, **fields)
        oracle = kvviz.methods.create("oracle", **fields)
        exact = oracle.extend(
            oracle.build(context(6, 2), q[:, :, :0], k[:, :, :300], v[:, :, :300]), q, k[:, :, 300:], v[:, :, 300:]
        )
        assert torch.equal(method.select(state, q[:, :, -1]).indices, oracle.select(exact, q[:, :, -1]).indices)

    @pytest.mark.parametrize(("heads", "mean_value"), [((4, 4), None), ((6, 2), True)])
    @pytest.mark.parametrize("group", ["sum", "each"])
    def test_the_value_correction_uses_the_mean_value(self, heads, mean_value, group):
        length, rank = 90, 4
        q, k, v = tensors(*heads, length + 2)
        method = kvviz.methods.create("sparq", budget=20, rank=rank, mean_value=mean_value, group=group)
        layer = LayerCache(context(*heads), method)
        layer.store.append(k[:, :, :length], v[:, :, :length])
        layer.build()
        for position in (length, length + 1):  # each token updates the mean
            layer.store.append(k[:, :, position : position + 1], v[:, :, position : position + 1])
            output = layer.decode(q[:, :, position])[0].double().numpy()
            query, keys, values = (x[0, :, : position + 1].double().numpy() for x in (q[:, :, position:], k, v))
            query = query[:, 0]
            weights = self.weights(query, keys, rank, group)
            for head in range(heads[0]):
                kv = head * heads[1] // heads[0]
                slots = layer.last.indices[0, head if group == "each" else kv].numpy()
                attended = softmax(keys[kv][slots] @ query[head] * SCALE) @ values[kv][slots]
                alpha = weights[head][slots].sum()
                assert 0.1 < alpha < 0.9, "a wrong share would have no effect"
                assert np.allclose(output[head], alpha * attended + (1 - alpha) * values[kv].mean(0), atol=1e-5)

    def test_no_value_correction_if_the_paper_has_none(self):
        for heads, length, corrects in (((4, 4), 90, True), ((6, 2), 90, False), ((4, 4), 20, False)):
            method, state, q, _, _ = stepped("sparq", *heads, length, budget=32)
            assert (method.select(state, q[:, :, -1]).value_correction is not None) == corrects

    def test_bytes_and_flops_of_a_step(self):
        method, state, q, _, _ = stepped("sparq", 6, 2, 4000, budget=64, rank=3)
        assert state.read_bytes() == 2 * 3 * 4001 * 4
        assert state.auxiliary_bytes() >= 2 * DIM * 4001 * 4
        assert stepped("sparq", 6, 2, 400, budget=64, rank=3, group="each")[1].read_bytes() == 2 * 9 * 401 * 4
        counter = FlopCounterMode(display=False)
        with counter:
            method.select(state, q[:, :, -1])
        assert counter.get_total_flops() == 2 * 6 * 3 * 4001  # full scores: 2 * 6 * 16 * 4001

    def test_a_query_of_zeros_weighs_all_tokens_equally(self):
        method, state, q, _, _ = stepped("sparq", 4, 4, 90, budget=32, local_share=0)
        selection = method.select(state, torch.zeros_like(q[:, :, 0]))
        assert selection.indices[0, 0].tolist() == [*range(31), 90]
        assert torch.allclose(selection.value_correction.share, torch.tensor(1 - 32 / 91))


class TestInfiniGen:
    def reference(self, method, q, k, length):
        """Speculated scores [Q, L] by NumPy's SVD of the prompt's queries, and which of them exceed the threshold."""
        n_heads, n_kv_heads = q.shape[1], k.shape[1]
        queries, keys = q[0].double().numpy(), k[0].double().numpy()
        scores = np.empty((n_heads, keys.shape[1]))
        shared, count = n_heads // n_kv_heads, max(1, int(method.ratio * DIM))
        for kv in range(n_kv_heads):
            group = queries[kv * shared : (kv + 1) * shared]
            rotation = np.linalg.svd(group[:, :length].reshape(-1, DIM), full_matrices=False)[2].T
            channel_sums = np.abs(keys[kv, :length] @ rotation).sum(0)
            channel_sums += np.mean([np.abs(head_queries[:length] @ rotation).sum(0) for head_queries in group], axis=0)
            channels = np.argsort(-channel_sums)[:count]
            for group_head, head_queries in enumerate(group):
                partial = (keys[kv] @ rotation)[:, channels] @ (head_queries[-1] @ rotation)[channels]
                scores[kv * shared + group_head] = partial * SCALE
        earlier = scores[:, :-1]
        excess = earlier - (earlier.max(-1, keepdims=True) - method.alpha)
        assume(np.abs(excess).min() > 1e-4)  # float32 may put such a token on the other side
        return scores, excess > 0

    @settings(max_examples=40)
    @given(
        st.sampled_from(HEADS), st.sampled_from(LENGTHS), st.sampled_from(GROUPS), st.sampled_from((0.1, 0.4, 1.0)),
        st.sampled_from((0.5, 2.0, 9.0)), st.integers(0, 1000),
    )  # fmt: skip
    def test_against_loops(self, heads, length, group, ratio, alpha, seed):
        fields = {"budget": 40, "ratio": ratio, "alpha": alpha, "group": group, "sinks": 2}
        method, state, q, k, _ = stepped("infinigen", *heads, length, seed=seed, **fields)
        chosen = method.select(state, q[:, :, -1]).indices[0].numpy()
        if length + 1 <= 40:
            assert np.array_equal(chosen, np.tile(np.arange(length + 1), (len(chosen), 1)))
            return
        scores, above_threshold = self.reference(method, q, k, length)
        count = min(int(above_threshold[:, 2:].sum(-1).mean()), 40 - 2 - 1)
        for row, best in zip(chosen, reduced(scores, heads[1], group), strict=True):
            assert list(row[:2]) == [0, 1]
            assert row[-1] == length
            assert_best(best[2:-1], row[2:-1] - 2, count)

    def test_the_skewing_matrix_is_numpys(self):
        q, _, _ = tensors(6, 2, 200)
        matrix = skewing_matrix(q, 2)[0].double().numpy()
        for head in range(2):
            expected = np.linalg.svd(
                q[0, head * 3 : head * 3 + 3].double().reshape(-1, DIM).numpy(), full_matrices=False
            )[2].T
            assert np.allclose(np.abs(matrix[head].T @ expected), np.eye(DIM), atol=1e-4)

    def test_all_channels_score_exactly(self):
        """A rotation does not change inner products."""
        method, state, q, k, _ = stepped("infinigen", 6, 2, 300, ratio=1.0, budget=32)
        exact = torch.einsum("bqd,bqld->bql", q[:, :, -1], k.repeat_interleave(3, 1)) * SCALE
        assert torch.allclose(method._speculated_scores(state, q[:, :, -1]), exact, atol=1e-4)

    def test_the_budget_is_a_limit_and_batch_rows_are_independent(self):
        q, k, v = tensors(4, 2, 301, batch=2)
        q[1] *= 5  # a peaked row and a flat one
        method = kvviz.methods.create("infinigen", budget=50, ratio=1.0, alpha=3.0, sinks=3)
        state = method.build(context(4, 2), q[:, :, :300], k[:, :, :300], v[:, :, :300])
        state = method.extend(state, q[:, :, 300:], k[:, :, 300:], v[:, :, 300:])
        together = method.select(state, q[:, :, -1])
        counts = (together.indices >= 0).sum(-1)[:, 0].tolist()
        assert together.padded
        assert counts[0] == 50, "the flat row reaches the budget"
        assert 1 < counts[1] < 45
        for row in range(2):
            batch_row = slice(row, row + 1)
            alone = method.build(context(4, 2), q[batch_row, :, :300], k[batch_row, :, :300], v[batch_row, :, :300])
            alone = method.extend(alone, q[batch_row, :, 300:], k[batch_row, :, 300:], v[batch_row, :, 300:])
            expected = method.select(alone, q[batch_row, :, -1])
            assert not expected.padded
            for head in range(2):
                row_indices = together.indices[row, head]
                assert row_indices[row_indices >= 0].tolist() == expected.indices[0, head].tolist()

    @pytest.mark.parametrize("group", GROUPS)
    def test_without_a_threshold_the_best_tokens_fill_the_budget(self, group):
        """With all channels, preset "top" is the oracle of the logits: the group is reduced before the softmax."""
        method = kvviz.methods.create("infinigen", preset="top", budget=50, ratio=1.0, sinks=3, group=group)
        q, k, v = tensors(6, 2, 301)
        state = method.build(context(6, 2), q[:, :, :300], k[:, :, :300], v[:, :, :300])
        state = method.extend(state, q[:, :, 300:], k[:, :, 300:], v[:, :, 300:])
        chosen = method.select(state, q[:, :, -1]).indices[0].numpy()
        logits = torch.einsum("qd,qld->ql", q[0, :, -1], k[0].repeat_interleave(3, 0)).numpy() * SCALE
        for row, scores in zip(chosen, reduced(logits, 2, group), strict=True):
            assert len(row) == 50
            assert [*row[:3], row[-1]] == [0, 1, 2, 300]
            assert_best(scores[3:-1], row[3:-1] - 3, 46)

    def test_the_newest_key_does_not_set_the_threshold(self):
        """When the paper's method speculates, it does not know the newest key yet."""
        method, state, q, _, v = stepped("infinigen", 4, 2, 300, ratio=1.0, budget=100)
        large_key = q[:, :, -1].unflatten(1, (2, -1)).mean(2)[:, :, None] * 50  # far above all other keys
        before = method.select(state, q[:, :, -1]).indices
        state = method.extend(state, q[:, :, -1:], large_key, v[:, :, -1:])
        after = method.select(state, q[:, :, -1]).indices
        assert after[0, 0, -1] == 301
        assert before.shape[-1] - 1 <= after.shape[-1] <= before.shape[-1] + 1

    def test_a_share_of_a_short_prompt_is_at_least_one_token(self):
        method = kvviz.methods.create("infinigen")
        assert [method.budget_tokens(length) for length in (1, 4, 5, 14, 4096)] == [1, 1, 1, 2, 819]
        with pytest.raises(kvviz.InvalidInputError, match="budget"):
            kvviz.methods.create("infinigen", sinks=4).budget_tokens(10)

    def test_only_partial_keys_are_read(self):
        method, state, q, _, _ = stepped("infinigen", 6, 2, 2000, budget=64, ratio=0.25)
        assert state.read_bytes() == 2 * 4 * (2001 + DIM) * 4
        counter = FlopCounterMode(display=False)
        with counter:
            method.select(state, q[:, :, -1])
        assert counter.get_total_flops() == 2 * 6 * 4 * (2001 + DIM)  # and the rotation of the queries


class TestAll:
    @pytest.mark.parametrize(("name", "recent"), [("sparq", 8), ("infinigen", 1)])
    def test_ties_go_to_the_earlier_token(self, name, recent):
        method, state, q, _, _ = stepped(name, 4, 2, 100, keys=torch.zeros_like, budget=32)
        indices = method.select(state, q[:, :, -1]).indices[0, 0].tolist()
        assert indices == [*range(32 - recent), *range(101 - recent, 101)]

    @pytest.mark.parametrize("name", ["sparq", "infinigen"])
    def test_generated_tokens_are_scored_like_those_of_the_prompt(self, name):
        """A generated token whose key matches all queries is still retrieved much later."""
        method, state, q, k, v = stepped(name, 4, 2, 200, budget=32)
        matching_key = q[:, :, -1].unflatten(1, (2, -1)).mean(2)[:, :, None] * 4
        state = method.extend(state, q[:, :, -1:], matching_key, v[:, :, -1:])
        for step in range(100):
            state = method.extend(state, *(x[:, :, step : step + 1] for x in (q, k, v)))
        assert bool((method.select(state, q[:, :, 200]).indices == 201).any(-1).all())

    @pytest.mark.parametrize(
        ("name", "field", "value"),
        [
            ("sparq", "rank", 0), ("sparq", "rank", 1.5), ("sparq", "rank", 0.0), ("sparq", "rank", True),
            ("sparq", "local_share", 1.1), ("sparq", "mean_value", "yes"), ("infinigen", "ratio", 0),
            ("infinigen", "ratio", 1.2), ("infinigen", "alpha", -1), ("squeezed_attention", "cluster_share", 1.5),
            ("squeezed_attention", "threshold", -0.1), ("squeezed_attention", "max_iter", 0),
        ],
    )  # fmt: skip
    def test_fields_out_of_range(self, name, field, value):
        with pytest.raises(kvviz.InvalidInputError, match=field):
            kvviz.methods.create(name, **{field: value})

    def test_a_rank_beyond_the_head_dimension(self):
        with pytest.raises(kvviz.InvalidInputError, match=r"rank.*17.*1 to 16.*layer 4"):
            stepped("sparq", 4, 2, 40, rank=17)


class TestChannelCache:
    @settings(max_examples=30)
    @given(st.lists(st.integers(1, 700), min_size=1, max_size=4), st.sampled_from((1, 3)), st.integers(0, 100))
    def test_it_holds_the_appended_keys(self, lengths, rows, seed):
        generator = torch.Generator().manual_seed(seed)
        parts = [torch.randn(2, 2, length, 5, generator=generator) for length in lengths]
        cache = ChannelCache.of(parts[0])
        for part in parts[1:]:
            cache.append(part)
        keys = torch.cat(parts, dim=2)
        assert torch.equal(cache.channels, keys.transpose(-1, -2))
        chosen = torch.randint(0, 5, (2, 2 * rows, 4), generator=generator)
        picked = cache.pick(chosen)
        for b, row, slot in np.ndindex(2, 2 * rows, 4):
            assert torch.equal(picked[b, row, slot], keys[b, row // rows, :, chosen[b, row, slot]])
