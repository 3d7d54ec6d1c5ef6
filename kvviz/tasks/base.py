"""What every task is: samples made for a model and a length, and a score of what was answered."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..errors import UnknownNameError
from ..models.provenance import content_hash
from ..registry import Registry

if TYPE_CHECKING:
    from ..models import LanguageModel

Placement = Literal["after", "last", "first"]
PLACEMENTS = ("after", "last", "first")
Measure = Literal["answer", "likelihood"]

REGISTRY: Registry[Task] = Registry("task", "kvviz.tasks")


@dataclass(frozen=True)
class Turn:
    """A question, what counts as right, and how many tokens an answer may take.

    `opening` begins the answer for the model. Of a task that measures likelihood, `answers` holds the one text whose
    tokens are fed and scored, and `question` is empty.
    """

    question: str
    answers: tuple[str, ...]
    opening: str = ""
    max_new_tokens: int = 32


@dataclass(frozen=True)
class Sample:
    """A text and the questions on it, in order; `details` become columns of the results (numbers and texts)."""

    context: str
    turns: tuple[Turn, ...]
    details: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass
class Task(ABC):
    """One way to ask a model about a long text. Its dataclass fields are its configuration.

    A subclass sets the class variables and implements `sample` and `score`; with a `name` it is registered. `chance` is
    what guessing without the text reaches. `measures` "answer": the model writes, and `score` says how well;
    "likelihood": the tokens of the turn's answer are fed, and their mean negative log likelihood in nats is the score.

    `placement`: where the question stands. "after": the context is prefilled and compressed before the question is
    seen, which is then fed as decode steps. "last": context and question are one prompt. "first": one prompt, with the
    question before the context (PQCache, arXiv 2407.12820, table 3).
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    metric: ClassVar[str]
    measures: ClassVar[Measure] = "answer"
    higher_is_better: ClassVar[bool] = True
    chance: ClassVar[float] = 0.0

    placement: Placement = "after"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        REGISTRY.register(cls)

    def __post_init__(self) -> None:
        if self.placement not in PLACEMENTS:
            raise UnknownNameError(f"{self.name}: placement", str(self.placement), PLACEMENTS)

    @classmethod
    def chances(cls) -> tuple[float, ...]:
        """What guessing reaches: `chance`, or one number for each subset of a task that has several."""
        return (cls.chance,)

    @property
    def config(self) -> dict[str, Any]:
        """The fields and their values, and what tells the content of a `file` of the user's from another."""
        values = asdict(self)
        return values | {"file_hash": content_hash(values["file"])} if values.get("file") else values

    @abstractmethod
    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """Sample number `index`, whose prompt has at most `length` tokens and nearly as many (`tasks.prompts.fit`).

        The same for the same arguments, whatever was made before.
        """

    def score(self, turn: Turn, text: str) -> float:
        """How well `text` answers the turn, from 0 to 1. A task that measures likelihood has none."""
        raise NotImplementedError(f"{type(self).__name__} has no score")

    def drawn(self, length: int, index: int, seed: int) -> random.Random:
        """Random numbers of their own for a sample."""
        return random.Random(f"{self.name}/{length}/{index}/{seed}")
