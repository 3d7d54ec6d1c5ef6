"""Tasks: samples are solved from the text that the model reads, and likelihoods checked with plain transformers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, processors

import kvviz
from kvviz import tasks
from kvviz.errors import InvalidInputError, KVVizError, UnknownNameError, UnsupportedModelError
from kvviz.models.encoding import fed_ids
from kvviz.tasks import Sample, Task, Turn
from kvviz.tasks.base import PLACEMENTS, REGISTRY
from kvviz.tasks.prompts import render
from kvviz.tasks.windows import manual, window
from tests.tiny_llama import byte_level, tiny_llama
from tests.tiny_models import letters_tokenizer, make

CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
ASKING = ("needle", "needle_multi_turn", "kv_retrieval")


def tiny(template=None):
    tokenizer = letters_tokenizer()
    tokenizer.chat_template = template
    return kvviz.LanguageModel(make("llama"), tokenizer, "tiny")


@pytest.fixture(scope="module", params=["plain", "chat", pytest.param("smollm2", marks=pytest.mark.model)])
def reader(request):
    """A model without a chat template, one with it, and SmolLM2, whose tokens are longer than letters."""
    if request.param == "smollm2":
        return request.getfixturevalue("lm")
    return tiny(CHATML if request.param == "chat" else None)


def read(lm, sample, placement):
    """The prompt, and the texts that the model reads up to each answer, with right answers to earlier turns."""
    prompt = render(lm, sample, placement)
    texts, text = [], prompt.text
    for words, turn in zip(prompt.turns, sample.turns, strict=True):
        texts.append(text + words)
        text = f"{texts[-1]} {turn.answers[0]}."
    return prompt, texts


def solve_needle(text):
    """The numbers that the text gives for the subject of its last question."""
    thing, place = re.findall(r"What is the ([a-z ]+) of ([A-Z][a-z]+)\?", text)[-1]
    assert text.endswith(f"The {thing} of {place} is")
    return set(re.findall(rf"The {thing} of {place} is (\d+)\.", text))


def solve_pairs(text):
    pairs = json.loads(re.search(r"\{\"[^{}]*\}", text).group())
    (key,) = re.findall(r'belongs to the key "([0-9a-f-]{36})"\?', text)
    return pairs, key


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", ASKING)
def test_the_text_has_exactly_one_answer(reader, name, placement):
    task = tasks.create(name, placement=placement)
    for index in range(3):
        sample = task.sample(reader, 900, index, 4)
        prompt, texts = read(reader, sample, placement)
        for text, turn in zip(texts, sample.turns, strict=True):
            if name == "kv_retrieval":
                pairs, key = solve_pairs(text)
                answers = {pairs[key]}
                assert len(pairs) == sample.details["pairs"]
                assert sample.details["depth"] == (list(pairs).index(key) + 0.5) / len(pairs)
            else:
                answers = solve_needle(text)
            assert answers == set(turn.answers)
            (answer,) = turn.answers
            assert task.score(turn, f" It is {answer}.") == 1
            assert task.score(turn, f" It is {answer[:-1]}.") == 0
            assert len(fed_ids(reader, f" {answer}.")) < turn.max_new_tokens <= len(fed_ids(reader, answer)) + 8
        assert texts[0].index(sample.turns[0].question.strip()) < texts[0].index(sample.context) or placement != "first"
        assert (prompt.turns[0] == "") == (placement != "after")
        assert sample.turns[0].question.strip() not in prompt.text or placement != "after"


@pytest.mark.slow
@pytest.mark.parametrize("length", [700, 1000])
@pytest.mark.parametrize("name", [*ASKING, "perplexity"])
def test_lengths_are_used_and_samples_are_reproducible(reader, name, length):
    task = tasks.create(name)
    samples = [task.sample(reader, length, index, seed) for index, seed in ((0, 0), (1, 0), (0, 1))]
    assert len({sample.context for sample in samples}) == 3
    assert task.sample(reader, length, 1, 0) == samples[1]
    for sample in samples:
        prompt = render(reader, sample, "after", plain=name == "perplexity")
        used = len(reader.encode(prompt.text)[0]) + sum(len(fed_ids(reader, turn)) for turn in prompt.turns)
        if name == "kv_retrieval":
            pairs = json.loads(re.search(r"\{.*\}", sample.context).group())
            another = max(len(fed_ids(reader, f' "{key}": "{value}",')) for key, value in pairs.items())
            assert length - another - 8 <= used <= length  # the next pair may be a few tokens longer than these
        else:
            assert 0.93 * length <= used <= length


def test_needles_are_at_their_depths(reader):
    task = tasks.create("needle", depths=4)
    for index, depth in enumerate((0.125, 0.375, 0.625, 0.875, 0.125)):
        sample = task.sample(reader, 1000, index, 0)
        place = sample.context.index(sample.turns[0].opening) / len(sample.context)
        assert sample.details == {"depth": depth}
        assert abs(place - depth) < 0.25  # a sentence of the manual may be long
    several = tasks.create("needle_multi_turn", turns=5).sample(reader, 1000, 0, 0)
    places = [several.context.index(turn.opening) for turn in several.turns]
    depths = [several.details[f"depth_{turn}"] for turn in range(5)]
    assert sorted(int(5 * depth) for depth in depths) == [0, 1, 2, 3, 4]
    assert all((first < second) == (places[depths.index(first)] < places[depths.index(second)])
               for first, second in pairwise(depths) if abs(first - second) > 0.3)  # fmt: skip
    assert len({turn.answers for turn in several.turns}) == 5


@pytest.mark.model
@given(length=st.integers(100, 900), index=st.integers(0, 10_000), seed=st.integers(0, 5))
@settings(max_examples=25)
def test_perplexity_uses_unchanged_text(lm, length, index, seed):
    sample = tasks.create("perplexity", tokens=16).sample(lm, length, index, seed)
    (answer,) = sample.turns[0].answers
    start = sample.details["start"]
    assert manual()[start:].startswith(sample.context + answer)
    ids = lm.tokenizer(sample.context + answer).input_ids
    assert ids[-16:] == lm.tokenizer(answer).input_ids
    assert ids[:-16] == lm.tokenizer(sample.context).input_ids
    assert 0.93 * length <= len(ids) - 16 <= length


def test_there_is_one_window_per_position():
    lm = tiny()
    text = "".join(chr(97 + number % 26) for number in range(60))
    for seed in range(3):
        windows = [window(lm, text, 41, index, seed) for index in range(20)]
        assert sorted(start for start, _ in windows) == list(range(20))
        assert all(text[start:].startswith(piece) and len(piece) >= 41 for start, piece in windows)
    with pytest.raises(InvalidInputError, match="number 20, of 41 tokens; wanted less than 20"):
        window(lm, text, 41, 20, 0)


def plain_score(lm, context, answer):
    """Mean negative log likelihood of the answer's tokens by one pass of plain transformers over the whole text."""
    ids = lm.tokenizer(context + answer, return_tensors="pt").input_ids
    count = len(lm.tokenizer(answer, add_special_tokens=False).input_ids)
    with torch.no_grad():
        logs = lm.model(ids).logits[0].double().log_softmax(-1)
    return -logs[-count - 1 : -1].gather(1, ids[0, -count:, None]).mean().item()


def with_bos():
    tokenizer = byte_level(bos_token="<s>")
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", bos)])
    return kvviz.LanguageModel(tiny_llama().eval(), tokenizer, "tiny")


@pytest.mark.slow
@pytest.mark.parametrize("which", ["letters", "bos", pytest.param("smollm2", marks=pytest.mark.model)])
def test_full_attention_gives_the_likelihood_of_a_plain_pass(which, request, tmp_path):
    lm = request.getfixturevalue("lm") if which == "smollm2" else tiny() if which == "letters" else with_bos()
    file = tmp_path / "text.txt"
    file.write_text(manual()[5000:40_000])
    task = tasks.create("perplexity", tokens=12, file=str(file))
    table = kvviz.evaluate(lm, [task], ["full", "streaming_llm"], [64], [160], samples=1, seed=3)
    full = table[table["method"] == "full"]
    for index, score in zip(full["sample"], full["score"], strict=True):
        sample = task.sample(lm, 160, index, 3)
        assert len(lm.encode(sample.context)[0]) <= 160
        assert score == pytest.approx(plain_score(lm, sample.context, sample.turns[0].answers[0]), abs=1e-4)
    assert (table[table["method"] == "streaming_llm"]["score"].to_numpy() != full["score"].to_numpy()).all()
    assert not table["higher_is_better"].any()


@pytest.mark.parametrize("beginning", [normalizers.Prepend("_"), normalizers.Replace(Regex("^."), "_")])
def test_a_tokenizer_that_encodes_parts_differently_is_refused(beginning):
    lm = with_bos()
    lm.tokenizer.backend_tokenizer.normalizer = beginning  # one token more, or another token
    with pytest.raises(UnsupportedModelError, match="differently when it comes in two parts"):
        tasks.create("perplexity").sample(lm, 100, 0, 0)


def test_turns_join_to_the_chat_template_of_the_conversation(reader):
    sample = tasks.create("needle_multi_turn", turns=4).sample(reader, 1000, 0, 0)
    for placement in PLACEMENTS:
        prompt = render(reader, sample, placement)
        if reader.tokenizer.chat_template is None:
            questions = [turn.question.strip() for turn in sample.turns]
            assert sample.context in prompt.text
            for number, words in enumerate(prompt.turns):
                assert words == "" if number == 0 and placement != "after" else questions[number] in words
            continue
        questions = [turn.question for turn in sample.turns]
        parts = [sample.context, questions[0].strip()]
        user = "\n\n".join(parts[::-1] if placement == "first" else parts)
        messages = []
        for number, turn in enumerate(sample.turns):
            messages.append({"role": "user", "content": questions[number].strip() if number else user})
            messages.append({"role": "assistant", "content": f"{turn.opening} {turn.answers[0]}."})
        conversation = reader.tokenizer.apply_chat_template(messages, tokenize=False)
        _, texts = read(reader, sample, placement)
        assert conversation.startswith(f"{texts[-1]} {sample.turns[-1].answers[0]}.")
    assert render(reader, sample, "last", plain=True).text == f"{user_of(sample)}\n{sample.turns[0].opening}"


def user_of(sample):
    return f"{sample.context}\n\n{sample.turns[0].question.strip()}"


class Unscored(Task):
    title, source, metric = "no score", "this test", "none"

    def sample(self, lm, length, index, seed):
        raise AssertionError("a sample was made")


@dataclass
class Scored(Unscored):
    def score(self, turn, text):
        return 1.0


def test_bad_input_is_refused_with_a_way_out(tmp_path):
    lm = tiny()
    missing, empty, short, bytes_ = (tmp_path / name for name in ("missing.txt", "empty.txt", "short.txt", "image.png"))
    empty.write_text(" \n")
    short.write_text("A short text.")
    bytes_.write_bytes(b"\x89PNG\xff\xfe")
    for error, ask, message in (
        (UnknownNameError, lambda: tasks.create("needel"), "did you mean 'needle'"),
        (UnknownNameError, lambda: kvviz.evaluate("no model", ["kv_retrival"], ["full"], [], [99]), "'kv_retrieval'"),
        (UnknownNameError, lambda: tasks.create("needle", depth=3), "did you mean 'depths'"),
        (UnknownNameError, lambda: tasks.create("needle", placement="frist"), "did you mean 'first'"),
        (InvalidInputError, lambda: tasks.create("perplexity", placement="last"), "'after': there is no question"),
        (InvalidInputError, lambda: tasks.create("needle", depths=0), "an int >= 1"),
        (InvalidInputError, lambda: tasks.create("needle", depths=2.5), "got 2.5; wanted an int >= 1"),
        (InvalidInputError, lambda: tasks.create("needle_multi_turn", turns=65), "got 65; wanted an int from 1 to 64"),
        (InvalidInputError, lambda: tasks.create("perplexity", tokens=0), "an int >= 1"),
        (InvalidInputError, lambda: tasks.create("perplexity", file=str(missing)), "missing.txt"),
        (InvalidInputError, lambda: tasks.create("perplexity", file=str(tmp_path)), "a UTF-8 file with running text"),
        (InvalidInputError, lambda: tasks.create("perplexity", file=str(bytes_)), "image.png"),
        (InvalidInputError, lambda: tasks.create("perplexity", file=str(empty)), "which is empty"),
        (InvalidInputError, lambda: tasks.create("perplexity", file=str(short)).sample(lm, 99, 0, 0), "of 13 tokens"),
        (InvalidInputError, lambda: tasks.create("perplexity").sample(lm, 1, 0, 0), "at least 2 tokens"),
        (InvalidInputError, lambda: tasks.create("needle").sample(lm, 20, 0, 0), "got 20 tokens; wanted at least"),
        (InvalidInputError, lambda: tasks.create("kv_retrieval").sample(lm, 20, 0, 0), "got 20 tokens; wanted at leas"),
        (InvalidInputError, lambda: render(lm, Sample("text", ()), "after"), "at least one question"),
        (InvalidInputError, lambda: tasks.resolve(Unscored()), "Unscored, which has no score"),
        (InvalidInputError, lambda: tasks.resolve(Scored), "a name of kvviz.tasks.names"),
        (InvalidInputError, lambda: kvviz.evaluate("no model", [Unscored()], ["full"], [], [99]), "has no score"),
    ):
        with pytest.raises(error, match=message):
            ask()
    assert isinstance(tasks.resolve(Scored()), Scored)


def test_a_name_belongs_to_one_task():
    before = dict(REGISTRY)
    with pytest.raises(KVVizError, match=r"it belongs to kvviz\.tasks\.needle_grid\.NeedleGrid"):
        type("Other", (Scored,), {"name": "needle"})
    assert before == REGISTRY
    assert {*ASKING, "perplexity"} <= set(tasks.names())
    assert all(f"| `{name}` |" in tasks.table() for name in tasks.names())


def test_the_question_may_come_first_or_last():
    lm, turn = tiny(CHATML), Turn("\n\nWhich?", ("this",), opening="It is")
    sample = Sample("A text.", (turn, replace(turn, question="And now?")))
    later = "<|end|>\n<|user|>\nAnd now?<|end|>\n<|assistant|>\nIt is"
    asks = "<|end|>\n<|assistant|>\nIt is"
    assert render(lm, sample, "first").text == f"<|user|>\nWhich?\n\nA text.{asks}"
    assert render(lm, sample, "last").text == f"<|user|>\nA text.\n\nWhich?{asks}"
    assert render(lm, sample, "after").text == "<|user|>\nA text."
    assert render(lm, sample, "after").turns == (f"\n\nWhich?{asks}", later)
    assert render(lm, sample, "first").turns == render(lm, sample, "last").turns == ("", later)


def test_a_changed_file_is_another_configuration(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("one " * 100)
    task = tasks.create("perplexity", file=str(file))
    before = task.config
    assert before == task.config
    file.write_text("two " * 100)
    assert {name for name, value in task.config.items() if value != before[name]} == {"file_hash"}
    assert "file_hash" not in tasks.create("perplexity").config
