"""PG-19: perplexity of the continuation of a book."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import InvalidInputError
from ..base import Sample, Turn
from ..language_modelling import MARGIN, Perplexity
from ..windows import window
from . import rows

if TYPE_CHECKING:
    from ...models import LanguageModel

HUB = "emozilla/pg19-test"
SOURCE = rows.Source(
    "PG-19", "test", ("text",),
    "download the Parquet file of the dataset emozilla/pg19-test from the Hugging Face hub, or write books of your own "
    'as {"text": ...}, one a line, and pass PG19(file=...)',
    HUB,
)  # fmt: skip


@dataclass
class PG19(Perplexity):
    """Perplexity on books: `tokens` tokens after a context of `length` tokens of a book, in nats per token.

    `file`: a .jsonl or .parquet file with a column `text`, one book per row, or a directory with test.jsonl or
    test.parquet. Without it, the test split is read from the hub (emozilla/pg19-test: PG-19's 100 test books, without a
    loading script). Sample `index` is a window of book number `index` in the order shuffled by `seed`; after the last
    book, the first one follows with another window (`details`: `row`, and `start`, the window's first character).

    Source: PG-19 (arXiv 1911.05507), as used by ClusterKV (arXiv 2412.03213), fig. 10.

    Raises the errors of `Perplexity`; MissingDependencyError without the extra `data`; for `file` the errors of
    `rows.files`; when a sample is made, those of `rows.read`.
    """

    name: ClassVar[str] = "pg19"
    title: ClassVar[str] = "PG-19: the tokens after a long part of a book"
    source: ClassVar[str] = "arXiv 1911.05507"

    def __post_init__(self) -> None:
        self._check_fields()  # without `file`, which is not plain text here
        rows.require("pg19", "datasets")
        if self.file is not None:
            rows.files(SOURCE, self.file)

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """A window of a book: a context of at most `length` tokens, and the `tokens` tokens that follow it."""
        if length < 2:
            raise InvalidInputError("pg19: length", length, "at least 2 tokens")
        books = rows.read(SOURCE, self.file)
        window_index, place = divmod(index, books.num_rows)
        number = rows.number(books, place, seed)
        book = rows.text(books[number], "text")
        start, text = window(lm, book, length + self.tokens + MARGIN, window_index, seed)
        context, answer = self._cut(lm, text, length)
        turn = Turn("", (answer,), max_new_tokens=self.tokens)
        return Sample(context, (turn,), {"row": number, "start": start})
