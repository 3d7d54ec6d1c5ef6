"""generate, compare and replay: exact results on tiny random models, plausible ones on SmolLM2."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.recorder import Recorder
from kvviz.generation import generating as generation
from kvviz.offload.growing import SPARE_TOKENS
from tests.tiny_models import letters_tokenizer, make, prompt


@pytest.fixture
def tiny():
    return kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")


class TestGenerate:
    def test_full_attention_gives_the_models_tokens(self, tiny):
        ids = prompt(60)
        expected = tiny.model.generate(ids, max_new_tokens=20, do_sample=False)[0, 60:].tolist()
        assert kvviz.generate(tiny, ids, "full", max_new_tokens=20).token_ids == expected
        assert kvviz.generate(tiny, ids, "clusterkv", 60, max_new_tokens=20).token_ids == expected

    def test_with_dense_layers_a_question_is_just_the_end_of_the_prompt(self, tiny):
        text, question = "the context goes first. " * 4, "and then the question?"
        whole = kvviz.generate(tiny, text + question, "full", max_new_tokens=12)
        split = kvviz.generate(tiny, text, "quest", 0.99, question=question, max_new_tokens=12, dense_layers=4)
        assert split.token_ids == whole.token_ids

    def test_long_prompts_are_prefilled_in_chunks_with_the_same_result(self, tiny, monkeypatch):
        ids = prompt(300)
        whole = kvviz.generate(tiny, ids, "clusterkv", 64, dense_layers=0, max_new_tokens=20)
        monkeypatch.setattr(generation, "PREFILL_CHUNK", 70)
        assert (
            kvviz.generate(tiny, ids, "clusterkv", 64, dense_layers=0, max_new_tokens=20).token_ids == whole.token_ids
        )

    def test_the_ledger_adds_up(self, tiny):
        out = kvviz.generate(tiny, prompt(300), "clusterkv", 64, recent=24, dense_layers=1, max_new_tokens=10)
        ledger, steps = out.ledger, len(out.token_ids) - 1
        assert (ledger.sinks, ledger.generated, ledger.recent) == (16, steps, 24 - steps)
        assert ledger.selected == 64 + steps - 16 - 24
        assert ledger.attended == 64 + steps
        assert ledger.dense_layers == (0,)
        slots = 300 + SPARE_TOKENS  # the bytes include spare room
        assert ledger.kept_bytes == {"device": 4 * 2 * 2 * slots * 8 * 4}  # layers, k and v, heads, slots, D, float32
        assert ledger.moved_bytes == 0
        assert ledger.metadata_bytes > 0

    @pytest.mark.parametrize("method", ["streaming_llm", "clusterkv", "quest"])
    def test_the_ledger_of_a_short_prompt_counts_each_token_once(self, tiny, method):
        out = kvviz.generate(tiny, prompt(10), method, 64, dense_layers=0, max_new_tokens=6)
        assert out.ledger.attended == 10 + len(out.token_ids) - 1
        assert out.ledger.generated == len(out.token_ids) - 1

    def test_a_kv_head_attends_to_the_union_of_its_query_heads(self, tiny):
        out = kvviz.generate(
            tiny, prompt(300), "clusterkv", 64, preset="official", dense_layers=0, max_new_tokens=10, record=True
        )
        last = out.recording.steps - 1
        expected = []
        for layer in out.recording.layers:
            rows = out.recording.indices(last, layer)
            assert rows.shape[0] == 6
            expected += [len({*rows[head * 3 : head * 3 + 3].flatten().tolist()} - {-1}) for head in range(2)]
        assert out.ledger.attended == pytest.approx(np.mean(expected))
        assert out.ledger.attended > 64 + last + 1, "the selections of three query heads differ"
        assert out.recording.attended_tokens(last, 2).tolist() == expected[4:6]

    def test_the_recording_holds_the_selected_tokens(self, tiny):
        ids = prompt(200)
        out = kvviz.generate(tiny, ids, "quest", 64, dense_layers=1, max_new_tokens=8, record=True)
        recording = out.recording
        assert recording.layers == (1, 2, 3)
        assert recording.dense_layers == (0,)
        assert recording.steps == len(out.token_ids) - 1
        assert recording.token_ids.tolist() == [*ids[0].tolist(), *out.token_ids[:-1]]
        for step in range(recording.steps):
            weights = recording.attention(step, 2)
            assert weights.shape == (2, 201 + step)
            assert np.allclose(weights.sum(-1), 1, atol=1e-5)
            chosen = recording.indices(step, 2)
            assert np.all((chosen >= 0).sum(-1) <= 64 + step + 1)
            assert np.all(recording.recall(step, 2) <= 1)
        assert kvviz.generate(tiny, ids, "quest", 64, dense_layers=1, max_new_tokens=8).token_ids == out.token_ids
        one_layer = kvviz.generate(tiny, ids, "quest", 64, max_new_tokens=4, record=[3]).recording
        assert one_layer.layers == (3,)

    def test_the_oracle_has_full_recall(self, tiny):
        recording = kvviz.generate(tiny, prompt(200), "oracle", 64, max_new_tokens=8, record=True).recording
        summary = recording.summary()
        assert summary["recall"] == 1.0
        quest = kvviz.generate(tiny, prompt(200), "quest", 64, dense_layers=0, max_new_tokens=8, record=True).recording
        assert quest.summary()["attention_mass"] < summary["attention_mass"]
        assert quest.summary()["output_error"] > summary["output_error"]

    def test_an_interrupt_detaches_the_model(self, tiny, monkeypatch):
        calls = []

        def interrupt(*args, **kwargs):
            calls.append(args)
            if len(calls) == 5:
                raise KeyboardInterrupt
            return forward(*args, **kwargs)

        forward = tiny.model.forward
        monkeypatch.setattr(tiny.model, "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            kvviz.generate(tiny, prompt(100), "clusterkv", 64, max_new_tokens=20)
        assert tiny.model.config._attn_implementation == "sdpa"

    def test_overlapping_runs_share_the_attachment(self, tiny):
        with kvviz.cache.attachment.attached(tiny.model):
            kvviz.generate(tiny, prompt(100), "clusterkv", 64, max_new_tokens=2)
            assert tiny.model.config._attn_implementation == "kvviz"
        assert tiny.model.config._attn_implementation == "sdpa"


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"prompt": ""}, "at least one token"),
            ({"prompt": torch.zeros(5, dtype=torch.long)}, "one prompt"),
            ({"prompt": prompt(1020)}, "1024 positions"),
            ({"max_new_tokens": 0}, "max_new_tokens"),
            ({"method": "clusterkw"}, "did you mean 'clusterkv'"),
            ({"budget": 0}, "budget"),
            ({"budget": 0.05}, "16 sinks"),
            ({"store": "attic"}, "store"),
            ({"seeed": 1}, "did you mean 'seed'"),
            ({"record": [99]}, "record: layer"),
        ],
    )
    def test_generate(self, tiny, arguments, words):
        arguments = {"prompt": prompt(100), "method": "clusterkv", "budget": 64, "max_new_tokens": 8, **arguments}
        with pytest.raises(kvviz.KVVizError, match=words):
            kvviz.generate(tiny, **arguments)
        assert tiny.model.config._attn_implementation == "sdpa"

    def test_fields_together_with_an_instance(self, tiny):
        with pytest.raises(kvviz.InvalidInputError, match="instance"):
            kvviz.generate(tiny, prompt(50), kvviz.methods.create("quest"), budget=64)


class TestCompare:
    def test_rows_agree_with_generate(self, tiny):
        ids = prompt(200)
        table = kvviz.compare(tiny, ids, ["full", "quest", "oracle"], [64, 0.5], max_new_tokens=8, answer="e")
        assert table[["method", "budget"]].values.tolist() == [
            ["full", 200], ["quest", 64], ["quest", 100], ["oracle", 64], ["oracle", 100],
        ]  # fmt: skip
        for row in table.itertuples():
            alone = kvviz.generate(tiny, ids, row.method, row.budget, max_new_tokens=8)
            assert row.text == alone.text
            assert row.correct == ("e" in alone.text.casefold())
            assert row.tpot_s > 0
            assert row.metadata_bytes == alone.ledger.metadata_bytes
        by_name = table.set_index(["method", "budget"])
        assert by_name.loc[("full", 200), ["recall", "attention_mass", "token_agreement", "output_error"]].tolist() == [
            1,
            1,
            1,
            0,
        ]
        assert set(table.recordings) == {("quest", 64), ("quest", 100), ("oracle", 64), ("oracle", 100), ("full", 200)}

    def test_full_attention_counts_as_many_tokens_as_an_oracle_with_full_budget(self, tiny):
        table = kvviz.compare(tiny, prompt(200), ["full", "oracle"], [208], max_new_tokens=8).set_index("method")
        assert table.attended_tokens["full"] == table.attended_tokens["oracle"]

    def test_labels_distinguish_configurations(self, tiny):
        few, many = (kvviz.methods.create("clusterkv", n_clusters=count, dense_layers=0) for count in (4, 40))
        table = kvviz.compare(tiny, prompt(200), {"few": few, "many": many}, [64], max_new_tokens=4)
        assert table["method"].tolist() == ["few", "many"]
        assert table["budget"].tolist() == [64, 64]
        assert table["recall"].nunique() == 2
        with pytest.raises(kvviz.InvalidInputError, match="mapping"):
            kvviz.compare(tiny, prompt(200), [few, many], [64], max_new_tokens=4)

    def test_only_the_chosen_layers_are_recorded_and_measured(self, tiny):
        all_layers = kvviz.compare(tiny, prompt(200), ["full", "quest"], [64], max_new_tokens=4)
        table = kvviz.compare(tiny, prompt(200), ["full", "quest"], [64], max_new_tokens=4, layers=[3])
        whole, part = all_layers.recordings["quest", 64], table.recordings["quest", 64]
        assert part.layers == (3,)
        assert np.array_equal(part.events[3].indices, whole.events[3].indices)
        assert table.set_index("method").recall["quest"] == part.summary()["recall"] != whole.summary()["recall"]

    def test_one_prefill_serves_all(self, tiny, monkeypatch):
        lengths = []
        forward = tiny.model.forward
        monkeypatch.setattr(
            tiny.model, "forward", lambda ids, **kwargs: (lengths.append(ids.shape[1]), forward(ids, **kwargs))[1]
        )
        kvviz.compare(tiny, prompt(200), ["quest", "clusterkv"], [64, 96], max_new_tokens=4)
        assert lengths.count(200) == 1


class TestReplay:
    def trace(self, tiny, length=220):
        return kvviz.capture(tiny, prompt(length))

    def test_full_recall_for_the_oracle_and_less_for_quest(self, tiny):
        trace = self.trace(tiny)
        oracle = kvviz.replay(trace, "oracle", queries=16, budget=64)
        assert oracle.summary()["recall"] == 1.0
        assert oracle.steps == 16
        quest = kvviz.replay(trace, "quest", queries=16, budget=64, dense_layers=0)
        assert quest.summary()["recall"] < 1.0

    @pytest.mark.parametrize("architecture", ["llama", "gemma2"])  # Gemma 2 has another scale and a soft-cap
    def test_the_steps_are_those_of_a_model(self, architecture, tmp_path):
        """The model gives the same attention for the same tokens one by one, up to the rounding of float16 keys."""
        tiny = kvviz.LanguageModel(make(architecture), letters_tokenizer(), name="tiny")
        trace = kvviz.Trace.load(self.trace(tiny).save(tmp_path / "trace.safetensors"))
        text = torch.tensor(trace.token_ids)
        replayed = kvviz.replay(trace, "streaming_llm", queries=10, budget=32)
        cache = kvviz.SelectiveCache(tiny.model, kvviz.methods.create("streaming_llm", budget=4096), details=True)
        recorder = Recorder()
        recorder.watch(cache.selective_layers)
        with kvviz.cache.attachment.attached(tiny.model), torch.no_grad():
            tiny.model(text[None, :210], past_key_values=cache)
            for step in range(10):
                tiny.model(text[None, 210 + step : 211 + step], past_key_values=cache)
        assert recorder.events(220)
        for layer, events in recorder.events(220).items():
            assert np.allclose(replayed.events[layer].attention, events.attention, atol=2e-3)
        first = replayed.layers[0]  # of Gemma 2 the first layer has a sliding window, which is left to the model
        assert replayed.indices(0, first)[0].tolist() == [0, 1, 2, 3, *range(183, 211)]

    def test_too_many_queries(self, tiny):
        trace = self.trace(tiny, 30)
        for queries in (0, 30, 31):
            with pytest.raises(kvviz.InvalidInputError, match="queries"):
                kvviz.replay(trace, "oracle", queries=queries, budget=16)

    def test_the_recording_holds_a_ledger_for_each_layer(self, tiny, tmp_path):
        recording = kvviz.replay(self.trace(tiny), "quest", queries=10, budget=64, dense_layers=1)
        assert recording.ledgers.keys() == recording.events.keys() == {1, 2, 3}
        for layer, ledger in recording.ledgers.items():
            assert ledger.attended == recording.attended_tokens(9, layer).mean()
        assert recording.cut(0, 5).ledgers == {}, "ledgers cover all steps"
        assert kvviz.Recording.load(recording.save(tmp_path / "recording.safetensors")).ledgers == {}
        out = kvviz.generate(tiny, prompt(200), "quest", 64, max_new_tokens=4, record=[2, 3])
        assert out.recording.ledgers.keys() == {2, 3}
        assert out.recording.ledgers[3].selected == out.ledger.selected

    def test_a_dict_still_gets_the_ledgers_with_a_warning(self, tiny):
        ledgers = {}
        with pytest.warns(DeprecationWarning, match=r"replay\(...\).ledgers\[layer\]") as caught:
            recording = kvviz.replay(self.trace(tiny), "quest", 10, ledgers, budget=64)
        assert ledgers == recording.ledgers != {}
        assert caught[0].filename == __file__, "the line to be changed"


@pytest.mark.model
class TestOnSmolLM2:
    QUESTION = "\n\nWhat is the special magic number mentioned above? Answer with the number only."

    def needle(self, lm, prose):
        words = prose[:5000]
        text = f"{words[:2000]}\n\nThe special magic number is 7463.\n\n{words[2000:]}"
        before, after = lm.chat_parts(text, self.QUESTION)
        return before, after

    @pytest.mark.slow
    def test_a_needle_is_found_with_a_small_budget(self, lm, prose):
        context, question = self.needle(lm, prose)
        methods = ["full", "oracle", "clusterkv", "quest", "streaming_llm"]
        table = kvviz.compare(lm, context, methods, [256], question=question, answer="7463", max_new_tokens=12)
        scores = table.set_index("method")
        assert scores.loc["full", "correct"]
        assert not scores.loc["streaming_llm", "correct"], "the needle is outside its window"
        assert scores.loc["clusterkv", "recall"] > scores.loc["quest", "recall"]
        assert scores.loc["oracle", "attention_mass"] == scores.loc[scores.index != "full", "attention_mass"].max()

    @pytest.mark.slow
    def test_plain_transformers_generate(self, lm, prose):
        ids = lm.encode(prose[:3000])
        kvviz.attach(lm.model)
        try:
            cache = kvviz.SelectiveCache(lm.model, kvviz.methods.create("clusterkv", budget=256))
            plain = lm.model.generate(ids, past_key_values=cache, max_new_tokens=16, do_sample=False)
        finally:
            kvviz.detach(lm.model)
        assert (
            plain[0, ids.shape[1] :].tolist() == kvviz.generate(lm, ids, "clusterkv", 256, max_new_tokens=16).token_ids
        )
