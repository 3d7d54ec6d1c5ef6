"""Windows of running text: any number of samples, each from a different place."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidInputError
from ..models.encoding import fed_ids

if TYPE_CHECKING:
    from ..models import LanguageModel

CHARACTERS_A_TOKEN = 4  # a guess for English; if it is wrong, a window takes another try
GOLDEN = (math.sqrt(5) - 1) / 2


def manual() -> str:
    """Python's reference manual (`pydoc_data.topics`), English prose, with sections in alphabetical order."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def running_text(operation: str, file: str | None = None) -> str:
    """The text of a UTF-8 file, or `manual()` without a file.

    `operation` is used in errors. Raises InvalidInputError for a file that is missing, empty or not text.
    """
    if file is None:
        return manual()
    wanted = "a UTF-8 file with running text"
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(operation, f"{file} ({error})", wanted) from error
    if not text.strip():
        raise InvalidInputError(operation, f"{file}, which is empty", wanted)
    return text


def window(lm: LanguageModel, text: str, tokens: int, index: int, seed: int) -> tuple[int, str]:
    """Start of window number `index`, in characters, and the text from there: at least `tokens` tokens.

    All windows start at different characters, spread evenly: each starts a golden section of the text after the one
    before. `seed` shifts all of them. Raises InvalidInputError for a text with fewer tokens, or fewer windows.
    """
    _enough(lm, text, tokens)
    places = _last(lm, text, tokens) + 1
    if index >= places:
        raise InvalidInputError("a window of a text", f"number {index}, of {tokens} tokens", f"less than {places}")
    step = max(1, round(places * GOLDEN))
    while math.gcd(step, places) > 1:  # coprime, so that no place repeats before all have been used
        step += 1
    start = (random.Random(seed).randrange(places) + index * step) % places
    return start, _enough(lm, text[start:], tokens)


def _enough(lm: LanguageModel, text: str, tokens: int) -> str:
    """The beginning of the text with at least `tokens` tokens, and at most a few times as many."""
    size = min(len(text), CHARACTERS_A_TOKEN * tokens)
    while (n_tokens := len(fed_ids(lm, text[:size]))) < tokens:
        if size == len(text):
            raise InvalidInputError("a window of a text", f"a text of {n_tokens} tokens", f"at least {tokens} tokens")
        size = min(len(text), 2 * size)
    return text[:size]


def _last(lm: LanguageModel, text: str, tokens: int) -> int:
    """The last character from which the text has at least `tokens` tokens."""
    size = min(len(text), tokens)
    while size < len(text) and len(fed_ids(lm, text[-size:])) < tokens:
        size = min(len(text), 2 * size)
    size = bisect_left(range(size), tokens, lo=size // 2, key=lambda end: len(fed_ids(lm, text[len(text) - end :])))
    return len(text) - size
