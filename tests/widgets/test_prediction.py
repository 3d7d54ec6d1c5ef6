"""Predictions without a browser: what questions refuse, what answers are, and what is never told before its time."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from kvviz.errors import InvalidInputError
from kvviz.widgets import Choice, Curve, Order, Prediction, Value
from tests.widgets.javascript import deno
from tests.widgets.predictions import ANSWERS, prediction
from tests.widgets.test_stepper_page import embedded

X = [1, 2, 4]


@pytest.mark.parametrize(
    ("make", "operation", "wanted"),
    [
        (lambda: Value("?", 11, 0, 10), "Value: measured", "a number from 0 to 10"),
        (lambda: Value("?", math.nan, 0, 10), "Value: measured", "a finite number"),
        (lambda: Value("?", True, 0, 10), "Value: measured", "a finite number"),
        (lambda: Value("?", "1", 0, 10), "Value: measured", "a finite number"),
        (lambda: Value("?", 1, 0, math.inf), "Value: high", "a finite number"),
        (lambda: Value("?", 1, 1, 1), "Value: low, high", "low below high"),
        (lambda: Value("?", 1, 0, 10, log=True), "Value: low", "above 0"),
        (lambda: Value("?", 1, 0.01, 10, log=True), "Value: digits", "0.01 needs"),
        (lambda: Value("?", 1, 0, 10, digits=0.5), "Value: digits", "0 to 6"),
        (lambda: Value("?", 1, 0, 10, unit=3), "Value: unit", "text"),
        (lambda: Value(" ", 1, 0, 10), "Value: text", "a question"),
        (lambda: Value(3, 1, 0, 10), "Value: text", "text"),
        (lambda: Value("word " * 41, 1, 0, 10), "Value: text", "at most 40 words"),
        (lambda: Value("half \ud800", 1, 0, 10), "Value: text", "surrogate"),
        (lambda: Choice("?", "c", ["a", "b"]), "Choice: measured", "one of 'a', 'b'"),
        (lambda: Choice("?", "a", ["a"]), "Choice: options", "different"),
        (lambda: Choice("?", "a", ["a", "a"]), "Choice: options", "different"),
        (lambda: Choice("?", "a", ["a", 3]), "Choice: options", "text"),
        (lambda: Choice("?", "a", "ab"), "Choice: options", "a list of texts"),
        (lambda: Order("?", {"a": 1}), "Order: names", "different"),
        (lambda: Order("?", {"a": 1, "b": math.nan}), "Order: measured of 'b'", "a finite number"),
        (lambda: Order("?", {"a": 1, "b": 1.0}), "Order: measured", "at least two that differ"),
        (lambda: Order("?", ["a", "b"]), "Order: measured", "as a dict"),
        (lambda: Curve("?", [1, 2, 2], X), "Curve: x", "increase"),
        (lambda: Curve("?", [1], [1]), "Curve: x", "2 to 24 numbers"),
        (lambda: Curve("?", [0, 1], [1, 1], log_x=True), "Curve: x", "above 0"),
        (lambda: Curve("?", X, [0.1, 0.2]), "Curve: measured 'measured'", "3: one for each x"),
        (lambda: Curve("?", X, [0.1, 0.2, 1.2]), "Curve: measured 'measured'", "from 0.0 to 1.0"),
        (lambda: Curve("?", X, [0.1, None, 0.2]), "Curve: measured 'measured'", "a finite number"),
        (lambda: Curve("?", X, {}), "Curve: measured", "at least one"),
        (lambda: Curve("?", X, [0, 0, 0], known={"a": [0, 0, 2]}), "Curve: known 'a'", "from 0.0 to 1.0"),
        (lambda: Curve("?", X, {"a": [0] * 3}, known={"a": [0] * 3}), "Curve: known", "not measured too"),
        (lambda: Curve("?", X, [0, 0, 0], known=[0, 0, 0]), "Curve: known", "as a dict"),
        (lambda: Prediction(), "Prediction", "at least one"),
        (lambda: Prediction("How many?"), "Prediction", "Value, Choice, Order or Curve"),
        (lambda: Prediction(Value("?", 1, 0, 2), Choice("?", "a", ["a", "b"])), "Prediction", "texts that differ"),
    ],
)  # fmt: skip
def test_a_question_that_cannot_be_asked_is_refused(make, operation, wanted):
    with pytest.raises(InvalidInputError) as refused:
        make()
    assert refused.value.operation == operation
    assert wanted in str(refused.value.wanted)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Which way?", 1), ("How many of the needle's tokens does Quest attend to?", 10),
        ("How many of the needle's tokens does Quest attend to?", "8"), ("Which method finds the needle?", "CTkvr"),
        ("Sort by recall.", ["Quest"]), ("Sort by recall.", ["Quest"] * 4), ("Sort by recall.", 3),
        ("How does recall change with the budget?", [0.1] * 4),
        ("How does recall change with the budget?", [0.1, 0.2, 0.3, 0.4, math.nan]),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_given_is_refused(text, answer):
    made = prediction(answers={"Sort by recall.": ANSWERS["Sort by recall."]})
    with pytest.raises(InvalidInputError):
        made.answers = {text: answer}
    assert made.answers == {"Sort by recall.": ANSWERS["Sort by recall."]}


def test_answers_are_observed_and_the_measurement_waits_for_all_of_them():
    made, seen = prediction(), []
    made.observe(lambda change: seen.append(change.new), "answers")
    for number, (text, answer) in enumerate(ANSWERS.items()):
        with pytest.raises(InvalidInputError, match="revealed of a Prediction") as refused:
            made.revealed = True
        assert text in refused.value.wanted
        assert not made.revealed
        made.answers = made.answers | {text: answer}
        assert len(seen) == number + 1
    made.revealed = True
    assert made.answers == seen[-1] == ANSWERS
    made.answers = {}
    assert not made.revealed
    assert prediction(answers=ANSWERS, revealed=True).revealed


def test_answers_are_plain_numbers_with_the_digits_asked_for():
    made = Prediction(Value("a", 1, 0, 10), Value("b", 1, 0, 10, digits=1), Curve("c", X, [0, 0, 0]))
    made.answers = {"a": np.float32(7.8), "b": 3.14159, "c": np.array([0.25, 0.5, 1])}
    assert json.loads(json.dumps(made.answers)) == {"a": 8, "b": 3.1, "c": [0.25, 0.5, 1]}


def test_the_snapshot_has_all_questions_and_nothing_measured_even_afterwards():
    made = prediction(answers=ANSWERS, revealed=True)
    snapshot = made.snapshot()
    for shown in (snapshot.alternative, snapshot.picture()):
        numbers = set(re.findall(r"\d+\.\d+|\d+", shown))
        assert not numbers & {"1.73", "1.7", "0.317", "0.823", "0.0419", "0.771", "0.113", "0.887", "0.513"}
        assert "a run of our own" not in shown
    for question in made.questions:
        assert question.text in snapshot.alternative
    assert "ClusterKV · CTkvr · Quest · StreamingLLM" in snapshot.alternative  # in no order of theirs
    assert "already drawn: Quest, by chance" in snapshot.alternative


def test_the_page_opens_with_the_answers_given(tmp_path):
    made = prediction(answers={"Which method finds the needle?": "Quest"})
    state, _ = embedded(made.to_html(tmp_path / "page.html"))
    assert state["answers"] == made.answers
    assert state["revealed"] is False
    assert (tmp_path / "page.html").stat().st_size < 500_000


def test_series_of_methods_have_their_colours_and_others_differ_by_marks():
    made = Curve("?", X, {"clusterkv": [0] * 3, "mine": [0] * 3}, known={"quest": [0] * 3, "theirs": [0] * 3})
    described = made.described()
    series = {each["name"]: each for each in described["known"] + described["measured"]}
    assert (series["ClusterKV"]["light"], series["ClusterKV"]["symbol"]) == ("#0072B2", "circle")
    assert series["mine"]["light"] == series["theirs"]["dark"] == ""  # the theme's
    assert len({(each["dash"], each["symbol"]) for each in series.values()}) == 4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ('distanceText(8, 1.7, 0, false)', "6.3 more than was measured"),
        ('distanceText(1, 1.04, 1, false)', "0.04 less than was measured"),
        ('distanceText(5, 5, 0, false)', "just as measured"),
        ('distanceText(100, 269, 0, true)', "what was measured is 2.7 times as much"),
        ('distanceText(800, 100, 0, true)', "8 times what was measured"),
        ('pairsText(["a","b","c","d"], [["a",1],["c",2],["b",3],["d",4]])', "You ordered 5 of 6 pairs as measured."),
        ('pairsText(["a","b","c"], [["a",1],["b",1],["c",2]])', "You ordered 2 of 2 pairs as measured."),
        ('curveText([0.5,0.5], [0.5,0.5], "measured")', "You drew the measured curve."),
        ('curveText([0.5,0.5,0.5], [0.3,0.4,0.8], "Quest")',
         "On average you are 0.2 away from the measured curve of Quest: above it at 2 of 3 points."),
    ],
)  # fmt: skip
def test_distances_are_said_in_plain_words(call, words):
    name = call.split("(")[0]
    process = deno("eval", f'import {{ {name} }} from "./prediction_words.js"; console.log({call});')
    assert process.stdout.strip() == words, process.stderr
