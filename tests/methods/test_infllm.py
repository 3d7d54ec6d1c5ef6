"""InfLLM against loops over tokens, blocks and heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvviz
from tests.methods.blocks import DIM, GROUPS, HEADS, LENGTHS, SCALE, context, random_tensors, reduced, rows_of, run


def infllm_by_hand(method, queries, keys):
    """[(position, block)] per row for the last query, from a prompt's queries [Q, L, D] and keys [H, L, D]."""
    heads, length, _ = queries.shape
    kv_heads, window, size = len(keys), max(method.recent, 1), method.block_size
    end = length - window
    by_kv_head = []
    for kv in range(kv_heads):
        group = range(kv * heads // kv_heads, (kv + 1) * heads // kv_heads)
        scores = np.zeros((len(group), length))
        for row, head in enumerate(group):
            for position in range(1, length):
                near = range(max(position - window, 0), position)
                weights = np.array([queries[head, position] @ keys[kv, m] for m in near])
                if method.measure == "weights":
                    weights = np.exp(weights * SCALE) / np.exp(weights * SCALE).sum()
                scores[row, list(near)] += weights
        relevance = []
        for row, row_scores in enumerate(reduced(scores, method.group)):
            row_heads = [group[row]] if method.group == "each" else group
            block_scores = []
            for start in range(method.sinks, end, size):
                block = range(start, min(start + size, end))
                best = sorted(block, key=lambda m: (-row_scores[m], m))[: method.n_representatives]
                block_scores.append([np.mean([queries[head, -1] @ keys[kv, m] for m in best]) for head in row_heads])
            head_scores = np.array(block_scores).T  # [row's heads, N]
            relevance.append(head_scores[0] if method.group == "each" else reduced(head_scores, method.group)[0])
        by_kv_head.append(relevance)
    relevance = np.array(by_kv_head).reshape(-1, len(by_kv_head[0][0]))
    if method.across_heads:
        relevance[:] = relevance.mean(0)
    rows = []
    for row_scores in relevance:
        chosen: list[tuple[int, int]] = []
        for block in sorted(range(len(row_scores)), key=lambda b: (-row_scores[b], b)):
            start = method.sinks + block * size
            left = method.budget_by_hand - method.sinks - window - len(chosen)
            chosen += [(m, block) for m in range(start, min(start + size, end))][: max(left, 0)]
        always = [(m, -1) for m in (*range(method.sinks), *range(end, length))]
        rows.append(sorted(chosen + always))
    return rows


class TestInfLLM:
    @settings(max_examples=60)
    @given(st.data())
    def test_against_loops(self, data):
        (heads, kv_heads), prompt = data.draw(st.sampled_from(HEADS)), data.draw(st.sampled_from([1, 20, 63, 100, 150]))
        new, integers = data.draw(st.integers(1, 40)), data.draw(st.booleans())
        fields = {
            "budget": data.draw(st.integers(20, 60)),
            "sinks": data.draw(st.integers(0, 6)),
            "recent": data.draw(st.integers(0, 12)),
            "block_size": data.draw(st.sampled_from([4, 7, 16])),
            "n_representatives": data.draw(st.integers(1, 2)),
            "group": data.draw(st.sampled_from(GROUPS)),
            # Small integers are summed without rounding, so that equal scores are equal; softmax weights are not.
            "measure": "logits" if integers else data.draw(st.sampled_from(["logits", "weights"])),
            "across_heads": data.draw(st.booleans()),
            "generated": data.draw(st.sampled_from(["within", "on_top"])),
        }
        method = kvviz.methods.create("infllm", **fields)
        queries, keys, values = random_tensors(prompt + new, heads, kv_heads, seed=data.draw(st.integers(0, 99)))
        if integers:
            queries, keys = queries.round() * heads, keys.round()  # a mean of heads is an integer too
        state, selection = run(method, context(heads, kv_heads), queries, keys, values, prompt)
        assert state.length == prompt + new
        method.budget_by_hand = method.budget + (new if method.generated == "on_top" else 0)
        if prompt + new <= method.budget_by_hand:
            assert selection.indices.shape[-1] == prompt + new
            return
        exact = queries[0].double().numpy(), keys[0].double().numpy()
        assert rows_of(selection) == infllm_by_hand(method, *exact)

    @pytest.mark.parametrize("group", GROUPS)
    @pytest.mark.parametrize("measure", ["logits", "weights"])
    def test_against_loops_at_one_size(self, measure, group):
        queries, keys, values = random_tensors(200, 6, 2, seed=5)
        fields = {"sinks": 3, "recent": 9, "block_size": 10, "n_representatives": 4}
        method = kvviz.methods.create("infllm", budget=65, measure=measure, group=group, **fields)
        _, selection = run(method, context(6, 2), queries, keys, values, 187)
        method.budget_by_hand = 65
        exact = queries[0].double().numpy(), keys[0].double().numpy()
        assert rows_of(selection) == infllm_by_hand(method, *exact)

    @pytest.mark.parametrize(
        "fields",
        [{}, {"group": "each"}, {"group": "max"}, {"preset": "official"}, {"block_size": 5, "n_representatives": 5}],
    )
    def test_blocks_of_generated_tokens_are_those_of_one_prompt(self, fields):
        queries, keys, values = random_tensors(700, 6, 2)
        method = kvviz.methods.create("infllm", budget=128, **fields)
        stepwise, _ = run(method, context(6, 2), queries, keys, values, 30)
        at_once, _ = run(method, context(6, 2), queries, keys, values, 700)
        assert at_once.representatives.shape[2] == -(-(700 - 16 - 32) // method.block_size)
        assert torch.allclose(stepwise.representatives, at_once.representatives, atol=1e-6)
        assert torch.allclose(stepwise.local_scores, at_once.local_scores, atol=1e-4)
        assert torch.allclose(stepwise.open_scores, at_once.open_scores, atol=1e-4)

    def test_the_default_finds_a_planted_block(self):
        """A token that the queries after it attend to, and the last query too: its block is selected."""
        queries, keys, values = (0.1 * tensor for tensor in random_tensors(1000, 4, 4))
        needle = torch.zeros(DIM)
        needle[0] = 3.0
        keys[:, :, 500] = needle
        queries[:, :, 501:530] += needle
        queries[:, :, -1] = needle
        for group in GROUPS:
            method = kvviz.methods.create("infllm", budget=180, group=group)
            _, selection = run(method, context(4, 4), queries, keys, values, 999)
            assert bool((selection.groups[selection.indices == 500] == (500 - 16) // 128).all())
            assert int((selection.indices == 500).sum()) == 4, "one per row"

    @pytest.mark.parametrize("length", LENGTHS)
    def test_ties_go_to_the_earlier_block(self, length):
        queries, keys, values = random_tensors(length + 1, 6, 2)
        for equal_keys in (torch.zeros_like(keys), torch.ones_like(keys)):
            method = kvviz.methods.create("infllm", budget=60)
            _, selection = run(method, context(6, 2), queries, equal_keys, values, length)
            selected = [*range(60 - 32), *range(length + 1 - 32, length + 1)]
            expected = selected if length + 1 > 60 else [*range(length + 1)]
            assert selection.indices.shape[-1] == len(expected)
            if bool((equal_keys == 0).all()) or length <= 100:  # otherwise rounding decides the order
                assert selection.indices[0, 0].tolist() == expected

    def test_a_budget_for_sinks_and_window_only(self):
        queries, keys, values = random_tensors(200, 6, 2)
        method = kvviz.methods.create("infllm", budget=48)
        _, selection = run(method, context(6, 2), queries, keys, values, 200)
        assert selection.indices[0, 0].tolist() == [*range(16), *range(168, 200)]

    def test_representatives_are_a_second_copy_of_keys(self):
        queries, keys, values = random_tensors(500, 6, 2)
        for group, rows in (("mean", 2), ("each", 6)):
            method = kvviz.methods.create("infllm", budget=128, group=group)
            state, _ = run(method, context(6, 2), queries, keys, values, 500)
            assert state.auxiliary_bytes() == rows * 4 * DIM * 4  # 452 tokens in four blocks, float32
            assert state.metadata_bytes() < 3 * keys.numel()
