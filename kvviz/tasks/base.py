"""Task, the base class of all tasks: it makes samples for a model and a length, and scores the answers."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from ..errors import InvalidInputError, UnknownNameError
from ..models.provenance import content_hash
from ..registry import Registry

if TYPE_CHECKING:
    from ..models import LanguageModel

Placement = Literal["after", "last", "first"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
Measure = Literal["answer", "likelihood"]

REGISTRY: Registry[Task] = Registry("task", "kvviz.tasks")


@dataclass(frozen=True)
class Turn:
    """A question, its correct answers, and the maximum number of tokens of an answer.

    `opening` is the beginning of the answer, given to the model. In a task that measures likelihood, `answers` holds
    the one text whose tokens are fed and scored, and `question` is empty.
    """

    question: str
    answers: tuple[str, ...]
    opening: str = ""
    max_new_tokens: int = 32


@dataclass(frozen=True)
class Sample:
    """A text and the questions about it, in order; `details` (numbers and texts) become columns of the results."""

    context: str
    turns: tuple[Turn, ...]
    details: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass
class Task(ABC):
    """A task: one way to ask a model about a long text. Its dataclass fields are its configuration.

    A subclass sets the class variables and implements `sample` and `score`; if it has a `name`, it is registered.
    `chance` is the score of guessing without the text. `measures` "answer": the model generates, and `score` rates the
    text; "likelihood": the tokens of the turn's answer are fed, and the score is their mean negative log likelihood in
    nats.

    `placement` of the question: "after": the context is prefilled and compressed before the question is seen; the
    question is then fed as decode steps. "last": one prompt, context first. "first": one prompt, question first
    (PQCache, arXiv 2407.12820, table 3).
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

    def at_least(self, **least: int) -> None:
        """Raise InvalidInputError for a field that is not an int, or below its minimum."""
        for name, smallest in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
                raise InvalidInputError(f"{self.name}: {name}", repr(value), f"an int >= {smallest}")

    @classmethod
    def chances(cls) -> tuple[float, ...]:
        """The score of guessing: `chance`, or one number per subset of a task with several."""
        return (cls.chance,)

    @property
    def config(self) -> dict[str, Any]:
        """The fields and their values; for a task that reads a `file`, also the hash of its content."""
        values = asdict(self)
        return values | {"file_hash": content_hash(values["file"])} if values.get("file") else values

    @abstractmethod
    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """Sample number `index`; its prompt has at most `length` tokens, and nearly as many (`tasks.prompts.fit`).

        The same arguments always give the same sample.
        """

    def score(self, turn: Turn, text: str) -> float:
        """The score of `text` as an answer to the turn, from 0 to 1. Tasks that measure likelihood have none."""
        raise NotImplementedError(f"{type(self).__name__} has no score")

    def drawn(self, length: int, index: int, seed: int) -> random.Random:
        """A random generator that is seeded for one sample."""
        return random.Random(f"{self.name}/{length}/{index}/{seed}")
