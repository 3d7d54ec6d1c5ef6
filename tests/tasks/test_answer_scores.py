"""Scores of answers against values computed by hand, and against definitions written out here."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvviz.errors import MissingDependencyError
from kvviz.tasks import scores

WORDS = st.lists(st.sampled_from(["cat", "sat", "mat", "The", "a", "on.", "7"]), max_size=7).map(" ".join)
LETTERS = st.text("abc ", max_size=9)


def common_subsequence(first, second):
    """Length of the longest common subsequence, by recursion."""
    if not first or not second:
        return 0
    if first[-1] == second[-1]:
        return common_subsequence(first[:-1], second[:-1]) + 1
    return max(common_subsequence(first[:-1], second), common_subsequence(first, second[:-1]))


def harmonic(precision, recall):
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def deletions_and_insertions(first, second):
    """The least number of deletions and insertions that turn one text into the other, by dynamic programming."""
    row = list(range(len(second) + 1))
    for count, letter in enumerate(first, 1):
        above, row = row, [count]
        for column, other in enumerate(second, 1):
            row.append(above[column - 1] if letter == other else 1 + min(above[column], row[-1]))
    return row[-1]


@given(WORDS, WORDS)
@example("", "")
@example("the cat", "a cat")
def test_f1_counts_common_words_with_repetition(text, answer):
    def kept(words):
        return [word for word in words.lower().replace(".", "").split() if word not in ("the", "a", "an")]

    left, common = kept(answer), 0
    for word in kept(text):
        if word in left:
            left.remove(word)
            common += 1
    expected = harmonic(common / len(kept(text)), common / len(kept(answer))) if common else 0.0
    assert scores.token_f1(text, [answer]) == pytest.approx(expected)


def test_f1_by_hand():
    assert scores.token_f1("The cat, the cat sat!", ["cat sat down"]) == pytest.approx(2 / 3)  # cat cat sat: 2 of 3, 3
    assert scores.token_f1("It's an O'Neill", ["its oneill"]) == 1  # SQuAD drops the marks and closes up
    assert scores.token_f1("Paris", ["London", "in Paris"]) == pytest.approx(2 / 3)  # the best answer counts
    assert scores.token_f1("", [""]) == 0


@given(WORDS, WORDS)
def test_rouge_l_is_the_longest_common_subsequence(text, answer):
    words, answer_words = (re.findall("[a-z0-9]+", string.lower()) for string in (text, answer))
    length = common_subsequence(words, answer_words)
    expected = harmonic(length / len(words), length / len(answer_words)) if length else 0.0
    assert scores.rouge_l(text, [answer]) == pytest.approx(expected)
    assert scores.rouge_l(text, ["dog", answer]) == pytest.approx(expected)


def test_rouge_l_by_hand():
    score = scores.rouge_l("the gunman kills a police", ["police killed the gunman"])
    assert score == pytest.approx(harmonic(2 / 5, 2 / 4))  # "the gunman"; no stemming


@given(LETTERS, LETTERS)
def test_edit_similarity_is_the_share_without_edits(text, answer):
    letters = len(text) + len(answer)
    expected = 1 - deletions_and_insertions(text, answer) / letters if letters else 1.0
    assert scores.edit_similarity(text, [answer]) == pytest.approx(expected)
    assert scores.edit_similarity(text, ["?", answer]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("score", "text", "answers", "expected"),
    [
        (scores.line_similarity, "\n# first\n```python\nreturn x\nreturn y", ["return x"], 1),
        (scores.line_similarity, "// only a comment", ["return x"], 0),
        (scores.line_similarity, "abcd\nreturn x", ["abxd"], 0.75),
        (scores.number_share, "Paragraph 12", ["Paragraph 12"], 1),
        (scores.number_share, "12, or 3, or 4", ["Paragraph 12"], 1 / 3),
        (scores.number_share, "1 and 2", ["12"], 0),
        (scores.number_share, "none", ["12"], 0),
        (scores.first_number, " 71432. Remember 5.", ["71432"], 1),
        (scores.first_number, "5, then 71432", ["71432"], 0),
        (scores.first_number, "714325", ["71432"], 0),
        (scores.first_number, "", ["71432"], 0),
        (scores.found_words, 'It is "ab-12".', ["ab-12"], 1),
        (scores.found_words, "it is ab-123", ["ab-12"], 0),
        (scores.found_words, "JOHN: hello", ["Mary", "John"], 1),
        (scores.found_words, "Johnson", ["John"], 0),
        (scores.found_words, "old King Cole sat", ["King Cole"], 1),
        (scores.final_number, "3 * 4 = 12. The answer is 12.", ["12"], 1),
        (scores.final_number, "The answer is $1,200.00, of 3 people.", ["1200"], 1),
        (scores.final_number, "THE ANSWER IS 5; it was 7.", ["5"], 1),
        (scores.final_number, "First 3, then 4", ["4"], 1),
        (scores.final_number, "First 4, then 3", ["4"], 0),
        (scores.final_number, "It is 3. The answer is unknown", ["3"], 1),
        (scores.final_number, "10-12", ["12"], 1),
        (scores.final_number, "it falls to -12", ["-12"], 1),
        (scores.final_number, "it falls to -12", ["12"], 0),
        (scores.final_number, "no idea", ["0"], 0),
        (scores.chosen_letter, "B", ["B"], 1),
        (scores.chosen_letter, " (C) Paris", ["C"], 1),
        (scores.chosen_letter, "All say D", ["D"], 1),
        (scores.chosen_letter, "All say D", ["A"], 0),
        (scores.chosen_letter, "Not A. The answer is: B", ["B"], 1),
        (scores.chosen_letter, "The answer is a large B", ["B"], 1),
        (scores.chosen_letter, "Bad", ["B"], 0),
        (scores.found_any, "in PARIS", ["London", "Paris"], 1),
        (scores.found_share, "Paris only", ["London", "paris"], 0.5),
    ],
)  # fmt: skip
def test_scores_by_hand(score, text, answers, expected):
    assert score(text, answers) == pytest.approx(expected)


def test_a_class_is_not_found_in_a_longer_class():
    classes = ["Date", "Other number", "Number", "Other", "Definition"]
    for text, expected in (
        ("Other number", 1), ("Other", 0), ("Other number or Date", 1 / 2), ("Date, Definition, Other number", 1 / 3),
        ("nothing", 0), ("other number", 0),
    ):  # fmt: skip
        assert scores.class_found(text, ["Other number"], classes) == pytest.approx(expected)
    assert scores.class_found("Other number", ["Other"], classes) == 1 / 2  # it names a longer class
    assert scores.class_found("Date", ["Other", "Date"], classes) == 1


@pytest.mark.parametrize(
    ("score", "module", "package"),
    [("rouge_l", "rouge_score.rouge_scorer", "rouge-score"), ("edit_similarity", "rapidfuzz.fuzz", "rapidfuzz")],
)
def test_a_missing_package_is_named(score, module, package, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    scores._rouge.cache_clear()
    with pytest.raises(
        MissingDependencyError, match=rf"{package}'; wanted it installed: pip install \"kvviz\[data\]\""
    ):
        getattr(scores, score)("a", ["b"])
