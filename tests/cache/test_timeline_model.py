"""The timeline of a model with a worker thread: the spans of all layers, in order, and nothing if it is off."""

from __future__ import annotations

import gc
import time
from itertools import pairwise

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.attachment import attached
from kvviz.cache.selective_cache import SelectiveCache
from kvviz.errors import InvalidInputError
from kvviz.methods.clusterkv import ClusterKV
from kvviz.trace.timeline import PHASES, Event, Timeline
from tests import tiny_models


@pytest.fixture(scope="module")
def lm() -> kvviz.LanguageModel:
    return kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer(), "tiny")


@pytest.fixture(scope="module")
def out(lm) -> kvviz.Generation:
    """A prompt in two chunks, four layers of which the first is dense, builds of at least 10 ms in a worker."""
    build = ClusterKV.build

    def slow_build(*args):
        time.sleep(0.01)
        return build(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClusterKV, "build", slow_build)
        patch.setattr("kvviz.generation.generating.PREFILL_CHUNK", 200)
        return kvviz.generate(
            lm, tiny_models.prompt(333), "clusterkv", budget=48, sinks=4, dense_layers=1, store="host",
            max_new_tokens=5, timeline=True,
        )  # fmt: skip


def events_named(timeline: Timeline, *names: str, phase: str | None = None) -> list[Event]:
    return [event for event in timeline.events if event.what in names and phase in (None, event.phase)]


class TestModel:
    def test_all_layers_have_their_spans(self, out):
        timeline, steps = out.timeline, len(out.token_ids) - 1
        assert timeline.clock == "clock"
        assert timeline.description == "clusterkv · budget 48 · tiny · 333 tokens · store host"

        def layers(what, phase):
            return {event.layer for event in events_named(timeline, what, phase=phase)}

        assert layers("build", "prefill") == layers("select", "decode") == {1, 2, 3}
        assert layers("build", "decode") == layers("select", "prefill") == set()
        assert layers("offload", "prefill") == layers("fetch", "prefill") == layers("fetch", "decode") == {1, 2, 3}
        for phase, passes in (("prefill", 2), ("decode", steps)):
            assert layers("attention", phase) == layers("store", phase) == {0, 1, 2, 3}
            assert layers("projections and FFN", phase) == {0, 1, 2}
            for what in ("forward pass", "embedding and projections", "FFN and logits"):
                assert len(events_named(timeline, what, phase=phase)) == passes
            assert len(events_named(timeline, "projections and FFN", phase=phase)) == 3 * passes
        assert len(events_named(timeline, "select")) == 3 * steps
        assert len(events_named(timeline, "build")) == 3
        assert {event.stream for event in timeline.events} == {"pass", "compute", "clustering", "transfer"}
        assert all(event.phase in PHASES for event in timeline.events)

    def test_starts_come_before_ends_and_within_the_run(self, out):
        assert all(0 <= event.start_s <= event.end_s for event in out.timeline.events)
        assert out.timeline.events == tuple(sorted(out.timeline.events))
        passes = events_named(out.timeline, "forward pass")
        compute = [event for event in out.timeline.events if event.stream == "compute"]
        assert all(any(one.start_s <= event.start_s <= event.end_s <= one.end_s for one in passes) for event in compute)

    def test_the_spans_of_one_thread_do_not_overlap(self, out):
        spans = [event for event in out.timeline.events if event.stream == "compute" or event.what == "fetch"]
        assert all(before.end_s <= after.start_s for before, after in pairwise(spans))

    def test_clustering_runs_during_the_prefill_and_before_the_first_step(self, out):
        builds = events_named(out.timeline, "build")
        first_step = events_named(out.timeline, "forward pass", phase="decode")[0].start_s
        prefill = events_named(out.timeline, "forward pass", phase="prefill")
        assert prefill[1].start_s < min(event.start_s for event in builds)
        assert max(event.end_s for event in builds) < first_step
        assert sum(event.end_s - event.start_s for event in builds) == pytest.approx(out.timings.build_s, abs=5e-3)
        shares = out.timeline.overlap()
        assert 0 < shares["clustering"] < 1
        assert 0 <= shares["transfer"] <= 1
        assert out.timeline.build_share() == pytest.approx(
            out.timeline.seconds(what="build") / sum(event.end_s - event.start_s for event in prefill)
        )
        assert np.isnan(shares["host"])

    def test_the_fetches_of_a_step_do_not_overlap(self, out):
        assert out.timeline.overlap("decode")["transfer"] == 0

    def test_the_timeline_changes_no_token(self, lm, out):
        untimed = kvviz.generate(
            lm, tiny_models.prompt(333), "clusterkv", budget=48, sinks=4, dense_layers=1, store="host", max_new_tokens=5
        )
        assert untimed.token_ids == out.token_ids
        assert untimed.timeline is None
        gc.collect()
        assert not lm.model._forward_hooks
        assert not lm.model._forward_pre_hooks

    def test_a_build_without_a_worker_does_not_overlap(self, lm):
        generation = kvviz.generate(
            lm, tiny_models.prompt(100), "quest", budget=48, dense_layers=1, max_new_tokens=2, timeline=True
        )
        assert {event.layer for event in events_named(generation.timeline, "build")} == {1, 2, 3}
        assert generation.timeline.overlap()["clustering"] == 0
        assert not [event for event in generation.timeline.events if event.stream == "transfer"]

    def test_attention_on_the_host(self, lm):
        generation = kvviz.generate(
            lm, tiny_models.prompt(300), "ctkvr", budget=48, sinks=4, recent=8, dense_layers=1, store="host",
            max_new_tokens=3, timeline=True,
        )  # fmt: skip
        host_events = [event for event in generation.timeline.events if event.stream == "host"]
        assert {(event.what, event.layer, event.phase) for event in host_events} == {
            ("attention", layer, "decode") for layer in (1, 2, 3)
        }
        assert generation.timeline.overlap()["host"] == 0, "without a GPU one thread does both"

    def test_plain_transformers_with_later_prompts_and_a_reset(self):
        model, timeline = tiny_models.make("llama"), Timeline()
        cache = SelectiveCache(model, kvviz.methods.create("clusterkv", budget=32, sinks=4), timeline=timeline)
        with attached(model), torch.no_grad():
            model.generate(tiny_models.prompt(80), past_key_values=cache, max_new_tokens=4, do_sample=False)
            counts = [len(events_named(timeline, "forward pass", phase=phase)) for phase in PHASES]
            assert counts == [1, 3]
            cache.reset()
            model(tiny_models.prompt(60), past_key_values=cache)
            model(tiny_models.prompt(1), past_key_values=cache)
            assert [len(events_named(timeline, "forward pass", phase=phase)) for phase in PHASES] == [2, 4]
            before = timeline.events
            model(tiny_models.prompt(1), past_key_values=cache.fork("quest"))
            model(tiny_models.prompt(9))
            assert timeline.events == before, "neither forks nor other caches are recorded"
        with pytest.raises(InvalidInputError, match="a new Timeline"):
            SelectiveCache(model, "quest", timeline=timeline)

    def test_exact_layers(self):
        model, timeline = tiny_models.make("gemma3"), Timeline()
        cache = SelectiveCache(model, "streaming_llm", timeline=timeline)
        with attached(model), torch.no_grad():
            model.generate(tiny_models.prompt(40), past_key_values=cache, max_new_tokens=3, do_sample=False)
        assert {event.layer for event in events_named(timeline, "exact layer")} == set(cache.exact_layers) == {0, 2}
        assert {event.layer for event in events_named(timeline, "attention")} == {1, 3}

    def test_a_failed_pass_leaves_no_open_span(self, lm, monkeypatch):
        timeline = Timeline()
        cache = SelectiveCache(lm.model, "quest", timeline=timeline)
        with attached(lm.model), torch.no_grad():
            with monkeypatch.context() as patch:
                patch.setattr("kvviz.cache.selective_layer.exact_attention", lambda *args, **kwargs: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    lm.model(tiny_models.prompt(20), past_key_values=cache)
            assert not timeline._spans._stack()
            before = timeline.events
            lm.model(tiny_models.prompt(20), past_key_values=SelectiveCache(lm.model, "quest"))
            assert timeline.events == before
            assert not events_named(timeline, "forward pass")
