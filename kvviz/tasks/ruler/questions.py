"""RULER's question answering, on generated articles about invented towns, firms and people.

RULER uses SQuAD and HotpotQA, which are not part of any package. Here an article is a few sentences with one fact each;
the names are invented, so that no answer can be known without the text.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ..base import Sample, Turn
from ..prompts import fit
from ..scores import found_any
from ..text import distinct, invented_name
from .base import RulerTask, asked, depths

if TYPE_CHECKING:
    from ...models import LanguageModel

INTRO = "Read the following articles. You will be asked a question about them."
NAMES = 8  # per place: town, river, firm, product, and two each for the mayor and the person
PLACE_TOKENS = 60  # a lower bound for the three articles of a place, in any tokenizer


class Fact(NamedTuple):
    """A sentence of an article: `opening`, then `answer`, which answers the question if there is one."""

    opening: str
    answer: str
    question: str = ""


class Article(NamedTuple):
    """An article: what it is about, and its facts, one per sentence."""

    name: str
    facts: tuple[Fact, ...]

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(f"{fact.opening} {fact.answer}." for fact in self.facts)


class Place(NamedTuple):
    """Three articles that belong together: the person was born in the town and works for the firm."""

    town: Article
    firm: Article
    person: Article


class Question(NamedTuple):
    """A question, its answer, the beginning of the answer, and the articles that are needed."""

    text: str
    opening: str
    answer: str
    articles: tuple[Article, ...]


@dataclass
class OneHop(RulerTask):
    """A question that one article answers; other articles fill the length, and the last of them may be cut.

    Replaces RULER's SQuAD task (section 3). The score is 1 if the answer occurs in the text, ignoring case.

    `details`: "articles", their number, and "depth", the share of the context before the article with the answer.
    """

    name: ClassVar[str] = "qa_1"
    title: ClassVar[str] = "question on one of many generated articles (RULER: SQuAD)"
    metric: ClassVar[str] = "answer found"
    chance: ClassVar[float] = 0.0  # invented names, and years out of hundreds

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """A sample, as for every task. Raises InvalidInputError for a length without room for the articles."""
        rng = self.drawn(length, index, seed)
        places = _world(rng, 2 + length // PLACE_TOKENS)
        articles = [article for place in places for article in place]
        question = rng.choice(self.questions(*places[0], places[1].town))
        others = [article for article in articles if article not in question.articles]
        rng.shuffle(others)
        ranks = {article.name: rng.random() for article in articles}
        turn = asked(lm, question.text, [question.answer], question.opening)

        def make(units: int) -> Sample:
            texts = {article.name: article.text for article in question.articles}
            texts |= _first_words(others, units)
            ordered = sorted(texts, key=ranks.__getitem__)
            text = "\n\n".join([INTRO, *(texts[name] for name in ordered)])
            starts = [text.index(article.text) / len(text) for article in question.articles]
            return Sample(text, (turn,), {"articles": len(texts), **depths(starts)})

        return fit(lm, length, self.placement, make, most=sum(len(article.text.split()) for article in others))

    def questions(self, town: Article, firm: Article, person: Article, seat: Article) -> list[Question]:
        """All questions about these four; the firm is in `seat`, and the person was born in `town`."""
        return [
            Question(fact.question, fact.opening, fact.answer, (article,))
            for article in (town, firm, person)
            for fact in article.facts
            if fact.question
        ]

    def score(self, turn: Turn, text: str) -> float:
        """1 if the answer occurs in the text, ignoring case, else 0."""
        return found_any(text, turn.answers)


@dataclass
class TwoHops(OneHop):
    """A question that needs two articles: the first one names the second.

    Replaces RULER's HotpotQA task (section 3). The score is that of `OneHop`.

    `details`: "articles", their number, and "first_depth" and "last_depth" of the two, as for `OneHop`.
    """

    name: ClassVar[str] = "qa_2"
    title: ClassVar[str] = "question on two of many generated articles (RULER: HotpotQA)"

    def questions(self, town: Article, firm: Article, person: Article, seat: Article) -> list[Question]:
        """All questions about these four that need two articles."""
        birthplace = f"the town where {person.name} was born"
        home = f"the town where the firm {firm.name} is"
        employer = f"the firm that {person.name} works for"
        river, founded, mayor = (fact.answer for fact in town.facts)
        _, seat_founded, seat_mayor = (fact.answer for fact in seat.facts)
        firm_town, set_up, product = (fact.answer for fact in firm.facts)
        return [
            Question(f"On which river is {birthplace}?", "That town is on the river", river, (person, town)),
            Question(f"In which year was {birthplace} founded?", "That town was founded in", founded, (person, town)),
            Question(f"Who is the mayor of {birthplace}?", "The mayor of that town is", mayor, (person, town)),
            Question(f"In which year was {home} founded?", "That town was founded in", seat_founded, (firm, seat)),
            Question(f"Who is the mayor of {home}?", "The mayor of that town is", seat_mayor, (firm, seat)),
            Question(f"In which town is {employer}?", "That firm is in the town of", firm_town, (person, firm)),
            Question(f"In which year was {employer} set up?", "That firm was set up in", set_up, (person, firm)),
            Question(f"What is the machine called that {employer} makes?", "That firm makes a machine called the",
                     product, (person, firm)),
        ]  # fmt: skip


def _world(rng: random.Random, count: int) -> list[Place]:
    """`count` places, in which all names are different. The firm of a place is in the town of the next place."""
    names = iter(distinct(lambda: invented_name(rng), NAMES * count))
    towns = [next(names) for _ in range(count)]
    places: list[Place] = []
    for number, town in enumerate(towns):
        river, product, firm = next(names), next(names), f"{next(names)} Works"
        mayor, person = (f"{next(names)} {next(names)}" for _ in range(2))
        places.append(
            Place(
                _town(town, river, rng.randrange(1100, 1800), mayor),
                _firm(firm, towns[(number + 1) % count], rng.randrange(1810, 1990), product),
                _person(person, town, rng.randrange(1920, 2000), firm),
            )
        )
    return places


def _town(name: str, river: str, founded: int, mayor: str) -> Article:
    return Article(name, (
        Fact(f"{name} is a town on the river", river, f"On which river is the town of {name}?"),
        Fact(f"The town of {name} was founded in", str(founded), f"In which year was the town of {name} founded?"),
        Fact(f"The mayor of {name} is", mayor, f"Who is the mayor of {name}?"),
    ))  # fmt: skip


def _firm(name: str, town: str, founded: int, product: str) -> Article:
    return Article(name, (
        Fact(f"{name} is a firm in the town of", town),
        Fact(f"The firm {name} was set up in", str(founded), f"In which year was the firm {name} set up?"),
        Fact(f"{name} makes a machine called the", product, f"What is the machine called that {name} makes?"),
    ))  # fmt: skip


def _person(name: str, town: str, born: int, firm: str) -> Article:
    return Article(name, (
        Fact(f"{name} was born in the town of", town, f"In which town was {name} born?"),
        Fact(f"{name} came into the world in", str(born)),
        Fact(f"{name} works for the firm", firm, f"For which firm does {name} work?"),
    ))  # fmt: skip


def _first_words(articles: list[Article], count: int) -> dict[str, str]:
    """The texts, by name, of the first articles with `count` words in total; the last one may be cut."""
    texts: dict[str, str] = {}
    for article in articles:
        if count <= 0:
            break
        words = article.text.split()[:count]
        texts[article.name] = " ".join(words)
        count -= len(words)
    return texts
