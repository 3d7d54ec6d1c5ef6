"""RULER's tasks: every sample is solved from its text alone, independently of the code that made it."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvviz import LanguageModel, tasks
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.tasks.prompts import render
from kvviz.tasks.text import NOISE, prose, running, vocabulary, woven
from tests.tiny_llama import byte_level, tiny_llama

NIAH = {  # haystack, keys in prose or noise, values per key, keys in the question
    "niah_single_1": ("noise", 1, 1, 1), "niah_single_2": ("prose", 1, 1, 1), "niah_single_3": ("prose", 1, 1, 1),
    "niah_multikey_1": ("prose", 4, 1, 1), "niah_multikey_2": ("needles", None, 1, 1),
    "niah_multikey_3": ("needles", None, 1, 1), "niah_multivalue": ("prose", 1, 4, 1),
    "niah_multiquery": ("prose", 4, 1, 4),
}  # fmt: skip
NAMES = (*NIAH, "vt", "cwe", "fwe", "qa_1", "qa_2")
NUMBER, UUID = r"[1-9]\d{6}", r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
PAIR = r"[a-z]{4,9}-[a-z]{4,9}"
NEEDLE = re.compile(r"(?:The|A) hidden (?:number|code) of (\S+) is (\S+)\.(?=\s|$)")
FACTS = {
    "river": r"(\w+) is a town on the river (\w+)\.", "town founded": r"The town of (\w+) was founded in (\d{4})\.",
    "mayor": r"The mayor of (\w+) is (\w+ \w+)\.", "firm's town": r"(\w+ Works) is a firm in the town of (\w+)\.",
    "firm set up": r"The firm (\w+ Works) was set up in (\d{4})\.",
    "machine": r"(\w+ Works) makes a machine called the (\w+)\.",
    "birthplace": r"(\w+ \w+) was born in the town of (\w+)\.",
    "employer": r"(\w+ \w+) works for the firm (\w+ Works)\.",
}  # fmt: skip
LINKS = {
    r"the town where (\w+ \w+) was born": ("birthplace", "the town of "),
    r"the town where the firm (\w+ Works) is\b": ("firm's town", "the town of "),
    r"the firm that (\w+ \w+) works for": ("employer", "the firm "),
}
QUESTIONS = {
    "river": r"On which river is the town of (\w+)\?", "town founded": r"In which year was the town of (\w+) founded\?",
    "mayor": r"Who is the mayor of (?:the town of )?(\w+)\?",
    "firm's town": r"In which town is the firm (\w+ Works)\?",
    "firm set up": r"In which year was the firm (\w+ Works) set up\?",
    "machine": r"What is the machine called that (?:the firm )?(\w+ Works) makes\?",
    "birthplace": r"In which town was (\w+ \w+) born\?", "employer": r"For which firm does (\w+ \w+) work\?",
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny():
    """A model whose tokens are bytes, without a chat template."""
    return LanguageModel(tiny_llama(), byte_level(), "tiny")


def full_text(lm, task, sample):
    prompt = render(lm, sample, task.placement)
    return prompt.text + "".join(prompt.turns)


def tokens(lm, task, sample):
    prompt = render(lm, sample, task.placement)
    return sum(len(lm.tokenizer(text, add_special_tokens=False).input_ids) for text in (prompt.text, *prompt.turns))


def solve_needles(name, text):
    haystack, keys, values, queries = NIAH[name]
    body, question = text.rsplit("\n\nWhat ", 1)
    needles = NEEDLE.findall(body)
    values_of = {key: [value for needle, value in needles if needle == key] for key, _ in needles}
    assert all(len(of_key) == values for of_key in values_of.values())
    assert len({value for _, value in needles}) == len(needles)
    assert len(values_of) == (keys or len(values_of))
    kind, of_value = (UUID if name == "niah_multikey_3" else PAIR), UUID if name.endswith("_3") else NUMBER
    assert all(re.fullmatch(kind, key) and re.fullmatch(of_value, value) for key, value in needles)
    listed = re.search(r"hidden (?:numbers?|codes?) of (.+) that the text tells\?", question)[1]
    asked = re.split(r", | and ", listed)
    assert len(asked) == queries
    check_filling(haystack, body)
    return [value for key in asked for value in values_of[key]]


def check_filling(haystack, body):
    rest = " ".join(NEEDLE.sub("", body.split("\n\n", 1)[1]).split())
    if haystack == "prose":
        manual = " ".join(prose())
        assert rest in f"{manual} {manual}"
        return
    counted = Counter(re.findall(r"[^.]+\.", rest))
    assert {sentence.strip() for sentence in counted} <= set(NOISE)
    assert rest.count(".") == counted.total()
    assert len(rest) < 300 or haystack == "noise"  # shorter than one needle in bytes


def solve_chain(_, text):
    size, value = re.search(r"Which (\d+) variables hold the value (\d{5}),", text).groups()
    held = {}
    for name, before, number in re.findall(r"VAR ([A-Z]{5}) = (?:VAR ([A-Z]{5})|(\d{5}))\.", text):
        held[name] = number or held[before]  # each comes after the variable that it copies
    names = [name for name, number in held.items() if number == value]
    assert len(names) == int(size)
    assert text.count("VAR ") == 2 * len(held) - len(set(held.values()))
    return names


def solve_common(_, text):
    items = re.findall(r"(\d+)\. ([a-z]+)", text)
    assert [int(number) for number, _ in items] == list(range(1, len(items) + 1))
    counted = Counter(word for _, word in items)
    most, least = max(counted.values()), min(counted.values())
    assert (most, least) in ((6, 1), (30, 3))
    assert Counter(counted.values()) == {most: 10, least: len(counted) - 10}
    return [word for word, count in counted.items() if count == most]


def solve_frequent(_, text):
    body = text.split("\n\n")[1].split()
    ranked = Counter(body).most_common()
    assert ranked[0][0] == "..."
    assert all(re.fullmatch("[a-z]{6}", word) for word, _ in ranked[1:])
    assert ranked[0][1] > ranked[1][1] > ranked[2][1] > ranked[3][1] > ranked[4][1]
    dots = ranked[0][1]
    for rank, (_, count) in enumerate(ranked[:8], 1):  # floor(n k^-2 / zeta(2)); the first count gives n
        assert math.floor(dots / rank**2) <= count <= math.floor((dots + 1) / rank**2)
    return [word for word, _ in ranked[1:4]]


def solve_question(name, text):
    facts = {fact: dict(re.findall(pattern, text)) for fact, pattern in FACTS.items()}
    question = text.rsplit("\n\n", 1)[1].split("?")[0] + "?"
    hops = 1
    for pattern, (fact, kind) in LINKS.items():
        link = re.search(pattern, question)
        if link:
            question = question.replace(link[0], kind + facts[fact][link[1]])
            hops += 1
    assert hops == int(name[-1])
    kinds = [(fact, match[1]) for fact, pattern in QUESTIONS.items() if (match := re.fullmatch(pattern, question))]
    ((fact, about),) = kinds
    return [facts[fact][about]]


def solve(name, text):
    solvers = {"vt": solve_chain, "cwe": solve_common, "fwe": solve_frequent}
    solver = solvers.get(name, solve_needles if name in NIAH else solve_question)
    return solver(name, text)


def long_enough(task, lm, length):
    """The length, or the least that the task accepts. Samples depend on the length, so the least may change, too."""
    while True:
        try:
            task.sample(lm, length, 0, 0)
        except InvalidInputError as error:
            least = int(re.search(rf"got {length} tokens; wanted at least (\d+) tokens", str(error))[1])
            length = max(least, length + 1)
        else:
            return length


def test_all_thirteen_are_registered():
    assert set(NAMES) <= set(tasks.names())
    assert len(NAMES) == 13


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_text_alone_has_the_answers(tiny, name):
    task = tasks.create(name)

    @settings(max_examples=20, derandomize=True)
    @given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1500, 3000))
    def check(seed, index, length):
        sample = task.sample(tiny, length, index, seed)
        (turn,) = sample.turns
        text = full_text(tiny, task, sample)
        assert 0.93 * length <= tokens(tiny, task, sample) <= length
        assert sorted(solve(name, text.removesuffix(turn.opening))) == sorted(turn.answers)
        assert task.score(turn, f"It is {', '.join(turn.answers).upper()}.") == 1
        assert task.score(turn, turn.question + turn.opening) == 0, "the question gives the answer away"
        assert len(tiny.tokenizer(", ".join(turn.answers)).input_ids) < turn.max_new_tokens
        assert all(type(value) in (int, float, str) for value in sample.details.values())

    check()


@pytest.mark.parametrize("name", NAMES)
def test_prompts_fill_their_length_in_bytes(tiny, name):
    task = tasks.create(name)
    for length in {long_enough(task, tiny, length) for length in (500, 1000, 2000)}:
        assert 0.93 * length <= tokens(tiny, task, task.sample(tiny, length, 0, 0)) <= length
    with pytest.raises(InvalidInputError, match=r"length of a sample: got 90 tokens; wanted at least \d{3,4} tokens"):
        task.sample(tiny, 90, 0, 0)


@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_prompts_fill_their_length_in_a_chat_template(lm, name):
    for length, placement in ((500, "after"), (500, "first"), (1000, "last"), (2000, "after")):
        task = tasks.create(name, placement=placement)
        sample = task.sample(lm, length, 0, 0)
        assert 0.93 * length <= tokens(lm, task, sample) <= length
        (turn,) = sample.turns
        text = f"{sample.context}{turn.question}"
        assert sorted(solve(name, text)) == sorted(turn.answers)
        needed = len(lm.tokenizer(", ".join(turn.answers)).input_ids)
        assert needed < turn.max_new_tokens <= 2 * needed + 50


def digest(samples):
    return json.dumps([[sample.context, sample.turns[0].question, sample.turns[0].answers] for sample in samples])


@pytest.mark.slow
def test_samples_are_the_same_in_every_process_and_order(tiny):
    code = (
        "from tests.tasks.test_ruler import *; lm = LanguageModel(tiny_llama(), byte_level(), 'tiny');"
        "print(digest([tasks.create(name).sample(lm, 1600, 3, 7) for name in NAMES]))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4321"}
    root = Path(__file__).parents[2]
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=root
    )
    samples = [tasks.create(name).sample(tiny, 1600, 3, 7) for name in reversed(NAMES)]
    assert json.loads(process.stdout) == json.loads(digest(samples[::-1]))


@pytest.mark.parametrize("name", NAMES)
def test_other_lengths_numbers_and_seeds_give_other_samples(tiny, name):
    task = tasks.create(name)
    samples = [task.sample(tiny, *which) for which in ((1600, 0, 0), (1601, 0, 0), (1600, 1, 0), (1600, 0, 1))]
    assert len({sample.turns[0].answers for sample in samples}) == 4
    assert task.score(samples[0].turns[0], " ".join(samples[1].turns[0].answers)) == 0


@pytest.mark.parametrize(("name", "right", "of"), [
    ("niah_multivalue", 3, 4), ("niah_multiquery", 1, 4), ("vt", 2, 5), ("cwe", 7, 10), ("fwe", 1, 3),
])  # fmt: skip
def test_the_score_is_the_share_of_right_answers(tiny, name, right, of):
    task = tasks.create(name)
    (turn,) = task.sample(tiny, 1600, 0, 0).turns
    assert len(turn.answers) == of
    assert task.score(turn, "\n".join(turn.answers[-right:]).lower()) == pytest.approx(right / of)


def test_the_rest_of_the_text_scores_0(tiny):
    for name in NAMES:
        task = tasks.create(name)
        sample = task.sample(tiny, 2500, 5, 5)
        (turn,) = sample.turns
        text = sample.context
        for answer in turn.answers:
            text = re.sub(rf"(?<![\w-]){re.escape(answer)}(?![\w-])", "", text)
        assert task.score(turn, text) == 0, name


def test_one_of_many_keys_is_in_the_question_and_its_depth_is_given(tiny):
    chosen, depths = set(), []
    for index in range(40):
        sample = tasks.create("niah_multikey_1").sample(tiny, 1200, index, 0)
        body = sample.context.split("\n\n", 1)[1]
        needles = NEEDLE.findall(body)
        place = [value for _, value in needles].index(sample.turns[0].answers[0])
        chosen.add(place)
        start = [match.start() for match in NEEDLE.finditer(body)][place]
        needle = [match[0] for match in NEEDLE.finditer(body)][place]
        depths.append(sample.details["depth"])
        assert depths[-1] == pytest.approx(start / (len(body) - len(needle)), abs=1e-4)
    assert chosen == {0, 1, 2, 3}
    assert min(depths) < 0.15
    assert max(depths) > 0.85


@pytest.mark.slow
def test_every_kind_of_question_is_asked(tiny):
    for name, kinds in (("qa_1", 7), ("qa_2", 8)):
        openings = set()
        for index in range(80):
            (turn,) = tasks.create(name).sample(tiny, 1000, index, 0).turns
            openings.add(re.sub(r"[A-Z][a-z]{5}( Works)?", "_", turn.question))
        assert len(openings) == kinds, openings


def test_two_hop_questions_need_two_articles(tiny):
    for index in range(20):
        sample = tasks.create("qa_2").sample(tiny, 1500, index, 0)
        (turn,) = sample.turns
        (name,) = re.findall(r"[A-Z][a-z]{5} [A-Z][a-z]+", turn.question)
        articles = sample.context.split("\n\n")[1:]
        assert len(articles) == sample.details["articles"]
        assert not [text for text in articles if name in text and f" {turn.answers[0]}." in text] or (
            turn.question.strip().startswith("In which town is the firm that")
        )


def test_words_never_run_out(tiny):
    sample = tasks.create("cwe").sample(tiny, 40_000, 0, 0)
    assert sample.details["words"] > len(vocabulary())
    assert sorted(solve("cwe", sample.context)) == sorted(sample.turns[0].answers)
    assert tokens(tiny, tasks.create("cwe"), sample) > 0.99 * 40_000


def test_fields_change_the_task(tiny):
    sample = tasks.create("vt", chains=3, hops=2).sample(tiny, 2000, 0, 0)
    assert sample.context.count("= VAR") == 6
    assert sorted(solve("vt", sample.context + sample.turns[0].question)) == sorted(sample.turns[0].answers)
    sample = tasks.create("niah_multivalue", keys=3, values=2, queries=2).sample(tiny, 2000, 0, 0)
    assert len(NEEDLE.findall(sample.context)) == 6
    assert len(sample.turns[0].answers) == 4


@pytest.mark.parametrize(("name", "fields", "error"), [
    ("niah_single_1", {"keys": 0}, InvalidInputError), ("niah_single_1", {"values": True}, InvalidInputError),
    ("niah_single_1", {"haystack": "prosa"}, UnknownNameError), ("vt", {"hops": 1.5}, InvalidInputError),
    ("cwe", {"common": 0}, InvalidInputError), ("fwe", {"alpha": 1}, InvalidInputError),
    ("fwe", {"alpha": math.nan}, InvalidInputError), ("qa_1", {"placement": "before"}, UnknownNameError),
    ("niah_single_1", {"key_kind": ["words"]}, UnknownNameError),
])  # fmt: skip
def test_bad_fields_are_refused(name, fields, error):
    with pytest.raises(error, match=f"{name}: {next(iter(fields))}"):
        tasks.create(name, **fields)


def test_words_and_sentences_have_the_assumed_properties():
    words = vocabulary()
    assert len(words) > 300
    assert not [(short, long) for short in words for long in words if short != long and short in long]
    assert not [sentence for sentence in prose() if re.search(r"\d{5}|\n|  ", sentence)]


@given(st.integers(1, 400), st.integers(0, 20), st.lists(st.floats(0, 1), max_size=5))
def test_running_text_keeps_its_words_and_the_needles_in_it(words, start, depths):
    sentences = [" ".join(f"w{number}" for number in range(size)) for size in (3, 5, 2, 9)]
    endless = " ".join(sentences * 200).split()
    skipped = sum(len(sentence.split()) for sentence in (sentences * 10)[: start % 4])
    filling = running(sentences, words, start % 4)
    assert " ".join(filling).split() == endless[skipped : skipped + words]
    marks = [f"mark {number}" for number in range(len(depths))]
    mixed = woven(marks, depths, filling)
    assert [piece for piece in mixed if not piece.startswith("mark")] == filling
    for mark, depth in zip(marks, depths, strict=True):
        before = [piece for piece in mixed[: mixed.index(mark)] if not piece.startswith("mark")]
        assert abs(len(before) - depth * len(filling)) <= 0.5
