"""Key-value retrieval: find the value of one key in a JSON object of random pairs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..models.encoding import fed_ids
from .base import Sample, Task, Turn
from .prompts import fit
from .scores import found_any
from .text import random_uuid

if TYPE_CHECKING:
    from ..models import LanguageModel

LEAST_TOKENS_A_PAIR = 8  # a lower bound for any tokenizer: a pair has 2 x 36 random characters
ROOM = 4  # tokens that may be generated beyond those of the value


@dataclass
class KVRetrieval(Task):
    """Key-value retrieval: a JSON object with as many pairs of random UUIDs as fit; one key's value is asked for.

    `details`: `pairs`, their number, and `depth`, the position of the pair asked for (0 the first, 1 the last). The
    score is 1 if the value occurs in the answer.

    Source: InfiniteBench (arXiv 2402.13718), section 3.2.1, Retrieve.KV, after Liu et al. (arXiv 2307.03172). The
    wording and the opening of the answer are ours.
    """

    name: ClassVar[str] = "kv_retrieval"
    title: ClassVar[str] = "the value of one key in a JSON object"
    source: ClassVar[str] = "InfiniteBench, section 3.2.1"
    metric: ClassVar[str] = "value found"

    def sample(self, lm: LanguageModel, length: int, index: int, seed: int) -> Sample:
        """A sample with as many pairs as fit. Raises InvalidInputError if not even one fits."""
        rng = self.drawn(length, index, seed)
        most = max(1, length // LEAST_TOKENS_A_PAIR)
        share = rng.random()
        pairs = [(random_uuid(rng), random_uuid(rng)) for _ in range(most)]

        def make(units: int) -> Sample:
            asked = int(share * units)
            key, value = pairs[asked]
            turn = Turn(
                f'\n\nWhich value belongs to the key "{key}"?', (value,), opening=f'The value of the key "{key}" is "',
                max_new_tokens=len(fed_ids(lm, value)) + ROOM,
            )  # fmt: skip
            context = f"Here is a JSON object of keys and values.\n\n{json.dumps(dict(pairs[:units]))}"
            return Sample(context, (turn,), {"pairs": units, "depth": (asked + 0.5) / units})

        return fit(lm, length, self.placement, make, most=most)

    def score(self, turn: Turn, text: str) -> float:
        """1 if the value occurs in the text, else 0."""
        return found_any(text, turn.answers)
