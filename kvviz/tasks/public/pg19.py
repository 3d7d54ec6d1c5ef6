"""PG-19: perplexity of the continuation of a book."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..language_modelling import Perplexity
from . import rows

SOURCE = rows.Source(
    "PG-19", "test", ("text",),
    "download the Parquet file of the dataset emozilla/pg19-test from the Hugging Face hub, or write books of your own "
    'as {"text": ...}, one a line, and pass PG19(file=...)',
    "emozilla/pg19-test",
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

    def _source_text(self, index: int, seed: int) -> tuple[str, int, dict[str, int]]:
        books = rows.read(SOURCE, self.file)
        number, place = divmod(index, books.num_rows)
        row = rows.number(books, place, seed)
        return rows.text(books[row], "text"), number, {"row": row}
