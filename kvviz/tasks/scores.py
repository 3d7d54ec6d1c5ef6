"""Scores of generated answers, from 0 to 1."""

from __future__ import annotations

import importlib
import re
import string
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from typing import Any

from ..errors import MissingDependencyError

ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
DIGITS = re.compile(r"\d+")
NUMBER = re.compile(r"(?:(?<!\w)-)?\$?\d[\d,]*(?:\.\d+)?")  # the hyphen in "10-12" is not a sign
CONCLUSION = "answer is"
WORD_BORDERS = re.compile(r"""[\s:"'.,?!{}]+""")
NOT_CODE = ("`", "#", "//")  # a fence around code, or a comment
LETTER_NAMED = re.compile(r"(?i:answer|option)\s*(?:is)?\s*:?\s*\(?([A-D])\b")  # in lower case, "a" is an article
LETTER_ALONE = re.compile(r"\b([A-D])\b")


def found_share(text: str, answers: Sequence[str]) -> float:
    """Share of the answers that occur in the text, ignoring case (RULER's string match for lists of answers).

    Source: RULER (arXiv 2404.06654), section 3.
    """
    return sum(answer.casefold() in text.casefold() for answer in answers) / len(answers)


def found_any(text: str, answers: Sequence[str]) -> float:
    """1 if any answer occurs in the text, ignoring case, else 0 (RULER's string match for QA)."""
    return float(any(answer.casefold() in text.casefold() for answer in answers))


def found_words(text: str, answers: Sequence[str]) -> float:
    """1 if any answer occurs in the text as whole words, ignoring case and punctuation, else 0.

    Source: the scoring of InfiniteBench (arXiv 2402.13718) for key-value retrieval and dialogues. There an answer is
    one word; here it may be several consecutive words.
    """
    words = _words(text)
    return float(any(_words(answer) in words for answer in answers))


def first_number(text: str, answers: Sequence[str]) -> float:
    """1 if the first sequence of digits in the text is one of the answers, else 0.

    Source: the scoring of InfiniteBench (arXiv 2402.13718) for pass keys and number strings.
    """
    first = DIGITS.search(text)
    return float(first is not None and first.group() in answers)


def number_share(text: str, answers: Sequence[str]) -> float:
    """Share of the numbers in the text that equal the first number of an answer; the best answer counts.

    Naming all numbers therefore scores low. 0 for a text without numbers. Source: the scoring of LongBench (arXiv
    2308.14508) for passage retrieval and counting.
    """
    numbers = DIGITS.findall(text)
    correct = [match.group() for answer in answers if (match := DIGITS.search(answer))]
    return max((numbers.count(number) / len(numbers) for number in correct), default=0.0) if numbers else 0.0


def final_number(text: str, answers: Sequence[str]) -> float:
    """1 if the final number of the text equals one of the answers, else 0.

    It is the first number after the last "answer is", or else the last number of the text; "$1,200.0" equals "1200".
    Source: GSM8K (arXiv 2110.14168), and arXiv 2201.11903 for chains of thought.
    """
    before, conclusion, after = text.lower().rpartition(CONCLUSION)
    numbers = NUMBER.findall(after) if conclusion else []
    number = numbers[0] if numbers else next(reversed(NUMBER.findall(before or text)), None)
    return float(number is not None and any(_decimal(number) == _decimal(answer) for answer in answers))


def token_f1(text: str, answers: Sequence[str]) -> float:
    """Token F1: the harmonic mean of precision and recall over words, counting repetitions; the best answer counts.

    Words are normalised as in SQuAD: lower case, no punctuation, no articles (a, an, the). 0 without a common word,
    even if both are empty. Source: SQuAD (arXiv 1606.05250), section 6; also used by LongBench and InfiniteBench.
    """
    return max((_f1(_normalised(text), _normalised(answer)) for answer in answers), default=0.0)


def rouge_l(text: str, answers: Sequence[str]) -> float:
    """ROUGE-L F measure against the best answer, from the package rouge-score, without stemming.

    Words are sequences of a to z and 0 to 9, so Chinese text has none. LongBench uses the package rouge, and
    InfiniteBench uses ROUGE-Lsum, so their numbers differ slightly. Raises MissingDependencyError without rouge-score.
    Source: Lin, "ROUGE" (2004), section 3.
    """
    scorer = _rouge()
    return max((float(scorer.score(answer, text)["rougeL"].fmeasure) for answer in answers), default=0.0)


def edit_similarity(text: str, answers: Sequence[str]) -> float:
    """Edit similarity: 1 − (insertions + deletions) / (sum of both lengths); the best answer counts.

    From the package rapidfuzz (`fuzz.ratio`). LongBench rounds to whole percent; this does not. Raises
    MissingDependencyError without rapidfuzz.
    """
    fuzz = _library("edit_similarity", "rapidfuzz.fuzz", "rapidfuzz")
    return max((float(fuzz.ratio(text, answer)) / 100 for answer in answers), default=0.0)


def line_similarity(text: str, answers: Sequence[str]) -> float:
    """Edit similarity of the text's first line of code: the first line without a backtick, "#" or "//".

    Source: the scoring of LongBench (arXiv 2308.14508) for LCC and RepoBench-P.
    """
    lines = text.lstrip("\n").split("\n")
    code = next((line for line in lines if not any(mark in line for mark in NOT_CODE)), "")
    return edit_similarity(code, answers)


def class_found(text: str, answers: Sequence[str], classes: Sequence[str]) -> float:
    """1 / (number of classes that the text names) if the correct class is among them, else 0.

    Classes whose name is part of the correct class's name are ignored. Source: the scoring of LongBench (arXiv
    2308.14508) for TREC. It removes these names from a list while iterating over it, and so misses some; here all are
    removed.
    """
    named = [name for name in classes if name in text]
    scores = []
    for answer in answers:
        others = [name for name in named if name not in answer]
        scores.append(1 / (len(others) + 1) if answer in named else 0.0)
    return max(scores, default=0.0)


def chosen_letter(text: str, answers: Sequence[str]) -> float:
    """1 if the text chooses the correct letter (A to D), else 0.

    The chosen letter is the capital letter that begins the text, or follows "answer" or "option", or else the first
    that stands alone. Source: the scoring of InfiniteBench (arXiv 2402.13718) for multiple choice, which also counts
    the first letter of a word, such as "All".
    """
    words = text.strip().lstrip("(*")
    letter = LETTER_ALONE.match(words) or LETTER_NAMED.search(words) or LETTER_ALONE.search(words)
    return float(letter is not None and letter.group(1) in answers)


def _words(text: str) -> str:
    """The words of a text, each with spaces around it, so that one list of words can be searched in another."""
    return f" {' '.join(word for word in WORD_BORDERS.split(text.casefold()) if word)} "


def _decimal(number: str) -> Decimal:
    return Decimal(number.replace("$", "").replace(",", ""))


def _normalised(text: str) -> list[str]:
    return ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split()


def _f1(words: list[str], answer: list[str]) -> float:
    common = (Counter(words) & Counter(answer)).total()
    return 2 * common / (len(words) + len(answer)) if common else 0.0


@cache
def _rouge() -> Any:
    return _library("rouge_l", "rouge_score.rouge_scorer", "rouge-score").RougeScorer(["rougeL"], use_stemmer=False)


def _library(operation: str, module: str, package: str) -> Any:
    """A module of the extra `data`, imported only when a score needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(operation, package, "data") from error
