"""How well a written text answers: every score is a number from 0 to 1."""

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
NUMBER = re.compile(r"(?:(?<!\w)-)?\$?\d[\d,]*(?:\.\d+)?")  # the hyphen of "10-12" is no sign
CONCLUSION = "answer is"
WORD_BORDERS = re.compile(r"""[\s:"'.,?!{}]+""")
NOT_CODE = ("`", "#", "//")  # a fence around code, or a comment
LETTER_NAMED = re.compile(r"(?i:answer|option)\s*(?:is)?\s*:?\s*\(?([A-D])\b")  # in lower case, "a" is an article
LETTER_ALONE = re.compile(r"\b([A-D])\b")


def found_share(text: str, answers: Sequence[str]) -> float:
    """Share of the answers that occur in the text, ignoring case: RULER's string match for lists of answers.

    Source: RULER (arXiv 2404.06654), section 3.
    """
    return sum(answer.casefold() in text.casefold() for answer in answers) / len(answers)


def found_any(text: str, answers: Sequence[str]) -> float:
    """1 where one of the answers occurs in the text, ignoring case, else 0: RULER's string match for QA."""
    return float(any(answer.casefold() in text.casefold() for answer in answers))


def found_words(text: str, answers: Sequence[str]) -> float:
    """1 where one of the answers stands in the text as whole words, ignoring case and punctuation, else 0.

    Source: the scoring of InfiniteBench (arXiv 2402.13718) for key-value retrieval and dialogues. There an answer is
    one word; here it may be several in a row.
    """
    words = _words(text)
    return float(any(_words(answer) in words for answer in answers))


def first_number(text: str, answers: Sequence[str]) -> float:
    """1 where the first run of digits in the text is one of the answers, else 0.

    Source: the scoring of InfiniteBench (arXiv 2402.13718) for pass keys and number strings.
    """
    found = DIGITS.search(text)
    return float(found is not None and found.group() in answers)


def number_share(text: str, answers: Sequence[str]) -> float:
    """Share of the numbers in the text that are the first number of an answer, the best answer counting.

    Naming every number is thus no way to a high score. 0 for a text without a number. Source: the scoring of LongBench
    (arXiv 2308.14508) for passage retrieval and counting.
    """
    numbers = DIGITS.findall(text)
    wanted = [found.group() for answer in answers if (found := DIGITS.search(answer))]
    return max((numbers.count(number) / len(numbers) for number in wanted), default=0.0) if numbers else 0.0


def final_number(text: str, answers: Sequence[str]) -> float:
    """1 where the number that the text comes to equals one of the answers, else 0.

    That is the first number behind the last "answer is", or the last number of all; "$1,200.0" equals "1200". Source:
    GSM8K (arXiv 2110.14168) and, for reading it from a chain of thought, arXiv 2201.11903.
    """
    before, found, after = text.lower().rpartition(CONCLUSION)
    numbers = NUMBER.findall(after) if found else []
    number = numbers[0] if numbers else next(reversed(NUMBER.findall(before or text)), None)
    return float(number is not None and any(_decimal(number) == _decimal(answer) for answer in answers))


def token_f1(text: str, answers: Sequence[str]) -> float:
    """The harmonic mean of precision and recall over words, each as often as it occurs; the best answer counts.

    Words are compared as SQuAD does: in lower case, without punctuation, without a, an and the. 0 where no word is in
    common, which includes an answer of none. Source: SQuAD (arXiv 1606.05250), section 6; so in LongBench and
    InfiniteBench.
    """
    return max((_f1(_normalised(text), _normalised(answer)) for answer in answers), default=0.0)


def rouge_l(text: str, answers: Sequence[str]) -> float:
    """ROUGE-L's F measure against the best answer, by the package rouge-score, without stemming.

    Words are runs of a to z and 0 to 9, so that Chinese has none. LongBench computes it with the package rouge, and
    InfiniteBench takes ROUGE-Lsum, so that their numbers differ a little. Raises MissingDependencyError without
    rouge-score. Source: Lin, "ROUGE" (2004), section 3.
    """
    scorer = _rouge()
    return max((float(scorer.score(answer, text)["rougeL"].fmeasure) for answer in answers), default=0.0)


def edit_similarity(text: str, answers: Sequence[str]) -> float:
    """1 minus the insertions and deletions between the texts, as a share of both lengths; the best answer counts.

    By the package rapidfuzz (`fuzz.ratio`). LongBench rounds to whole percent, this does not. Raises
    MissingDependencyError without rapidfuzz.
    """
    fuzz = _library("edit_similarity", "rapidfuzz.fuzz", "rapidfuzz")
    return max((float(fuzz.ratio(text, answer)) / 100 for answer in answers), default=0.0)


def line_similarity(text: str, answers: Sequence[str]) -> float:
    """`edit_similarity` of the text's first line of code: the first without a backtick, "#" or "//".

    Source: the scoring of LongBench (arXiv 2308.14508) for LCC and RepoBench-P.
    """
    lines = text.lstrip("\n").split("\n")
    code = next((line for line in lines if not any(mark in line for mark in NOT_CODE)), "")
    return edit_similarity(code, answers)


def class_found(text: str, answers: Sequence[str], classes: Sequence[str]) -> float:
    """1 over the number of classes that the text names, where the right one is among them, else 0.

    A class whose name is a part of the right one's does not count. Source: the scoring of LongBench (arXiv 2308.14508)
    for TREC. It removes such names from the list it walks through, and so leaves out every second; here all go.
    """
    named = [name for name in classes if name in text]
    scores = []
    for answer in answers:
        others = [name for name in named if name not in answer]
        scores.append(1 / (len(others) + 1) if answer in named else 0.0)
    return max(scores, default=0.0)


def chosen_letter(text: str, answers: Sequence[str]) -> float:
    """1 where the text chooses the letter, A to D, that is the answer, else 0.

    The capital letter that begins the text, or follows "answer" or "option", or else stands first by itself.
    Source: the scoring of InfiniteBench (arXiv 2402.13718) for multiple choice, where any A to D that begins the text
    counts, that of "All" too.
    """
    words = text.strip().lstrip("(*")
    found = LETTER_ALONE.match(words) or LETTER_NAMED.search(words) or LETTER_ALONE.search(words)
    return float(found is not None and found.group(1) in answers)


def _words(text: str) -> str:
    """The words with a space around each, so that one text of words is searched for in another."""
    return f" {' '.join(word for word in WORD_BORDERS.split(text.casefold()) if word)} "


def _decimal(number: str) -> Decimal:
    return Decimal(number.replace("$", "").replace(",", ""))


def _normalised(text: str) -> list[str]:
    return ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split()


def _f1(words: list[str], wanted: list[str]) -> float:
    common = (Counter(words) & Counter(wanted)).total()
    return 2 * common / (len(words) + len(wanted)) if common else 0.0


@cache
def _rouge() -> Any:
    return _library("rouge_l", "rouge_score.rouge_scorer", "rouge-score").RougeScorer(["rougeL"], use_stemmer=False)


def _library(operation: str, module: str, package: str) -> Any:
    """A module of the extra `data`, imported when a score needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(operation, package, "data") from error
