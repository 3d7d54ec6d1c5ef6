"""SubsetTask, the base class of benchmarks with several subsets, each with its own prompt and metric."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import UnknownNameError
from ..base import Sample, Task, Turn
from . import rows
from .forms import METRICS, NEEDS, Form, cut_middle

if TYPE_CHECKING:
    from ...models import LanguageModel


@dataclass
class SubsetTask(Task):
    """One subset of a benchmark; `forms` has all of them. In results it is called "benchmark_subset".

    Raises UnknownNameError for an unknown subset, MissingDependencyError without the extra `data`, and for `file` the
    errors of `rows.files`; when a sample is made, those of `rows.read`.
    """

    forms: ClassVar[Mapping[str, Form]]

    subset: str = ""
    file: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.subset not in self.forms:
            raise UnknownNameError(f"{self.name}: subset", str(self.subset), self.forms)
        rows.require(f"{self.name}, {self.subset}", "datasets", *NEEDS.get(self.form.metric, ()))
        if self.file is not None:
            rows.files(self.where, self.file)
        # Set on the object, not on the class, so that several subsets can be in one table of results.
        self.__dict__.update(name=f"{self.name}_{self.subset}", metric=self.form.metric, chance=self.form.chance)

    @classmethod
    def chances(cls) -> tuple[float, ...]:
        """The score of guessing in each subset."""
        return tuple(form.chance for form in cls.forms.values())

    @property
    def form(self) -> Form:
        """The subset's prompt and metric."""
        return self.forms[self.subset]

    @property
    @abstractmethod
    def where(self) -> rows.Source:
        """Where the subset is on the hub, and which columns it must have."""

    @abstractmethod
    def turn(self, lm: LanguageModel, row: rows.Row) -> Turn:
        """The question of a row, and its correct answers."""

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """The row number `index` in the order shuffled by `seed`; a text that is too long is cut in the middle."""
        dataset = rows.read(self.where, self.file)
        number = rows.number(dataset, index, seed)
        row = dataset[number]
        turn, text = self.turn(lm, row), rows.text(row, "context")

        def make(remaining: str, dropped: int) -> Sample:
            return Sample(self.form.lead + remaining, (turn,), {"row": number, "dropped": dropped})

        return cut_middle(lm, text, length, self.placement, make)

    def score(self, turn: Turn, text: str) -> float:
        """The subset's metric, from 0 to 1; the best of several correct answers counts."""
        return METRICS[self.form.metric](text, turn.answers)
