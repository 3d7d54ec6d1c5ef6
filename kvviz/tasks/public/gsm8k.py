"""GSM8K: grade school math problems, after examples that are solved step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import IncompatibleFileError
from ..base import Sample, Task, Turn
from ..prompts import fit
from ..scores import final_number
from . import rows
from .worked_examples import worked_examples

if TYPE_CHECKING:
    from ...models import LanguageModel

MARK = "####"  # precedes the result in GSM8K's answers
LEAST_TOKENS_AN_EXAMPLE = 16  # a lower bound for any tokenizer: the shortest example has about 40 words
ADVICE = (
    "download the test split of the dataset openai/gsm8k from the Hugging Face hub, as Parquet or as JSON lines with "
    '"question" and "answer", and pass GSM8K(file=...)'
)
SOURCE = rows.Source("GSM8K", "test", ("question", "answer"), ADVICE, "openai/gsm8k", "main")


@dataclass
class GSM8K(Task):
    """GSM8K: a math word problem, after as many worked examples as fit into the length, at most `shots`.

    The examples are ours: eight patterns with random names and numbers, whose steps end with "The answer is ...". Only
    the text before the next "Question:" is scored: 1 if its final number is correct, else 0. `details`: `row`, `shots`.

    `file`: a .jsonl or .parquet file in GSM8K's schema (columns question and answer, which ends with "#### 42"), or a
    directory with test.jsonl or test.parquet. Without it, the test split is read from the hub (openai/gsm8k).

    Source: GSM8K (arXiv 2110.14168) in the chain-of-thought format of arXiv 2201.11903, which has eight fixed examples;
    here there are as many as fit. PQCache (arXiv 2407.12820) uses it.

    Raises InvalidInputError for shots below 1, MissingDependencyError without the extra `data`, and for `file` the
    errors of `rows.files`; when a sample is made, those of `rows.read`.
    """

    name: ClassVar[str] = "gsm8k"
    title: ClassVar[str] = "GSM8K: word problems after worked examples"
    source: ClassVar[str] = "arXiv 2110.14168"
    metric: ClassVar[str] = "final number right"

    file: str | None = None
    shots: int | None = None
    max_new_tokens: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(max_new_tokens=1)
        if self.shots is not None:
            self.at_least(shots=1)
        rows.require("gsm8k", "datasets")
        if self.file is not None:
            rows.files(SOURCE, self.file)

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """The row number `index` in the order shuffled by `seed`, after worked examples; at least one must fit."""
        dataset = rows.read(SOURCE, self.file)
        number = rows.number(dataset, index, seed)
        row = dataset[number]
        question, result = rows.text(row, "question"), _result(rows.text(row, "answer"))
        turn = Turn(f"\n\nQuestion: {question}", (result,), "Answer:", self.max_new_tokens)
        most = self.shots or max(1, length // LEAST_TOKENS_AN_EXAMPLE)
        examples = worked_examples(self.drawn(length, index, seed), most)

        def make(shots: int) -> Sample:
            lead = "Answer each question step by step.\n\n"
            return Sample(lead + "\n\n".join(examples[:shots]), (turn,), {"row": number, "shots": shots})

        return fit(lm, length, self.placement, make, most=most)

    def score(self, turn: Turn, text: str) -> float:
        """1 if the answer's final number is correct, else 0."""
        return final_number(text.partition("Question:")[0], turn.answers)


def _result(answer: str) -> str:
    steps, mark, result = answer.rpartition(MARK)
    result = result.strip().replace(",", "")
    if not mark or not steps.strip() or not result.removeprefix("-").replace(".", "", 1).isdigit():
        raise IncompatibleFileError("read GSM8K: answer", repr(answer[-40:]), f"steps, then {MARK} and a number")
    return result
