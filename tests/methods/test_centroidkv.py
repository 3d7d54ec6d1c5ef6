"""CentroidKV: attention against that over single tokens, the merge schedule, the budget, and the memory it frees."""

from __future__ import annotations

import itertools
from dataclasses import make_dataclass, replace

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import kvviz
from kvviz.cache.accounting import ledger_of
from kvviz.cache.decoding import merged_attention
from kvviz.cache.layer_cache import LayerCache
from kvviz.clustering import chunked_soft_matching
from kvviz.clustering.soft_matching import count_links
from kvviz.methods import centroidkv, checks
from kvviz.methods.base import LayerContext
from kvviz.methods.selection import Merged
from tests.tiny_models import make, prompt

CONTEXT = LayerContext(index=4, n_layers=8, n_heads=6, n_kv_heads=2, head_dim=16, scale=0.25)
SMALL = {"budget": 64, "sinks": 4, "recent": 16, "chunk_size": 32, "decode_interval": 16}
GREEDY = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}


def tensors(length, seed=0, heads=6, kv_heads=2, batch=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, rows, length, 16, generator=generator) for rows in (heads, kv_heads, kv_heads)]


def filled(method, keys, values, context=CONTEXT):
    layer = LayerCache(context, method)
    layer.store.append(keys, values)
    layer.build()
    return layer


def decode(layer, keys, values):
    """Feed the tokens one by one."""
    for position in range(keys.shape[2]):
        layer.store.append(keys[:, :, position : position + 1], values[:, :, position : position + 1])
        layer.decode(torch.ones(1, 6, 16))


def dense(query, keys, values, scale=0.25):
    """Attention of queries [B, Q, D] over keys and values [B, H, L, D], one query head at a time."""
    group = query.shape[1] // keys.shape[1]
    logits = torch.einsum("bqd,bqld->bql", query, keys.repeat_interleave(group, 1)) * scale
    return torch.einsum("bql,bqld->bqd", logits.softmax(-1), values.repeat_interleave(group, 1))


class TestAttention:
    @pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)])
    def test_clusters_of_one_token_give_dense_attention(self, heads):
        queries, keys, values = tensors(50, heads=heads[0], kv_heads=heads[1])
        merged = Merged(keys, values, torch.ones(keys.shape[:3], dtype=torch.int32))
        assert torch.allclose(merged_attention(queries[:, :, 7], merged, 0.25)[0],
                              dense(queries[:, :, 7], keys, values), atol=1e-6)  # fmt: skip

    @pytest.mark.parametrize("group", ["mean", "each"])
    def test_merging_equal_keys_changes_nothing(self, group):
        """Eq. 3 is exact if the keys of a cluster are equal, whatever their values."""
        queries, keys, values = tensors(240)
        keys = keys[:, :, ::4].repeat_interleave(4, 2)
        method = kvviz.methods.create("centroidkv", budget=90, sinks=4, recent=20, group=group)
        layer = filled(method, keys, values)
        (state,) = layer.states
        assert state.centroids.degree.amax() == 4
        _, key, value = tensors(1, seed=5)
        layer.store.append(key, value)
        output = layer.decode(queries[:, :, 0])
        expected = dense(queries[:, :, 0], torch.cat([keys, key], 2), torch.cat([values, value], 2))
        assert torch.allclose(output, expected, atol=1e-5)
        assert layer.last.indices.shape == (1, 6 if group == "each" else 2, 25)
        assert layer.last.merged.keys.shape == (1, 2, 66, 16)

    @pytest.mark.parametrize("decoded", [0, 20])  # after 20, 16 tokens are merged
    def test_a_later_prompt_attends_to_a_centroid_as_to_all_its_tokens(self, decoded):
        method = kvviz.methods.create("centroidkv", **SMALL)
        first = 300 + decoded
        queries, keys, values = tensors(first + 30)
        layer = filled(method, keys[:, :, :300], values[:, :, :300])
        decode(layer, keys[:, :, 300:first], values[:, :, 300:first])
        (state,) = layer.states
        centroids, raw_positions = state.centroids, [*range(4), *range(4 + state.joined, first + 30)]
        assert len(raw_positions) == 50 + decoded % 16
        layer.store.append(keys[:, :, first:], values[:, :, first:])
        prompt_keys, prompt_values, mask = layer.prompt_inputs(30)
        output = torch.nn.functional.scaled_dot_product_attention(
            queries[:, :, first:], prompt_keys, prompt_values, mask, scale=0.25, enable_gqa=True
        )
        for head, new in itertools.product(range(6), (0, 13, 29)):
            kv_head, visible = head // 3, raw_positions[: len(raw_positions) - 29 + new]
            single_tokens = []
            for merged, raw in ((centroids.keys, keys), (centroids.values, values)):
                repeated = merged[0, kv_head].repeat_interleave(centroids.degree[0, kv_head], 0)
                single_tokens.append(torch.cat([repeated, raw[0, kv_head, visible]])[None, None])
            assert single_tokens[0].shape[2] == first + 1 + new
            expected = dense(queries[:, head : head + 1, first + new], *single_tokens)
            assert torch.allclose(output[:, head, new], expected[:, 0], atol=1e-5)
        layer.build()
        (state,) = layer.states
        assert (state.prompt_length, state.joined) == (first + 30, first + 10)
        assert state.centroids.degree.shape[-1] == 44
        assert (state.centroids.degree.sum(-1) == first + 10).all()
        assert layer.store.used == 20


class TestMethod:
    @pytest.mark.parametrize(
        ("share", "fields", "expected"),  # None: the last round ends at the budget
        [
            (0.75, {}, [None]),
            (0.25, {}, [0.8, 0.6, 0.4, 0.2, 0.2, 0.2, None]),
            (0.25, {"least_ratio": 0.3, "ratio_step": 0.5}, [0.8, 0.3, 0.3, 0.3, 0.3, 0.3, None]),
            (0.25, {"initial_ratio": 1.0, "ratio_step": 0.0}, [1.0, 1.0, None]),
            (0.25, {"schedule": "cyclic"}, [0.8, 0.6, 0.4, 0.2, None]),
        ],
    )
    def test_the_schedule_ends_exactly_at_the_budget(self, monkeypatch, share, fields, expected):
        rounds = []

        def recorded(keys, *rest, ratio, **kwargs):
            centroids = chunked_soft_matching(keys, *rest, ratio=ratio, **kwargs)
            rounds.append((ratio, keys.shape[2], centroids.keys.shape[2]))
            return centroids

        monkeypatch.setattr(centroidkv, "chunked_soft_matching", recorded)
        _, keys, values = tensors(4096)
        method = kvviz.methods.create("centroidkv", budget=share, **fields)
        state = method.build(CONTEXT, keys[:, :, :0], keys, values)
        ratios = [ratio for ratio, *_ in rounds]
        assert len(ratios) == len(expected)
        assert ratios[:-1] == pytest.approx(expected[:-1])
        lengths = [rounds[0][1], *(after for *_, after in rounds)]
        for ratio, before, after in rounds:
            assert before - after == pytest.approx(ratio * count_links(before, 256), abs=0.51)
        assert (lengths[0], lengths[-1]) == (4016, share * 4096 - 80)
        assert state.centroids.degree.shape == (1, 2, share * 4096 - 80)
        assert (state.centroids.degree.sum(-1) == 4016).all()

    @pytest.mark.parametrize(
        ("schedule", "built", "decoded"),  # centroids after each round
        [
            ("floor", [48, 36, 32, 29, 26, 23, 21, 19, 17, 15, 14], [18, 14]),
            ("cyclic", [48, 36, 32, 19, 14], [18, 14]),
            ("overshoot", [48, 36, 32, 29, 26, 23, 21, 19, 17, 15, 13], [18, 14]),
            ("literal", [48, 36, 32, 29, 26, 23, 21, 19, 17, 15, 13], [27, 27, 27]),
        ],
    )
    def test_the_rounds_of_each_schedule(self, schedule, built, decoded):
        """By hand: of L entries, 80 first, a round merges the share 0.8, 0.5 or 0.2 of ceil(L / 2) links, down to 14.

        While decoding, 30 entries are merged each time: when 34 + 16 are in the cache. "literal" keeps 27 of them, so
        that three tokens later they are 30 again.
        """
        fields = {"budget": 34, "chunk_size": None, "ratio_step": 0.3, "schedule": schedule}
        method = kvviz.methods.create("centroidkv", **{**SMALL, **fields})
        _, keys, values = tensors(125)
        lengths, one_round = [], method._round

        def recorded(*args):
            merged = one_round(*args)
            lengths.append(merged.degree.shape[-1])
            return merged

        method._round = recorded
        state = method.build(CONTEXT, keys[:, :, :0], keys[:, :, :100], values[:, :, :100])
        assert lengths == built
        for position in range(100, 125):
            new = slice(position, position + 1)
            state = method.extend(state, keys[:, :, :0], keys[:, :, new], values[:, :, new])
        assert lengths[len(built) :] == decoded

    @pytest.mark.parametrize(
        ("schedule", "printed"),
        [("floor", [1.10, 2.08, 4.03]), ("overshoot", [1.09, 2.04, 3.96]), ("literal", [1.09, 2.04, 3.96])],
    )
    def test_only_a_last_round_that_is_cut_gives_the_papers_cache(self, schedule, printed):
        """Its tables 6 and 7: 1.10, 2.08 and 4.03 GB for a quarter of the prompt and 1,000 generated tokens.

        A token of Llama-3.1-8B and Mistral-7B takes 32 layers · 8 heads · 128 channels · 2 · 2 bytes.
        """
        method = kvviz.methods.create("centroidkv", budget=0.25, schedule=schedule)
        context, sizes = LayerContext(4, 8, 1, 1, 2, 1.0), []
        for length in (32_000, 64_000, 128_000):
            keys = torch.randn(1, 1, length, 2, generator=torch.Generator().manual_seed(0))
            state = method.build(context, keys[:, :, :0], keys, keys)
            sizes.append((80 + state.centroids.degree.shape[-1] + 1000) * 32 * 8 * 128 * 2 * 2 / 2**30)
        assert [round(size, 2) for size in sizes] == printed

    @pytest.mark.parametrize("schedule", ["cyclic", "overshoot", "literal"])
    def test_the_common_checks_pass_with_each_schedule(self, schedule):
        checks.run(make_dataclass("Variant", [("schedule", str, schedule)], bases=(centroidkv.CentroidKV,)))

    @pytest.mark.parametrize(
        ("length", "recent", "schedule"),
        [(150, 16, "floor"), (40, 16, "floor"), (90, 0, "floor"), (150, 16, "overshoot"), (150, 16, "literal")],
    )
    def test_a_long_generation_stays_within_the_budget_and_the_interval(self, length, recent, schedule):
        method = kvviz.methods.create("centroidkv", **{**SMALL, "recent": recent, "schedule": schedule})
        _, keys, values = tensors(length + 330)
        context = LayerContext(4, 8, 6, 2, 16, 0.25, details=True)
        layer, largest = filled(method, keys[:, :, :length], values[:, :, :length], context), 0
        for end in range(length + 1, length + 331):
            decode(layer, keys[:, :, end - 1 : end], values[:, :, end - 1 : end])
            chosen, (state,) = layer.last, layer.states
            if end > 160:
                largest = max(largest, chosen.indices.shape[-1] + chosen.merged.degree.shape[-1])
                raw = [*range(4), *range(4 + state.joined, end)]
                assert chosen.indices[0, 1].tolist() == raw
                assert raw[-max(recent, 1) :] == list(range(end - max(recent, 1), end))
                assert (chosen.merged.degree.sum(-1) == state.joined).all()
        assert largest == 64 + 15
        for head in range(2):
            members = chosen.merged.members[0, head]
            assert torch.equal(members >= 0, ~torch.isin(torch.arange(end), chosen.indices[0, head]))
            for centroid in range(chosen.merged.degree.shape[-1]):
                tokens = (members == centroid).nonzero()[:, 0]
                assert len(tokens) == chosen.merged.degree[0, head, centroid]
                for merged, raw in ((chosen.merged.keys, keys), (chosen.merged.values, values)):
                    assert torch.allclose(merged[0, head, centroid], raw[0, head, tokens].mean(0), atol=1e-5)

    def test_generated_tokens_are_never_merged_without_an_interval(self):
        method = kvviz.methods.create("centroidkv", **{**SMALL, "decode_interval": None, "generated": "on_top"})
        _, keys, values = tensors(300)
        state = method.build(CONTEXT, keys[:, :, :0], keys[:, :, :100], values[:, :, :100])
        state = method.extend(state, keys[:, :, :0], keys[:, :, 100:], values[:, :, 100:])
        assert state.joined == 80

    @pytest.mark.parametrize("details", [False, True])  # the details that recordings need are not counted
    def test_counted_bytes_are_those_of_the_tensors_and_old_tensors_are_freed(self, details):
        layer = LayerCache(replace(CONTEXT, details=details), kvviz.methods.create("centroidkv", **SMALL))
        _, keys, values = tensors(700)
        layer.store.append(keys[:, :, :600], values[:, :, :600])

        def buffers():
            tensors_in_use = [layer.store.key_buffer, layer.store.value_buffer]
            for state in layer.states:
                tensors_in_use += [state.centroids.keys, state.centroids.values]
            return [tensor.untyped_storage() for tensor in tensors_in_use]

        def check_and_watch():
            ledger = ledger_of([layer], ())
            (state,) = layer.states
            assert ledger.kept_bytes == {"device": sum(storage.nbytes() for storage in buffers())}
            assert ledger.metadata_bytes == ledger.extra_bytes == state.centroids.degree.untyped_storage().nbytes()
            return [StorageWeakRef(storage) for storage in buffers()], ledger.kept_bytes["device"]

        before = [StorageWeakRef(storage) for storage in buffers()]
        layer.build()
        assert all(storage.expired() for storage in before), "the prompt's keys and values are still in memory"
        built, kept_bytes = check_and_watch()
        assert kept_bytes == 2 * 2 * 16 * 4 * ((20 + 64) + 44)  # keys and values, heads, width, bytes; with spare room
        decode(layer, keys[:, :, 600:664], values[:, :, 600:664])
        assert all(storage.expired() for storage in built), "the tensors from before the last merge are still in memory"
        assert check_and_watch()[1] == kept_bytes

    @pytest.mark.parametrize("interval", [16, 100])
    def test_merged_tokens_are_freed_in_the_step_that_merges_them(self, interval):
        """The store keeps 4 sinks, 16 recent tokens and room for 64 more; the method 44 centroids."""
        layer = LayerCache(CONTEXT, kvviz.methods.create("centroidkv", **{**SMALL, "decode_interval": interval}))
        _, keys, values = tensors(300 + interval)
        layer.store.append(keys[:, :, :300], values[:, :, :300])
        layer.build()
        decode(layer, keys[:, :, 300:-1], values[:, :, 300:-1])
        buffer = layer.store.key_buffer
        assert layer.store.used == 20 + interval - 1
        decode(layer, keys[:, :, -1:], values[:, :, -1:])
        assert layer.store.used == 20
        assert ledger_of([layer], ()).kept_bytes == {"device": 2 * 2 * 16 * 4 * (20 + 64 + 44)}
        assert layer.store.key_buffer is not buffer
        buffer = layer.store.key_buffer
        decode(layer, *(tensors(10, seed=1)[1:]))
        assert layer.store.key_buffer is buffer, "a step that merges nothing copies nothing"

    def test_a_prompt_within_the_budget_has_no_second_reference_to_the_buffer(self):
        _, keys, values = tensors(50)
        layer = filled(kvviz.methods.create("centroidkv", **SMALL), keys, values)
        (state,) = layer.states
        centroid_tensors = (state.centroids.keys, state.centroids.values, state.centroids.degree)
        assert [tensor.untyped_storage().nbytes() for tensor in centroid_tensors] == [0, 0, 0]

    @pytest.mark.parametrize(
        ("field", "value"),
        [("chunk_size", 1), ("initial_ratio", 0.0), ("initial_ratio", 1.1), ("ratio_step", -0.1), ("least_ratio", 0.9),
         ("least_ratio", 0), ("decode_interval", 0), ("budget", 80), ("schedule", "constant")],
    )  # fmt: skip
    def test_fields_out_of_range(self, field, value):
        with pytest.raises(kvviz.KVVizError, match=field):
            kvviz.methods.create("centroidkv", **{field: value})


class TestModel:
    @pytest.fixture
    def llama(self):
        model = make("llama")
        kvviz.attach(model)
        return model

    def cache(self, model):
        return kvviz.SelectiveCache(model, kvviz.methods.create("centroidkv", **SMALL))

    def test_a_conversation_is_merged_to_the_budget_at_every_turn(self, llama):
        cache, ids = self.cache(llama), prompt(200)
        for turn in range(3):
            ids = llama.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, **GREEDY)
            length = ids.shape[1] - 1  # the last generated token is not in the cache yet
            for layer in cache.selective_layers:
                (state,) = layer.states
                assert state.length == length
                assert (state.centroids.degree.sum(-1) == state.joined).all()
                assert layer.last.indices.shape[-1] + layer.last.merged.degree.shape[-1] < 64 + 16
                assert state.prompt_length == length - 23
                assert layer.store.key_buffer.shape[2] < 200
            ids = torch.cat([ids, prompt(90, seed=10 + turn)], dim=1)

    @pytest.mark.slow
    def test_left_padding_does_not_change_a_row(self, llama):
        short, long = prompt(90, seed=2), prompt(200, seed=3)
        padded = torch.cat([torch.cat([torch.zeros(1, 110, dtype=torch.long), short], 1), long])
        mask = (padded != 0).long()
        together = llama.generate(padded, attention_mask=mask, past_key_values=self.cache(llama), **GREEDY)
        for row, ids in enumerate((short, long)):
            alone = llama.generate(ids, past_key_values=self.cache(llama), **GREEDY)
            assert torch.equal(together[row, 200:], alone[0, ids.shape[1] :]), f"row {row}"

    @pytest.mark.model
    @pytest.mark.slow
    def test_the_real_model(self, lm, prose):
        ledger = kvviz.generate(lm, lm.encode(prose[:2000])[:, :400], "centroidkv", 256, max_new_tokens=20).ledger
        counted = (ledger.sinks, ledger.recent, ledger.selected, ledger.merged, ledger.generated)
        assert counted == (16, 64, 0, 176, 19)
