"""The answers of docs/test_yourself.md stand in the frames that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kvviz
from kvviz.trace.scene import Scene

DOCS = Path(__file__).parents[2] / "docs"
QUESTIONS = [part.partition("\n") for part in (DOCS / "test_yourself.md").read_text().split("\n## ")[1:]]
SEE = re.compile(r"\*See: (\w+), frames? ([\d, and]+), ([^.;]+)")
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?%?")


@pytest.fixture(scope="module")
def scenes() -> dict[str, Scene]:
    trace = kvviz.open_runs(live=False).trace("prose")
    return {
        name: kvviz.widgets.MechanismStepper(trace, name, layer=14, head=1, budget=256).scene
        for name in ("quest", "clusterkv", "centroidkv", "pqcache", "ctkvr")
    }


def test_there_are_ten_questions_about_all_methods() -> None:
    assert [title.partition(".")[0] for title, _, _ in QUESTIONS] == [str(number + 1) for number in range(10)]
    named = {SEE.search(body)[1] for _, _, body in QUESTIONS}
    assert named == {"quest", "clusterkv", "centroidkv", "pqcache", "ctkvr"}


@pytest.mark.slow  # five scenes
@pytest.mark.parametrize(("title", "body"), [(title, body) for title, _, body in QUESTIONS])
def test_numbers_of_an_answer_are_in_the_frames_it_names(title: str, body: str, scenes: dict[str, Scene]) -> None:
    question, answer = body.split("<details><summary>Answer</summary>\n\n")
    answer, see, _ = answer.partition("*See:")
    assert see
    method, numbers, chapters = SEE.search(body).groups()
    frames = [scenes[method].frames[int(number) - 1] for number in re.findall(r"\d+", numbers)]
    assert set(re.findall(r'"([^"]+)"', chapters)) == {frame.chapter for frame in frames}
    words = " ".join(frame.words for frame in frames)
    allowed = {*NUMBER.findall(words), *NUMBER.findall(question)}
    assert set(NUMBER.findall(answer)) - allowed == set(), title
    of_step = {"256"}  # the budget, at the top of the page
    assert set(NUMBER.findall(question)) - set(NUMBER.findall(words)) - of_step == set(), title


def test_answers_are_folded() -> None:
    for title, _, body in QUESTIONS:
        assert body.count("<details>") == body.count("</details>") == 1, title
        assert body.count("</summary>\n\n") == 1, "Markdown inside <details> needs an empty line"
