"""The computations of the benchmarks, apart from times: samples, references, spreads, growth."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import kvviz
from kvviz.cache.attachment import attached
from kvviz.tasks import needle_sample, needle_samples
from kvviz.trace import Geometry, Trace
from tests import tiny_models

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "data" / "benchmarks"))  # scripts, not an installed package

from parts import (  # noqa: E402  # found through the line above
    build,
    decode,
    decode_kernels,
    edits,
    end_to_end,
    inputs,
    long_layers,
    needle,
    offload_tables,
    recall,
    spread,
    throughput,
)


@pytest.fixture(scope="module")
def lm() -> kvviz.LanguageModel:
    """A tiny model whose tokens are the printable characters."""
    return kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer(), "tiny")


HAYSTACK = " ".join(f"Sentence {number} says that {number * 7919} sheep came home." for number in range(400))


class TestNeedles:
    def test_the_answer_is_once_in_the_context_and_nowhere_else(self, lm):
        for sample in needle_samples(lm, HAYSTACK, count=12, tokens=600):
            assert sample.context.count(sample.answer) == 1
            assert sample.context.count(sample.needle) == 1
            assert sample.answer in sample.needle
            assert sample.answer not in sample.question
            assert sample.needle.startswith(sample.question.partition("? ")[2])

    def test_the_rest_is_a_part_of_the_haystack(self, lm):
        for sample in needle_samples(lm, HAYSTACK, count=12, tokens=600):
            before, after = sample.context.split(sample.needle)
            assert f"{before.rstrip()} {after.lstrip()}".strip() in HAYSTACK
            assert before.rstrip()[-1:] in ("", "."), "between two sentences"

    def test_lengths_and_depths(self, lm):
        samples = needle_samples(lm, HAYSTACK, count=8, tokens=900)
        sentence = 45
        for place, sample in enumerate(samples):
            assert 895 <= lm.encode(sample.context).shape[1] <= 902
            assert sample.depth == (place + 0.5) / 8
            assert abs(sample.context.index(sample.needle) - sample.depth * 900) < sentence + len(sample.needle)
        first, last = (needle_sample(lm, HAYSTACK, tokens=900, depth=depth) for depth in (0.0, 1.0))
        assert first.context.startswith(first.needle)
        assert last.context.endswith(last.needle)

    def test_seeds_repeat_and_differ(self, lm):
        ids = lm.encode(HAYSTACK)
        assert needle_samples(lm, HAYSTACK, count=5, tokens=600, seed=3) == needle_samples(
            lm, ids, count=5, tokens=600, seed=3
        )
        samples = needle_samples(lm, HAYSTACK, count=16, tokens=600)
        assert len({sample.answer for sample in samples}) == 16
        assert len({sample.question for sample in samples}) > 8

    def test_a_number_in_the_haystack_is_never_the_answer(self, lm):
        original = needle_sample(lm, HAYSTACK, tokens=600, seed=1)
        haystack = HAYSTACK.replace(" sheep", f"{original.answer} sheep")
        sample = needle_sample(lm, haystack, tokens=600, seed=1)
        assert sample.answer != original.answer
        assert sample.context.count(sample.answer) == 1

    def test_bad_input(self, lm):
        with pytest.raises(kvviz.InvalidInputError, match="depth"):
            needle_sample(lm, HAYSTACK, depth=1.2)
        with pytest.raises(kvviz.InvalidInputError, match="tokens"):
            needle_sample(lm, "A short text.", tokens=600)
        with pytest.raises(kvviz.InvalidInputError, match="count"):
            needle_samples(lm, HAYSTACK, count=0)

    @pytest.mark.slow
    @pytest.mark.model
    def test_the_real_model_finds_a_needle(self):
        lm = inputs.model()
        sample = needle_sample(lm, inputs.prose(), tokens=600, depth=0.3)
        assert abs(lm.encode(sample.context).shape[1] - 600) <= 8
        out = kvviz.generate(lm, sample.context, "full", question=sample.question, max_new_tokens=needle.NEW_TOKENS)
        assert sample.answer in out.text


class TestSpread:
    def test_over_seeds_and_windows(self):
        spreads = spread.over_seeds_and_windows({(0, 10): 1.0, (0, 20): 3.0, (1, 10): 2.0, (1, 20): 6.0})
        assert spreads == {"mean": 3.0, "seeds": [2.0, 4.0], "windows": [1.5, 4.5]}

    def test_a_method_without_seeds_has_no_spread_over_them(self):
        assert spread.over_seeds_and_windows({(0, 0): 1.0, (0, 1): 2.0})["seeds"] is None

    def test_exponents(self):
        assert spread.exponents([1000, 2000, 4000], [3.0, 6.0, 24.0]) == pytest.approx([1.0, 2.0])
        assert spread.exponents([1000, 3000], [1.0, 27.0]) == pytest.approx([3.0])

    @pytest.mark.parametrize(
        ("ours", "expected"),
        [
            ([5, 5, 5], 1),
            ([9, 5, 5], 2),
            ([9, 9, 5], 4),
            ([9, 9, 9], None),
            ([5, 5, 9], None),
            ([5, 9, 5], 4),
            ([6, 6, 6], None),
        ],
    )
    def test_cheaper_from(self, ours, expected):
        assert spread.cheaper_from([1, 2, 4], ours, [6, 6, 6]) == expected


def random_trace(length: int) -> Trace:
    """A random trace of one layer with 6 query heads and 2 KV heads."""
    rng = np.random.default_rng(0)
    queries, keys, values = ({1: rng.normal(size=(heads, length, 16)).astype(np.float16)} for heads in (6, 2, 2))
    return Trace(
        model="random", geometry=Geometry(2, 6, 2, 16, 4096), tokens=["word"] * length,
        token_ids=np.arange(length, dtype=np.int64), queries=queries, keys=keys, values=values,
    )  # fmt: skip


class TestRecall:
    @pytest.mark.parametrize(("name", "group"), [("quest", "mean"), ("clusterkv", "each"), ("oracle", "max")])
    def test_recall_of_the_budget_equals_counting(self, name, group):
        trace = random_trace(200)
        method = kvviz.methods.create(name, budget=64, dense_layers=0, group=group)
        recording = kvviz.replay(trace, method, queries=3)
        geometry = recording.geometry
        size = geometry.n_heads // geometry.n_kv_heads
        for step in range(3):
            length = 197 + step + 1
            queries = trace.queries[1][:, length - 1].astype(np.float64)
            keys = trace.keys[1][:, :length].astype(np.float64)
            for head in range(geometry.n_kv_heads):
                logits = queries[head * size : (head + 1) * size] @ keys[head].T * geometry.head_dim**-0.5
                weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
                best = set(np.argsort(-weights.mean(0))[:64].tolist())
                rows = recording.indices(step, 1).reshape(geometry.n_kv_heads, -1)[head]
                expected = len(best & set(rows.tolist())) / len(best)
                assert recall.recall_of_budget(recording, step, 1)[head] == pytest.approx(expected)

    def test_the_oracle_has_full_recall_and_full_attention_is_left_out(self):
        trace = random_trace(200)
        row = recall.measured(trace, kvviz.methods.create("oracle", budget=64))
        assert row["recall"] == 1.0
        assert row["attended_tokens"] == 64
        assert recall.measured(trace, kvviz.methods.create("full")) is None

    def test_bytes_per_token_are_those_of_the_ledger(self):
        trace = random_trace(200)
        row = recall.measured(trace, kvviz.methods.create("quest", budget=64, dense_layers=0))
        layer = inputs.Layer.of(trace, 1)
        state = layer.build(kvviz.methods.create("quest", budget=64))  # Quest's pages do not depend on how they grew
        assert row["metadata_bytes"] == pytest.approx(state.metadata_bytes() / 200)
        assert row["auxiliary_bytes"] == 0

    def test_orders(self):
        def rows(**masses):
            return [{"label": label, "attention_mass": {"mean": mass}} for label, mass in masses.items()]

        old = {"rows": rows(clusterkv=0.8, quest=0.9, streaming_llm=0.75), "left_out": {"a": "b"}, "tokens": 64}
        table = recall.merged(old, {"rows": rows(quest=0.7, ctkvr=0.6), "left_out": {}, "tokens": 64})
        assert table["rows"] == rows(clusterkv=0.8, quest=0.7, streaming_llm=0.75, ctkvr=0.6)
        orders = {"clusterkv > quest": True, "quest > streaming_llm": False, "ctkvr > quest": False}
        assert table == old | {"rows": table["rows"], "orders_of_mass": orders}


def test_needles_are_summed_by_label_and_budget():
    def compared(prompt_length: int, correct: bool, value: float) -> pd.DataFrame:
        numbers = dict.fromkeys(needle.MEANS, value)
        rows = [("full", prompt_length, True), ("a", 256, correct), ("a", 512, False), ("b", 256, False)]
        return pd.DataFrame([{"method": m, "budget": b, "correct": c} | numbers for m, b, c in rows])

    rows = needle.summed([compared(2001, True, 1.0), compared(1999, False, 3.0)], budgets=(256, 512))
    assert [(row["label"], row["budget"], row["correct"], row["of"]) for row in rows] == [
        ("full", 0, 2, 2), ("a", 256, 1, 2), ("a", 512, 0, 2), ("b", 256, 0, 2),
    ]  # fmt: skip
    assert all(row[name] == 2.0 for row in rows for name in needle.MEANS)


def test_every_method_states_the_cost_of_its_build():
    stated = {name: build.stated_operations(kvviz.methods.get(name)) for name in kvviz.methods.names()}
    assert stated["clusterkv"] == "O(iterations · C · L · D)"
    assert stated["quest"] == "O(L·D)"
    assert all(stated.values())


def test_rows_are_all_methods_with_their_presets():
    labels = [configuration.label for configuration in inputs.configurations()]
    assert len(set(labels)) == len(labels)
    assert set(kvviz.methods.names()) <= set(labels)
    assert labels.index("clusterkv, official") == labels.index("clusterkv") + 1
    assert labels.index("clusterkv") < labels.index("quest") < labels.index("streaming_llm")
    clusters = next(row for row in inputs.configurations() if row.label == "clusterkv, 400 clusters")
    assert clusters.create(budget=99).n_clusters == 400
    assert clusters.seeded


class TestLongContexts:
    """The parts for a GPU, at a size for a CPU."""

    SHAPE = end_to_end.Shape(
        layers=3, heads=4, kv_heads=2, head_dim=16, hidden=64, intermediate=64, vocabulary=128, positions=8192
    )

    @pytest.mark.slow
    def test_batches_lengths_and_tiers(self, monkeypatch):
        monkeypatch.setattr(end_to_end, "BUDGET", 512)
        monkeypatch.setattr(end_to_end, "STEPS", 12)
        monkeypatch.setattr(end_to_end, "TRIED_STEPS", 2)
        model = self.SHAPE.model("cpu", torch.float32)
        kvviz.attach(model)
        part = end_to_end.measure(model, self.SHAPE, (2048,), 2048, 1500, most=2)
        rows = {(row["name"], row["store"], row["batch"]): row for row in part["rows"]}
        assert {key[0] for key in rows} == {row["name"] for row in part["prefill"]} == {*kvviz.methods.names()}
        assert {key[2] for key in rows} == {1, 2}
        assert {key[:2] for key in rows if rows[key]["steps"] == 12} == {key[:2] for key in rows}
        for name in end_to_end.OFFLOADED:  # of one batch and as many steps: which rows `measure` keeps depends on times
            on_host, on_device = (
                end_to_end.decoded(model, self.SHAPE, name, store, 2048, 2, 2) for store in ("host", "device")
            )
            assert on_host["moved_bytes_a_step"] > 0 == on_device["moved_bytes_a_step"]
            assert on_host["attended"] == on_device["attended"]
            if name != "magicpig":  # chooses per query head: here it needs room for as many tokens as there are
                assert on_host["kept_bytes"]["device"] < on_device["kept_bytes"]["device"]
        full = rows["full", "device", 1]
        assert full["attended"] == 2048 + full["steps"] + end_to_end.WARM_UP
        assert {(row["name"], row["store"]) for row in part["offload"]} == {key[:2] for key in rows}
        assert next(row["ratio_to_full"] for row in part["offload"] if row["name"] == "full") == 1
        assert all(0 <= row["build_share"] < 1 for row in part["prefill"])

    def test_out_of_memory_ends_the_batches(self, monkeypatch):
        def out_of_space(*args):
            raise kvviz.OutOfSpaceError("offload to host", 2, 1)

        monkeypatch.setattr(end_to_end, "decoded", out_of_space)
        assert end_to_end.batches(None, self.SHAPE, "clusterkv", "host", 4096, 8) == []

    def test_the_fastest_batch_that_fits_is_measured_in_full(self, monkeypatch):
        def decoded(model, shape, name, store, length, batch, steps):
            if batch > 8 or (batch, steps) == (4, end_to_end.STEPS):
                raise kvviz.OutOfSpaceError("offload to host", 2, 1)
            return {"batch": batch, "steps": steps, "tokens_a_second": {4: 9}.get(batch, batch), "build_ms": 1.0}

        monkeypatch.setattr(end_to_end, "decoded", decoded)
        rows = end_to_end.batches(None, self.SHAPE, "clusterkv", "host", 4096, 512)
        assert {row["batch"]: row["steps"] for row in rows} == {1: 16, 2: 16, 4: 16, 8: 320}

    def test_newly_measured_methods_replace_their_rows(self, monkeypatch):
        def part(*names, speed):
            rows = [
                {"name": name, "store": "device", "length": 9, "batch": 1, "steps": end_to_end.STEPS,
                 "tokens_a_second": speed * (1 + at)} for at, name in enumerate(names)
            ]  # fmt: skip
            prefill = [{"name": name, "prefill_s": speed} for name in names]
            return {"rows": rows, "prefill": prefill, "offload": [], "offload_length": 9}

        both = end_to_end.merged(part("full", "quest", speed=1), part("full", "snapkv", speed=2))
        assert {row["name"]: row["prefill_s"] for row in both["prefill"]} == {"full": 2, "quest": 1, "snapkv": 2}
        assert {row["name"]: row["ratio_to_full"] for row in both["offload"]} == {"full": 1, "quest": 1, "snapkv": 2}

    def test_one_layer(self):
        part = long_layers.measure(self.SHAPE, 2048, (1,), torch.device("cpu"), torch.float32)
        assert [row["name"] for row in part["rows"]] == list(end_to_end.contenders())
        assert part["rows"][0]["ratio_to_full"] == 1
        assert all(row["build_ms"] > 0 for row in part["rows"] if row["name"] not in ("full", "minference"))


class TestDecodeKernels:
    """The kernels that are timed alone do the work of the step."""

    def test_they_choose_and_attend_as_the_step_did(self, lm):
        ids = lm.encode(HAYSTACK[:600])
        for name, kernels in decode_kernels.KERNELS.items():
            cache = kvviz.SelectiveCache(lm.model, kvviz.methods.create(name, budget=160))
            with torch.no_grad(), attached(lm.model):
                lm.model(ids[:, :-1], past_key_values=cache)
                steps = decode_kernels.stepped(lm, cache, ids[:, -1:])
            parts = kernels(steps)
            assert all(len(works) == len(steps) == lm.geometry.n_layers for works in parts.values())
            for at, (layer, _, selection) in enumerate(steps):
                slots = parts["best tokens"][at]()
                found = parts["union"][at]().gather(-1, slots) if name == "ctkvr" else slots + layer.method.sinks
                start = layer.method.sinks
                assert found.tolist() == selection.indices[..., start : start + found.shape[-1]].tolist()
                assert parts["attention"][at]()[0].shape == (1, lm.geometry.n_heads, lm.geometry.head_dim)

    def test_the_model_runs_on_the_kernels_alone(self, lm, monkeypatch):
        monkeypatch.setattr(decode_kernels, "BUDGET", 160)
        monkeypatch.setattr(decode, "TURNS", 2)
        found = decode_kernels.measured(lm, lm.encode(HAYSTACK[:300]))
        assert {name: list(kernels) for name, kernels in found["us_a_layer"].items()} == {
            "pqcache": ["scores", "best tokens", "attention"],
            "ctkvr": ["nearest centroids", "union", "exact weights", "best tokens", "attention"],
        }
        assert set(found["beyond_weights"]) == {"pqcache", "ctkvr"}
        lines = decode_kernels.lines({"prompt_tokens": 299, "budget": 160, **found})
        assert lines[0][1] == ", ".join(f"{name} {share:.2f}" for name, share in found["beyond_weights"].items())

    def test_shares_are_of_what_full_attention_costs_beyond_the_floor(self):
        turns = {"full": [3.0, 5.0], decode.FLOOR: [1.0, 1.0], "quest": [2.0, 2.0]}
        assert decode.beyond(turns) == {"quest": (1 / 2 + 1 / 4) / 2}


class TestEdits:
    """The steps that are timed with edits."""

    def test_ratios_are_of_steps_without_an_edit(self, lm, monkeypatch):
        monkeypatch.setattr(decode, "TURNS", 2)
        monkeypatch.setattr(edits, "TURNS", 2)
        found = edits.measured(lm, lm.encode(HAYSTACK[:600]))
        assert set(found["ratios"]) == {"quest", "clusterkv"}
        for ratios in found["ratios"].values():
            assert set(ratios) == {"an empty edit", "a pinned token"}
            for one in ratios.values():
                assert one["range"][0] <= one["ratio"] <= one["range"][1]
        ((_, numbers),) = edits.lines({"tokens": 600, "budget": 64, **found})
        assert numbers.count("an empty edit") == 2


class TestThroughput:
    """Batches at a small size: texts of 235 tokens, of which 220 are the prompt."""

    TEXTS, TOKENS, BUDGET = tiny_models.prompt(235, batch=4), 220, 144

    def test_a_batch_gives_the_logits_of_its_texts(self):
        """The logits of caches that the benchmark fills equal those of separately prefilled texts."""
        model = tiny_models.make("llama")
        kvviz.attach(model)
        with torch.no_grad():
            prompts = throughput.prefilled(model, self.TEXTS[:, : self.TOKENS])
            for name, store in throughput.STORES.items():
                cache = throughput.filled(model, name, prompts, 3, 235, self.BUDGET)
                logits = model(self.TEXTS[:3, self.TOKENS : self.TOKENS + 1], past_key_values=cache).logits[:, -1]
                for row in range(3):
                    single = kvviz.SelectiveCache(model, throughput.contender(name, self.BUDGET), store)
                    model(self.TEXTS[row, None, : self.TOKENS], past_key_values=single)
                    token = self.TEXTS[row, None, self.TOKENS : self.TOKENS + 1]
                    torch.testing.assert_close(logits[row], model(token, past_key_values=single).logits[0, -1])

    @pytest.mark.slow
    def test_batches_end_at_the_memory_limit_and_the_table_says_so(self):
        model = tiny_models.make("llama")
        rows = throughput.measure(model, self.TEXTS, self.TOKENS, (1, 2, 4), 10**9, self.BUDGET)
        assert [(row["method"], row["batch"]) for row in rows] == [
            (name, batch) for batch in (1, 2, 4) for name in throughput.STORES
        ]
        held = {row["method"]: row["device_bytes"] for row in rows if row["batch"] == 1}
        assert held["full"] >= 2 * 4 * 4 * 2 * 8 * self.TOKENS  # keys and values, layers, bytes, heads, dimensions
        assert held["full"] < held["quest"], "metadata counts"
        limit = 2 * held["full"]
        rows = throughput.measure(model, self.TEXTS, self.TOKENS, (1, 2, 4), limit, self.BUDGET)
        full = [row for row in rows if row["method"] == "full"]
        assert [row["tokens_per_s"] is None for row in full] == [False, False, True]
        assert full[-1]["device_bytes"] == pytest.approx(4 * held["full"], rel=0.2)
        assert [row["batch"] for row in rows if row["method"] == "quest"] == [1, 2]
        assert all(row["range"][0] <= row["tokens_per_s"] <= row["range"][1] for row in rows if row["tokens_per_s"])
        part = {"model": "tiny", "dtype": "float32", "prompt_tokens": 220, "budget": 144, "steps_a_turn": 4, "turns": 3,
                "limit_bytes": limit, "rows": rows}  # fmt: skip
        lines = offload_tables.throughput(part).splitlines()
        quest = next(line for line in lines if line.startswith("| `quest`"))
        assert quest.count("|") == 8 - 1
        assert "full at 0.00 GiB" in quest
        assert quest.endswith(" GiB |  |"), "no larger batch was run"
