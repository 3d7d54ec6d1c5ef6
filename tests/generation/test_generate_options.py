"""generate with several prompts, sampling, stop strings and streams, and its errors for unknown arguments."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from transformers import TextStreamer
from transformers.generation.streamers import BaseStreamer

import kvviz
from tests.tiny_models import letters_tokenizer, make, prompt

TEXTS = [
    "the first of three prompts, which is long enough. " * 3,
    "a short one",
    "the last prompt is between them. " * 2,
]


@pytest.fixture
def tiny():
    return kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")


class TestSeveralPrompts:
    @pytest.mark.parametrize("method", ["full", "quest", "snapkv", "centroidkv", "infinigen"])
    def test_each_gets_what_it_gets_alone(self, tiny, method):
        fields = {} if method == "full" else {"dense_layers": 0}
        if method in ("snapkv", "centroidkv"):
            fields["recent"] = 4
        alone = [kvviz.generate(tiny, text, method, 80, max_new_tokens=12, **fields) for text in TEXTS]
        together = kvviz.generate(tiny, TEXTS, method, 80, max_new_tokens=12, **fields)
        assert [out.token_ids for out in together] == [out.token_ids for out in alone]
        assert [out.text for out in together] == [out.text for out in alone]

    def test_questions_of_their_own(self, tiny):
        questions = ["why?", "", "and how does it go on after that?"]
        alone = [
            kvviz.generate(tiny, text, "quest", 64, question=asked, max_new_tokens=12)
            for text, asked in zip(TEXTS, questions, strict=True)
        ]
        together = kvviz.generate(tiny, TEXTS, "quest", 64, question=questions, max_new_tokens=12)
        assert [out.token_ids for out in together] == [out.token_ids for out in alone]

    def test_token_ids_with_padding_on_the_left(self, tiny):
        encoded = tiny.tokenizer(TEXTS, padding=True, padding_side="left", return_tensors="pt").input_ids
        by_ids = kvviz.generate(tiny, encoded, "quest", 64, max_new_tokens=12)
        by_text = kvviz.generate(tiny, TEXTS, "quest", 64, max_new_tokens=12)
        assert [out.token_ids for out in by_ids] == [out.token_ids for out in by_text]

    def test_a_list_of_one_gives_a_list_of_one(self, tiny):
        [out] = kvviz.generate(tiny, TEXTS[:1], "full", max_new_tokens=3)
        assert out.token_ids == kvviz.generate(tiny, TEXTS[0], "full", max_new_tokens=3).token_ids

    def test_in_chunks_a_row_may_be_nothing_but_padding(self, tiny, monkeypatch):
        whole = kvviz.generate(tiny, TEXTS, "quest", 64, max_new_tokens=8)
        monkeypatch.setattr("kvviz.generation.generating.PREFILL_CHUNK", 40)
        chunked = kvviz.generate(tiny, TEXTS, "quest", 64, max_new_tokens=8)
        assert [out.token_ids for out in chunked] == [out.token_ids for out in whole]

    def test_they_share_a_ledger_unless_each_has_a_recording(self, tiny):
        together = kvviz.generate(tiny, TEXTS, "quest", 64, dense_layers=0, max_new_tokens=6)
        assert len({id(out.ledger) for out in together}) == 1
        recorded = kvviz.generate(tiny, TEXTS, "quest", 64, dense_layers=0, max_new_tokens=6, record=True)
        assert [out.recording.prompt_length for out in recorded] == [len(text) for text in TEXTS]
        assert [out.token_ids for out in recorded] == [out.token_ids for out in together]
        assert recorded[0].ledger.metadata_bytes > recorded[1].ledger.metadata_bytes

    def test_an_edit_finds_its_text_in_each_prompt(self, tiny):
        edit = kvviz.drop("prompt")
        texts = ["a prompt first", "and there the prompt is later"]
        edited = kvviz.generate(tiny, texts, "full", max_new_tokens=6, edit=edit)
        alone = [kvviz.generate(tiny, text, "full", max_new_tokens=6, edit=edit) for text in texts]
        assert [out.token_ids for out in edited] == [out.token_ids for out in alone]

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"prompt": []}, "no prompts"),
            ({"prompt": ["a", ""]}, "at least one token"),
            ({"prompt": torch.tensor([[5, 6], [7, 0]])}, "padding at the end of row 1"),
            ({"question": ["why?"]}, "1 questions for 2 prompts"),
            ({"stream": TextStreamer(letters_tokenizer())}, "a TextStreamer for 2 prompts"),
        ],
    )
    def test_bad_input(self, tiny, arguments, words):
        with pytest.raises(kvviz.InvalidInputError, match=words):
            kvviz.generate(tiny, **{"prompt": ["one", "two"], "method": "full", **arguments})


class TestSampling:
    def test_the_seed_decides(self, tiny):
        def ids(**options):
            return kvviz.generate(tiny, TEXTS[0], "quest", 64, max_new_tokens=20, **options).token_ids

        assert ids(temperature=1.0, seed=3) == ids(temperature=1.0, seed=3) != ids(temperature=1.0, seed=4)
        assert ids(temperature=0.0, seed=3) == ids()
        assert ids(temperature=1e-4, seed=3) == ids()
        torch.manual_seed(7)
        first = ids(temperature=1.0)
        torch.manual_seed(7)
        assert first == ids(temperature=1.0)

    def test_a_row_is_sampled_as_alone_with_its_seed(self, tiny):
        options = {"max_new_tokens": 10, "temperature": 0.8, "top_p": 0.9}
        together = kvviz.generate(tiny, [TEXTS[0]] * 3, "full", seed=5, **options)
        alone = [kvviz.generate(tiny, TEXTS[0], "full", seed=5 + row, **options) for row in range(3)]
        recorded = kvviz.generate(tiny, [TEXTS[0]] * 3, "quest", 4096, seed=5, record=True, **options)
        assert [out.token_ids for out in together] == [out.token_ids for out in alone]
        assert [out.token_ids for out in recorded] == [out.token_ids for out in alone]
        assert len({tuple(out.token_ids) for out in together}) == 3

    def test_tokens_come_as_often_as_their_probability_says(self, tiny):
        with torch.no_grad():
            logits = tiny.model(tiny.encode(TEXTS[1])).logits[0, -1].double()
        temperature, top_p, draws = 2.0, 0.7, 400
        probability = np.exp(logits.numpy() / temperature)
        probability /= probability.sum()
        order = np.argsort(-probability)
        kept = order[: np.searchsorted(np.cumsum(probability[order]), top_p) + 1]
        expected = np.zeros_like(probability)
        expected[kept] = probability[kept] / probability[kept].sum()
        outs = kvviz.generate(
            tiny, [TEXTS[1]] * draws, "full", max_new_tokens=1, temperature=temperature, top_p=top_p, seed=0
        )
        counts = np.bincount([out.token_ids[0] for out in outs], minlength=len(probability))
        assert set(np.flatnonzero(counts)) <= set(kept.tolist())
        assert np.abs(counts / draws - expected).sum() < 2 * np.sqrt(len(kept) / draws)

    def test_the_seed_is_the_methods_too(self, tiny):
        out = kvviz.generate(tiny, TEXTS[0], "clusterkv", 64, seed=11, max_new_tokens=3, record=True)
        assert out.recording.config["seed"] == 11

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"temperature": -1.0}, "temperature: got -1.0"),
            ({"temperature": "hot"}, "temperature: got hot"),
            ({"temperature": 1.0, "top_p": 0.0}, "top_p: got 0.0"),
            ({"top_p": 0.9}, "0.9 at temperature 0, which is greedy"),
            ({"temperature": 1.0, "seed": 1.5}, "seed: got 1.5"),
        ],
    )
    def test_bad_input(self, tiny, arguments, words):
        with pytest.raises(kvviz.InvalidInputError, match=words):
            kvviz.generate(tiny, "text", "full", **arguments)


class TestStopAndStream:
    @pytest.fixture
    def whole(self, tiny):
        return kvviz.generate(tiny, TEXTS[0], "full", max_new_tokens=40)

    def test_the_text_ends_before_a_stop_string(self, tiny, whole):
        stop = whole.text[11:14]
        assert stop not in whole.text[:13]
        out = kvviz.generate(tiny, TEXTS[0], "full", max_new_tokens=40, stop=["not in it", stop])
        assert out.text == whole.text[:11]
        assert out.token_ids == whole.token_ids[:14]
        assert kvviz.generate(tiny, TEXTS[0], "full", max_new_tokens=40, stop="not in it").text == whole.text

    def test_a_stop_string_that_is_a_special_token(self, tiny, whole):
        token = whole.token_ids[5]
        tiny.tokenizer.add_special_tokens({"additional_special_tokens": [tiny.tokenizer.decode([token])]})
        out = kvviz.generate(tiny, TEXTS[0], "full", max_new_tokens=40, stop=tiny.tokenizer.decode([token]))
        assert out.token_ids == whole.token_ids[: whole.token_ids.index(token) + 1]

    @pytest.mark.parametrize("stopped", [False, True])
    def test_the_pieces_are_the_text(self, tiny, whole, stopped):
        pieces = []
        stop = whole.text[11:16] if stopped else ()
        out = kvviz.generate(tiny, TEXTS[0], "full", max_new_tokens=40, stop=stop, stream=pieces.append)
        assert "".join(pieces) == out.text
        assert out.text == (whole.text[:11] if stopped else whole.text)
        assert len(pieces) > 5

    def test_the_pieces_of_several_prompts_carry_their_number(self, tiny):
        pieces = []

        def note(text, row):
            pieces.append((row, text))

        outs = kvviz.generate(tiny, TEXTS, "quest", 64, max_new_tokens=9, stream=note)
        for row, out in enumerate(outs):
            assert "".join(text for number, text in pieces if number == row) == out.text
        order = [row for row, _ in pieces]
        assert len(list(itertools.groupby(order))) > len(TEXTS), "they are written at the same time"

    def test_a_piece_comes_before_the_next_step(self, tiny, monkeypatch):
        events, forward = [], tiny.model.forward
        monkeypatch.setattr(tiny.model, "forward", lambda *a, **k: (events.append("step"), forward(*a, **k))[1])
        kvviz.generate(tiny, TEXTS[0], "full", max_new_tokens=6, stream=events.append)
        assert len(list(itertools.groupby(events, key="step".__eq__))) > 6

    def test_a_transformers_streamer_gets_what_transformers_gives_it(self, tiny):
        class Noting(BaseStreamer):
            def __init__(self):
                self.calls = []

            def put(self, value):
                self.calls.append(value.tolist())

            def end(self):
                self.calls.append("end")

        ids = prompt(30)
        ours, theirs = Noting(), Noting()
        kvviz.generate(tiny, ids, "full", max_new_tokens=6, stream=ours)
        tiny.model.generate(ids, max_new_tokens=6, do_sample=False, streamer=theirs)
        assert ours.calls == theirs.calls

    @pytest.mark.parametrize(
        ("arguments", "words"), [({"stop": [""]}, "at least one character"), ({"stream": 3}, "a transformers streamer")]
    )
    def test_bad_input(self, tiny, arguments, words):
        with pytest.raises(kvviz.InvalidInputError, match=words):
            kvviz.generate(tiny, "text", "full", **arguments)


class TestUnknownArguments:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"temprature": 1.0}, "did you mean 'temperature'"),
            ({"max_new_token": 4}, "did you mean 'max_new_tokens'"),
            ({"dense_layer": 4}, "did you mean 'dense_layers'"),
            ({"num_beams": 4}, "beam search, which reorders the cache"),
            ({"assistant_model": None}, "assisted decoding"),
            ({"do_sample": True}, "wanted temperature"),
            ({"max_length": 40}, "wanted max_new_tokens"),
        ],
    )
    def test_generate(self, tiny, arguments, words):
        with pytest.raises(kvviz.KVVizError, match=words) as error:
            kvviz.generate(tiny, "text", "quest", **arguments)
        assert next(iter(arguments)) in str(error.value)

    def test_score(self, tiny):
        with pytest.raises(kvviz.UnknownNameError, match="did you mean 'question'"):
            kvviz.score(tiny, "text", "answer", "quest", qestion="why?")
