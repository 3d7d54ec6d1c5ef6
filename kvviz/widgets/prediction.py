"""Prediction: questions that a reader answers before the measurement is shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import traitlets

from ..errors import InvalidInputError
from .live import LiveWidget
from .page import Embedded, self_contained
from .prediction_questions import Choice, Curve, Order, Value, check_all
from .prediction_snapshot import Asked
from .snapshot import Snapshot

TITLE = "Your prediction"


class Prediction(LiveWidget):
    """A widget in which a reader says what they expect, and then compares it with what was measured.

    Each question is a Value (a slider), a Choice (pick one), an Order (sort names) or a Curve (draw it by dragging its
    points, or with the arrow keys). "Compare with the measurement" can be pressed once all of them are answered; only
    then is anything measured shown, beside the answers. "Try again" hides it, and lets answers be changed.

    `answers`, {text of the question: answer}, and `revealed` are traits: set them from Python, or observe them. An
    answer is a number, an option, a list of names from the lowest to the highest, or a list of numbers. The snapshot
    that a notebook stores shows the questions, and never the measurement.

    Raises InvalidInputError for no questions, two with the same text, an answer that cannot be given, or `revealed`
    before all questions are answered.

    >>> from kvviz.widgets import Prediction, Value
    >>> prediction = Prediction(Value("How many tokens?", measured=1.7, low=0, high=10, unit="tokens"))
    >>> prediction.answers = {"How many tokens?": 8}
    """

    _kvviz_view = traitlets.Unicode("prediction").tag(sync=True)
    answers = traitlets.Dict().tag(sync=True)
    revealed = traitlets.Bool(False).tag(sync=True)
    page = traitlets.Dict().tag(sync=True)

    def __init__(
        self, *questions: Value | Choice | Order | Curve, answers: Mapping[str, Any] | None = None,
        revealed: bool = False,
    ) -> None:  # fmt: skip
        check_all(questions)
        self.questions = questions
        page = {"title": TITLE, "questions": [question.described() for question in questions]}
        super().__init__(page=page, answers=dict(answers or {}), revealed=revealed)

    def snapshot(self) -> Snapshot:
        """The questions, without answers and measurement."""
        count = len(self.questions)
        place = f"{'1 question' if count == 1 else f'{count} questions'} · run the cell, answer, then compare"
        return Snapshot(
            TITLE, place, [], [Asked(number, question) for number, question in enumerate(self.questions, 1)]
        )

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """A self-contained HTML page that works without a kernel; also written to `path`, atomically.

        It opens with the answers given so far. What was measured is in its data, and is shown as in the widget.
        """
        return self_contained(TITLE, [self.embedded()], path)

    def embedded(self) -> Embedded:
        """The widget as it is in the page of `to_html`."""
        return Embedded("prediction", {"page": self.page, "answers": self.answers, "revealed": self.revealed})

    @property
    def _open(self) -> list[str]:
        """The texts of the questions without an answer."""
        return [question.text for question in self.questions if question.text not in self.answers]

    @traitlets.validate("answers")
    def _check_answers(self, proposal: Any) -> dict[str, Any]:
        known = {question.text: question for question in self.questions}
        for text in proposal["value"]:
            if text not in known:
                wanted = f"answers to {', '.join(map(repr, known))}"
                raise InvalidInputError("answers of a Prediction", f"one to {text!r}", wanted)
        return {text: known[text].check(answer) for text, answer in proposal["value"].items()}

    @traitlets.validate("revealed")
    def _check_revealed(self, proposal: Any) -> bool:
        if proposal["value"] and self._open:
            wanted = f"an answer to every question first; open: {', '.join(map(repr, self._open))}"
            raise InvalidInputError("revealed of a Prediction", "True", wanted)
        return bool(proposal["value"])

    @traitlets.observe("answers")
    def _hide_if_open(self, _: Any) -> None:
        if self.revealed and self._open:
            self.revealed = False
