"""InfiniteBench: retrieval, books, dialogues and code, on texts of more than 100,000 tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import IncompatibleFileError
from ...models.encoding import fed_ids
from ..base import Turn
from . import rows
from .forms import F1, LETTER, NUMBER, ROUGE, WORD, Form
from .subsets import SubsetTask

if TYPE_CHECKING:
    from ...models import LanguageModel

LETTERS = "ABCD"
ROOM = 4  # tokens that may be generated beyond those of the answer

HIDDEN = "Somewhere in this long text is one piece of information that matters. A question on it follows.\n\n"
BOOK = "Here is a book.\n\n"

FORMS = {
    "passkey": Form(NUMBER, 6, HIDDEN, cue="The pass key is"),
    "number_string": Form(NUMBER, 12, HIDDEN, cue="The sequence of digits is"),
    "kv_retrieval": Form(WORD, 50, "Here is a JSON object; the value of one of its keys is asked for.\n\n"),
    "longbook_qa_eng": Form(
        F1, 40, BOOK, "Question on the book: {input}\nAnswer in as few words as will do.", "Answer:"
    ),
    "longbook_choice_eng": Form(
        LETTER, 40, BOOK, "Question on the book: {input}\nGive the letter of the right answer alone.",
        "The letter of the right answer is", chance=1 / 4,
    ),
    "longbook_sum_eng": Form(ROUGE, 1200, BOOK, "Sum up the book.", "Summary:"),
    "longdialogue_qa_eng": Form(
        WORD, 40, "Here is the script of a dialogue, in which $$MASK$$ stands for one character's name.\n\n",
        "Whose name is $$MASK$$? Give it alone, as it stands before the colons.", "The name is",
    ),
    "code_debug": Form(
        LETTER, 5, "Here is a large program, one function of which was broken on purpose.\n\n",
        "Which of these functions is it?\nGive its letter alone.", "The letter of the function is", chance=1 / 4,
    ),
}  # fmt: skip


@dataclass
class InfiniteBench(SubsetTask):
    """One subset of InfiniteBench, with its own metric; in results it is called "infinitebench_" + subset.

    `file`: a .jsonl or .parquet file in InfiniteBench's schema (columns context, input and answer, and options for
    multiple choice), or a directory of files named after the subsets. Without it, the subset's file is read from the
    hub (xinrongzhang2022/InfiniteBench).

    If the prompt would be longer than `length`, as it is at usual lengths, the middle of the text is cut out, as in
    InfiniteBench (`details`: `dropped` tokens; `row`). This may remove the answer: in "passkey", "number_string" and
    "kv_retrieval", the score of full attention shows how often the answer remains. The tasks "kv_retrieval" and RULER's
    make such samples at any length.

    Left out: the Chinese book, which needs other prompts; code_run, math_find and math_calc, which compute rather than
    retrieve. Source: InfiniteBench (arXiv 2402.13718) for the subsets, metrics, order of the prompt's parts and maximum
    length of answers (here at least the tokens of the correct answer and a few more). The wording is ours.

    Raises the errors of `SubsetTask`.
    """

    name: ClassVar[str] = "infinitebench"
    title: ClassVar[str] = "InfiniteBench: one of 8 of its 12 subsets"
    source: ClassVar[str] = "arXiv 2402.13718"
    metric: ClassVar[str] = "by subset"

    forms = FORMS

    subset: str = "passkey"

    @property
    def where(self) -> rows.Source:
        """The subset's file on the hub."""
        file = f"{self.subset}.jsonl"
        advice = (
            f"download {file} from the dataset xinrongzhang2022/InfiniteBench on the Hugging Face hub and pass "
            f'InfiniteBench(subset="{self.subset}", file="{file}")'
        )
        columns = ("context", "input", "answer", *(["options"] if self.form.metric == LETTER else []))
        hub = "xinrongzhang2022/InfiniteBench"
        return rows.Source("InfiniteBench", self.subset, columns, advice, hub, data_files=file, split="train")

    def turn(self, lm: LanguageModel, row: rows.Row) -> Turn:
        """The question of a row, with its options for multiple choice."""
        question, opening = self.form.asked(rows.text(row, "input"))
        answers, most = rows.texts(row, "answer"), self.form.max_new_tokens
        if self.form.metric == LETTER:
            options = rows.texts(row, "options")
            question += "\n" + "\n".join(
                f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False)
            )
            answers = (_letter(answers, options),)
        if self.form.metric in (NUMBER, WORD):
            most = max(most, *(len(fed_ids(lm, answer)) + ROOM for answer in answers))
        return Turn(question, answers, opening, most)


def _letter(answers: tuple[str, ...], options: tuple[str, ...]) -> str:
    """The letter of the correct option; a row's answer is the option, its letter, or both."""
    for answer in answers:
        if answer in options[: len(LETTERS)]:
            return LETTERS[options.index(answer)]
    for answer in answers:
        if answer in tuple(LETTERS):
            return answer
    raise IncompatibleFileError("read column 'answer'", repr(answers), f"one of the options {options}, or its letter")
