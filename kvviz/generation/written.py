"""WrittenText: the text of what was written so far, where it stops, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import InvalidInputError

if TYPE_CHECKING:
    from ..models import LanguageModel

Stream = Any  # a function of text, or an object with transformers' `put` and `end`


def stop_strings(operation: str, stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The stop strings as a tuple. Raises InvalidInputError for an empty one, or another object."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(isinstance(text, str) and text for text in stops):
        raise InvalidInputError(f"{operation}: stop", repr(stop), "a text of at least one character, or a list of them")
    return stops


def check_stream(operation: str, stream: Stream | None, rows: int) -> None:
    """Raise InvalidInputError for a stream that cannot be called, and for a streamer of several prompts."""
    streamer = _is_streamer(stream)
    if stream is not None and not streamer and not callable(stream):
        wanted = "a function of a piece of text, or a transformers streamer"
        raise InvalidInputError(f"{operation}: stream", f"a {type(stream).__name__}", wanted)
    if streamer and rows > 1:
        got = f"a {type(stream).__name__} for {rows} prompts"
        raise InvalidInputError(f"{operation}: stream", got, "a function of a piece of text and the prompt's number")


def _is_streamer(stream: Stream | None) -> bool:
    return hasattr(stream, "put") and hasattr(stream, "end")


class WrittenText:
    """The text of one prompt's written tokens. It ends before the first stop string; `stopped` says that there was one.

    `stream` is told of it as it grows: a function gets pieces of text, which together are the whole, and a transformers
    streamer gets the prompt's ids [1, L] and then each token. A piece is held back while it may be part of a stop
    string or of a character. A stop string that is a special token stops too, though the text does not show it.
    """

    def __init__(
        self, lm: LanguageModel, prompt: Tensor, stops: Sequence[str] = (), stream: Stream | None = None
    ) -> None:
        self._lm, self._stops = lm, stops
        special = [text for text in stops if text in lm.tokenizer.all_special_tokens]
        self._stop_ids = {lm.tokenizer.convert_tokens_to_ids(text) for text in special}
        self._streamer = stream if _is_streamer(stream) else None
        self._send: Callable[[str], object] | None = None if self._streamer else stream
        self._sent = 0
        self.stopped = False
        if self._streamer:
            self._streamer.put(prompt.cpu())

    def add(self, token_ids: list[int]) -> None:
        """Take note of the last token in the list of those written."""
        if self._streamer:
            self._streamer.put(torch.tensor(token_ids[-1:]))
        self.stopped = token_ids[-1] in self._stop_ids
        if self._stops or self._send:
            text = self.of(token_ids)
            if self._send:
                self._tell(text[: len(text) if self.stopped else self._certain(text)])

    def finish(self, token_ids: list[int]) -> str:
        """The whole text, at the end of the stream."""
        text = self.of(token_ids)
        if self._streamer:
            self._streamer.end()
        if self._send:
            self._tell(text)
        return text

    def of(self, token_ids: list[int]) -> str:
        """The text of these tokens without special ones, up to the first stop string."""
        text = str(self._lm.tokenizer.decode(token_ids, skip_special_tokens=True))
        ends = [end for stop in self._stops if (end := text.find(stop)) >= 0]
        self.stopped |= bool(ends)
        return text[: min(ends, default=len(text))]

    def _certain(self, text: str) -> int:
        """The length of the text that no later token changes: without spaces at its end, which decoders may drop."""
        begun = [
            size for stop in self._stops for size in range(1, len(stop)) if text.endswith(stop[:size])
        ]  # fmt: skip
        return len(text[: len(text) - max(begun, default=0)].rstrip("\ufffd").rstrip())

    def _tell(self, text: str) -> None:
        piece, self._sent = text[self._sent :], max(len(text), self._sent)
        if piece and self._send:
            self._send(piece)
