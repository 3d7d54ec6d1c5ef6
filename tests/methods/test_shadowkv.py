"""ShadowKV against loops over tokens, chunks and heads, and invalid fields of ShadowKV and InfLLM."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

import kvviz
from kvviz.cache.decoding import attend_selection
from kvviz.offload import DeviceStore
from tests.methods.blocks import DIM, GROUPS, HEADS, LENGTHS, SCALE, context, random_tensors, reduced, rows_of, run


def shadowkv_by_hand(method, prompt, queries, keys, step_budget, n_outliers):
    """[(position, chunk)] per row for the last query. `n_outliers` outlier chunks fit in the budget."""
    heads, length, _ = queries.shape
    kv_heads, size = len(keys), method.chunk_size
    recent = max(method.recent, 1)
    of_prompt = max(prompt - recent - method.sinks, 0) // size
    chunks = of_prompt if method.generated == "on_top" else max(length - recent - method.sinks, 0) // size
    start, end = method.sinks, method.sinks + chunks * size
    rows = []
    for kv in range(kv_heads):
        parts = [keys[kv, start + c * size : start + (c + 1) * size].astype(np.float64) for c in range(chunks)]
        means = [part.mean(0) for part in parts]
        cosines = [
            min(float(k @ mean) / np.linalg.norm(k) / np.linalg.norm(mean) for k in part)
            for part, mean in zip(parts, means, strict=True)
        ]
        outliers = sorted(range(of_prompt), key=lambda c: (cosines[c], c))[:n_outliers]
        regular = [c for c in range(chunks) if c not in outliers]
        group = range(kv * heads // kv_heads, (kv + 1) * heads // kv_heads)
        logits = np.array([[queries[head, -1] @ means[c] * SCALE for c in regular] for head in group])
        weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        for row_weights in reduced(weights, method.group):
            room = max(step_budget - method.sinks - (length - end), 0) // size
            attended, room = outliers[:room], room - len(outliers[:room])
            window = range(max(end, length - (step_budget - method.sinks)), length)
            best = [regular[i] for i in sorted(range(len(regular)), key=lambda i: (-row_weights[i], i))[:room]]
            chosen = [(start + c * size + i, -1 if c in outliers else c) for c in attended + best for i in range(size)]
            rows.append(sorted(chosen + [(m, -1) for m in (*range(start), *window)]))
    return rows


class TestShadowKV:
    @settings(max_examples=60)
    @given(st.data())
    def test_against_loops(self, data):
        (heads, kv_heads), prompt = data.draw(st.sampled_from(HEADS)), data.draw(st.sampled_from([1, 20, 63, 100, 300]))
        size, new = data.draw(st.sampled_from([1, 5, 8])), data.draw(st.integers(1, 20))
        fields = {
            "budget": data.draw(st.integers(30, 90)),
            "sinks": data.draw(st.integers(0, 6)),
            "recent": data.draw(st.integers(0, 12)),
            "chunk_size": size,
            "n_outliers": 0 if size == 1 else data.draw(st.integers(0, 6)),  # a single key equals its landmark
            "outlier_share": data.draw(st.sampled_from([0.0, 0.16, 1.0])),
            "group": data.draw(st.sampled_from(GROUPS)),
            "generated": data.draw(st.sampled_from(["within", "on_top"])),
        }
        method = kvviz.methods.create("shadowkv", **fields)
        budget = method.budget + (new if method.generated == "on_top" else 0)
        queries, keys, values = random_tensors(prompt + new, heads, kv_heads, seed=data.draw(st.integers(0, 99)))
        state, selection = run(method, context(heads, kv_heads), queries, keys, values, prompt)
        assert state.length == prompt + new
        if prompt + new <= budget:
            assert selection.indices.shape[-1] == prompt + new
            return
        free = method.budget - method.sinks - max(method.recent, 1) - (size - 1)
        n_outliers = min(method.n_outliers, int(method.outlier_share * free / size))
        exact = queries[0].double().numpy(), keys[0].double().numpy()
        assert rows_of(selection) == shadowkv_by_hand(method, prompt, *exact, budget, n_outliers)

    @pytest.mark.parametrize("group", GROUPS)
    def test_against_loops_at_one_size(self, group):
        queries, keys, values = random_tensors(220, 6, 2, seed=5)
        method = kvviz.methods.create("shadowkv", budget=90, sinks=3, recent=9, outlier_share=0.5, group=group)
        _, selection = run(method, context(6, 2), queries, keys, values, 207)
        exact = queries[0].double().numpy(), keys[0].double().numpy()
        assert rows_of(selection) == shadowkv_by_hand(method, 207, *exact, 90, 4)

    def test_the_chunk_with_a_key_unlike_the_others_is_an_outlier(self):
        queries, keys, values = random_tensors(1000, 6, 2)
        keys = 0.1 * keys + 1
        keys[:, :, 403] = -1
        method = kvviz.methods.create("shadowkv", budget=128, n_outliers=1, outlier_share=1.0)
        state, selection = run(method, context(6, 2), queries, keys, values, 1000)
        assert state.outliers.tolist() == [[[403 // 8], [403 // 8]]]
        assert set(range(400, 408)) <= set(selection.indices[0, 0].tolist())
        is_outlier_key = selection.indices[0, 0] == 403
        assert selection.groups[0, 0][is_outlier_key].tolist() == [-1]
        assert selection.scores[0, 0][is_outlier_key].isnan().all()

    def test_outliers_shrink_with_the_budget(self):
        queries, keys, values = random_tensors(3000, 6, 2)
        counts = {}
        for budget in (64, 256, 1024, 2500):
            method = kvviz.methods.create("shadowkv", budget=budget)
            state, selection = run(method, context(6, 2), queries, keys, values, 3000)
            counts[budget] = state.outliers.shape[-1]
            assert budget - 8 < selection.indices.shape[-1] <= budget
        assert counts == {64: 0, 256: 4, 1024: 19, 2500: 48}

    @pytest.mark.parametrize("length", LENGTHS)
    def test_degenerate_keys(self, length):
        """If landmarks are equal, the earlier chunk is selected; with duplicated keys the selection is valid."""
        queries, keys, values = random_tensors(length + 1, 6, 2)
        method = kvviz.methods.create("shadowkv", budget=63, n_outliers=0)
        _, selection = run(method, context(6, 2), queries, torch.zeros_like(keys), values, length)
        if length > 63:
            end = (length - 32) // 8 * 8
            room = (64 - (length + 1 - end)) // 8 * 8
            assert selection.indices[0, 0].tolist() == [*range(room), *range(end, length + 1)]
        repeated = keys[:, :, :3].repeat(1, 1, length, 1)[:, :, : length + 1]
        _, selection = run(
            kvviz.methods.create("shadowkv", budget=63), context(6, 2), queries, repeated, values, length
        )
        assert bool((selection.indices.diff(dim=-1) > 0).all())

    @pytest.mark.parametrize("softcap", [None, 2.0])
    @pytest.mark.parametrize("rank", [1, 5, 16, 99])
    def test_low_rank_keys_of_selected_chunks(self, rank, softcap):
        """Attention over truncated-SVD keys in the selected chunks and exact keys elsewhere; 16 is the full rank."""
        length = 300
        queries, keys, values = random_tensors(length, 6, 2)
        method = kvviz.methods.create("shadowkv", budget=96, group="each", rank=rank)
        state, selection = run(method, context(6, 2, softcap=softcap), queries, keys, values, length - 1)
        store = DeviceStore()
        store.append(keys, values)
        output = attend_selection(queries[:, :, -1], store, selection, SCALE, softcap)[0].double().numpy()
        joint_keys = keys[0, :, : state.end].double().numpy().transpose(1, 0, 2).reshape(state.end, -1)  # [n, H·D]
        u, s, v = np.linalg.svd(joint_keys, full_matrices=False)
        low_rank_keys = ((u[:, :rank] * s[:rank]) @ v[:rank]).reshape(state.end, 2, DIM)
        assert (float(selection.bias.abs().max()) > 1e-3) == (rank < 16)
        for head in range(6):
            logits, vectors = [], []
            for position, chunk in rows_of(selection)[head]:
                key = keys[0, head // 3, position].double().numpy() if chunk < 0 else low_rank_keys[position, head // 3]
                logit = float(queries[0, head, -1].double().numpy() @ key) * SCALE
                logits.append(logit if softcap is None else softcap * np.tanh(logit / softcap))
                vectors.append(values[0, head // 3, position].double().numpy())
            weights = np.exp(logits) / np.exp(logits).sum()
            assert np.allclose(output[head], weights @ np.array(vectors), atol=1e-5)

    @pytest.mark.parametrize("rank", [1, 3, 16])
    def test_low_rank_keys_before_rope(self, rank):
        """Keys that llama's RoPE rotates: the factors are the truncated SVD of what it rotated, rotated again."""
        length, sinks = 300, 3
        queries, plain, values = random_tensors(length, 6, 2)
        plain = plain @ torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(1)).tril()  # uneven spectrum
        config = LlamaConfig(head_dim=DIM, rope_theta=500.0, hidden_size=DIM * 6, num_attention_heads=6)
        cosine, sine = LlamaRotaryEmbedding(config)(plain, torch.arange(length)[None])
        queries, keys = apply_rotary_pos_emb(queries, plain, cosine, sine)
        fields = {"budget": 96, "sinks": sinks, "group": "each", "rank": rank}
        method = kvviz.methods.create("shadowkv", **fields, rope_base=500.0)
        state, selection = run(method, context(6, 2), queries, keys, values, length - 1)
        joint_keys = plain[0, :, sinks : state.end].double().numpy().transpose(1, 0, 2).reshape(state.end - sinks, -1)
        u, s, v = np.linalg.svd(joint_keys, full_matrices=False)
        low_rank = torch.from_numpy((u[:, :rank] * s[:rank]) @ v[:rank]).view(1, -1, 2, DIM).transpose(1, 2)
        rotated = apply_rotary_pos_emb(low_rank, low_rank, cosine[:, sinks : state.end], sine[:, sinks : state.end])[0]
        for head, chosen in enumerate(rows_of(selection)):
            query = queries[0, head, -1].double()
            for slot, (position, chunk) in enumerate(chosen):
                error = 0.0 if chunk < 0 else rotated[0, head // 3, position - sinks] - keys[0, head // 3, position]
                expected = 0.0 if chunk < 0 else float(query @ error) * SCALE
                assert float(selection.bias[0, head, slot]) == pytest.approx(expected, abs=1e-4)
        method = kvviz.methods.create("shadowkv", **fields)
        _, after_rope = run(method, context(6, 2), queries, keys, values, length - 1)
        assert torch.equal(after_rope.indices, selection.indices)
        if rank < 16:
            assert selection.bias.square().sum() < after_rope.bias.square().sum()

    def test_generated_chunks_keep_exact_keys(self):
        """Low-rank keys are those of the prompt's chunks; 40 generated tokens make four chunks more."""
        queries, keys, values = random_tensors(240, 6, 2)
        method = kvviz.methods.create("shadowkv", budget=230, group="each", rank=2)
        state, selection = run(method, context(6, 2), queries, keys, values, 200)
        assert (state.exact_from, state.end, state.others.used) == (21, 208, 26 - state.outliers.shape[-1])
        later = selection.indices >= 168
        recalled = (selection.groups >= 21) & later
        assert bool(recalled.any()), "a chunk of generated tokens is recalled"
        assert bool((selection.bias[later] == 0).all())
        assert bool((selection.bias[~later & (selection.groups >= 0)] != 0).all())

    def test_metadata(self):
        queries, keys, values = random_tensors(840, 6, 2)  # 101 chunks; (512 - 39) * 0.16 / 8 = 9 outliers
        for rank in (None, 4):
            method = kvviz.methods.create("shadowkv", budget=512, group="each", rank=rank)
            state, _ = run(method, context(6, 2), queries, keys, values, 840)
            landmarks, chunks = 2 * (101 - 9) * DIM * 4, 2 * 101 * 8
            coefficients, basis = (0, 0) if rank is None else (101 * 8 * 4 * 4, 2 * 4 * DIM * 4)
            assert state.auxiliary_bytes() == landmarks + coefficients + basis
            assert state.metadata_bytes() == landmarks + coefficients + basis + chunks
            assert state.read_bytes() == landmarks + basis + chunks


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("infllm", "block_size", 0),
        ("infllm", "n_representatives", 0),
        ("infllm", "n_representatives", 129),
        ("infllm", "n_representatives", 1.5),
        ("infllm", "sinks", -1),
        ("shadowkv", "chunk_size", 0),
        ("shadowkv", "chunk_size", None),
        ("shadowkv", "n_outliers", -1),
        ("shadowkv", "outlier_share", 1.1),
        ("shadowkv", "outlier_share", float("nan")),
        ("shadowkv", "rank", 0),
        ("shadowkv", "rank", 160),  # with the default group
        ("shadowkv", "rope_base", 0.5),
        ("shadowkv", "rope_base", 1e4),  # without a rank
    ],
)
def test_fields_out_of_range(name, field, value):
    with pytest.raises(kvviz.InvalidInputError, match=f"{name}: {field}"):
        kvviz.methods.create(name, **{field: value})


def test_unknown_measures_and_small_budgets():
    with pytest.raises(kvviz.UnknownNameError, match="did you mean 'weights'"):
        kvviz.methods.create("infllm", measure="weight")
    with pytest.raises(kvviz.InvalidInputError, match="at least 48"):
        kvviz.methods.create("infllm", budget=47)
    with pytest.raises(kvviz.InvalidInputError, match="at least 39"):
        kvviz.methods.create("shadowkv", budget=38)
