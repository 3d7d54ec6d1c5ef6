"""CTkvr with arbitrary shapes, invalid fields, and in models."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

import kvviz
from kvviz.clustering.query_centroids import CHOICES
from kvviz.methods import checks
from kvviz.methods.base import LayerContext
from kvviz.methods.ctkvr import CTkvr
from tests.methods.test_ctkvr import CONTEXT, GROUPS, built, tensors
from tests.tiny_models import make, prompt

GREEDY = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}


@dataclass
class SmallCTkvr(CTkvr):
    """Few sinks and recent tokens, so that the common checks have many candidates at small budgets."""

    expected_failures: ClassVar = {
        "extension_equals_one_build": "the index holds the prompt's queries, then those of decode steps",
        "the_prompt_stays_in_reach": "the update replaces all 16 centroids within 16 steps, and random queries "
        "share no tokens that lists could pass on (algorithm 2)",
    }

    sinks: int = 4
    recent: int = 8


class TestShapes:
    @settings(max_examples=60)
    @given(
        kv_heads=st.integers(1, 3), ratio=st.integers(1, 4), length=st.sampled_from([1, 41, 63, 100, 1000]),
        kind=st.sampled_from(["random", "duplicated", "constant", "zero"]), group=st.sampled_from(GROUPS),
        choice=st.sampled_from(CHOICES), rerank=st.booleans(), causal=st.booleans(), n_probes=st.integers(1, 80),
        list_ratio=st.floats(1, 50), softcap=st.sampled_from([None, 2.0]), batch=st.integers(1, 2),
    )  # fmt: skip
    def test_selections_are_valid(
        self, kv_heads, ratio, length, kind, group, choice, rerank, causal, n_probes, list_ratio, softcap, batch
    ):
        context = LayerContext(4, 8, kv_heads * ratio, kv_heads, 8, 0.5, softcap, details=True)
        method = CTkvr(
            budget=40, sinks=4, recent=8, group=group, choice=choice, rerank=rerank, causal=causal,
            n_probes=n_probes, list_ratio=list_ratio,
        )  # fmt: skip
        queries, keys, values = tensors(length, context=context, batch=batch)
        if kind == "duplicated":
            keys = keys[:, :, torch.arange(length) % 7 % length]
        elif kind != "random":
            keys = torch.full_like(keys, float(kind == "constant"))
        state = method.build(context, queries, keys, values)
        for number in range(4):
            new = tensors(1, seed=number, context=context, batch=batch)
            state = method.extend(state, *new)
            selection = method.select(state, new[0][:, :, 0])
            total = length + number + 1
            for row in selection.indices.flatten(0, 1).tolist():
                positions = [position for position in row if position >= 0]
                assert positions == sorted(set(positions))
                always_selected = {*range(min(4, length)), *range(max(total - 8, 0), total)}
                assert always_selected <= set(positions) <= set(range(total))
                assert len(positions) <= min(40, total)
                if total <= 40:
                    assert len(positions) == total

    @pytest.mark.parametrize("check", checks.CHECKS)
    def test_common_checks_with_few_sinks(self, check):
        assert checks.smallest(SmallCTkvr).budget == 32
        if check in SmallCTkvr.expected_failures:
            with pytest.raises(AssertionError):
                checks.CHECKS[check](SmallCTkvr)
        else:
            checks.CHECKS[check](SmallCTkvr)

    def test_a_step_never_scores_all_keys(self):
        """FLOPs of a step: centroids and union, far below the product with all keys."""
        context = dataclasses.replace(CONTEXT, details=False)
        method, state, _ = built(length=4000, context=context, update=None)
        queries, keys, values = tensors(1, seed=8)
        state = method.extend(state, queries, keys, values)
        with FlopCounterMode(display=False) as counter:
            method.select(state, queries[:, :, 0])
        limit = 2 * 6 * 8 * (4000 // 16 + 4 * 70)
        assert 0 < counter.get_total_flops() <= limit < 2 * 6 * 8 * 4000

    def test_number_of_centroids(self):
        assert built(length=1000)[1].centroids.shape == (1, 6, 62, 8)
        assert built(length=1000, max_centroids=50)[1].centroids.shape[2] == 50
        assert built(length=1000, n_centroids=400)[1].centroids.shape[2] == 400
        assert built(length=50, n_centroids=400)[1].centroids.shape[2] == 50
        assert built(length=50, tokens_per_centroid=300)[1].centroids.shape[2] == 1
        assert not built(length=12)[1].centroids.any(), "nothing to index"
        assert built(length=1000)[1].lists.shape == (1, 2, 62, 70)
        assert built(length=1000, group="each")[1].lists.shape == (1, 6, 62, 70)
        assert built(length=60)[1].lists.shape == (1, 2, 3, 48)


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"budget": 128}, "at least 129 tokens"),
            ({"n_probes": 0}, "n_probes: got 0; wanted an int >= 1"),
            ({"n_centroids": 0}, "n_centroids"),
            ({"max_centroids": 0}, "max_centroids"),
            ({"tokens_per_centroid": 0}, "tokens_per_centroid"),
            ({"list_ratio": 0.001}, "list_ratio: got 0.001; wanted a number from 0.01"),
            ({"list_ratio": math.nan}, "list_ratio"),
            ({"choice": "last"}, "choice"),
            ({"update": "lru"}, "update: got 'lru'; wanted one of fifo"),
        ],
    )
    def test_fields(self, fields, message):
        with pytest.raises(kvviz.KVVizError, match=message):
            kvviz.methods.create("ctkvr", **{"budget": 256, **fields})


class TestModels:
    def cache(self, model, budget=40):
        return kvviz.SelectiveCache(model, CTkvr(budget=budget, sinks=4, recent=8))

    def test_left_padding(self):
        model = make("llama")
        kvviz.attach(model)
        short, long = prompt(150, seed=2), prompt(200, seed=3)
        padded = torch.cat([torch.cat([torch.zeros(1, 50, dtype=torch.long), short], 1), long])
        together = model.generate(
            padded, attention_mask=(padded != 0).long(), past_key_values=self.cache(model), **GREEDY
        )
        for row, ids in enumerate((short, long)):
            alone = model.generate(ids, past_key_values=self.cache(model), **GREEDY)
            assert torch.equal(together[row, 200:], alone[0, ids.shape[1] :])

    @pytest.mark.parametrize("architecture", ["llama_mqa", "gemma2"])
    def test_a_conversation(self, architecture):
        """With a full budget the text is that of the model alone; a small one attends to at most 40 tokens."""
        model = make(architecture)
        kvviz.attach(model)
        caches = [self.cache(model, 4096), DynamicCache(config=model.config), self.cache(model)]
        ids = [prompt(100)] * 3
        for turn in range(3):
            generated = [
                model.generate(text, attention_mask=torch.ones_like(text), past_key_values=cache, **GREEDY)
                for text, cache in zip(ids, caches, strict=True)
            ]
            assert torch.equal(generated[0], generated[1]), f"turn {turn}"
            assert 12 < caches[2].ledger().attended <= 40
            ids = [torch.cat([text, prompt(30, seed=10 + turn)], dim=1) for text in generated]

    @pytest.mark.model
    @pytest.mark.slow
    def test_real_text(self, lm, prose):
        """On real keys, recall is higher than with pages, and text is generated."""
        out = kvviz.generate(lm, prose[:1200], "ctkvr", 256, max_new_tokens=8)
        assert len(out.text) > 0
        assert 128 < out.ledger.attended <= 256
        trace = kvviz.capture(lm, prose, layers=(15,), max_tokens=450)
        ctkvr, quest = (
            kvviz.replay(trace, name, queries=16, budget=128, dense_layers=0, **fields).summary()
            for name, fields in (("ctkvr", {"sinks": 16, "recent": 16}), ("quest", {}))
        )
        assert ctkvr["recall"] > quest["recall"] + 0.1
        assert ctkvr["attention_mass"] > quest["attention_mass"]
