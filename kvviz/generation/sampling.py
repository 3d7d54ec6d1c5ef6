"""Sampling: the next token from the model's logits."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

from ..errors import InvalidInputError


class Sampler:
    """Chooses tokens: the most likely one at temperature 0, or else at random, by transformers' logits processors.

    `top_p` keeps the most likely tokens whose probabilities reach it. Row `r` of a batch has random numbers of its own,
    from `seed + r`, so that it gets the tokens that it would get alone; without a seed they follow torch's generator.

    Raises InvalidInputError for numbers out of range, and for a `top_p` below 1 at temperature 0.
    """

    def __init__(self, operation: str, temperature: float = 0.0, top_p: float = 1.0, seed: int | None = None) -> None:
        if not isinstance(temperature, int | float) or not 0 <= temperature < math.inf:
            raise InvalidInputError(f"{operation}: temperature", temperature, "0 (greedy) or a number above it")
        if not isinstance(top_p, int | float) or not 0 < top_p <= 1:
            raise InvalidInputError(f"{operation}: top_p", top_p, "a number above 0, up to 1")
        if top_p < 1 and not temperature:
            got = f"{top_p} at temperature 0, which is greedy"
            raise InvalidInputError(f"{operation}: top_p", got, "a temperature above 0, such as temperature=1.0")
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
            raise InvalidInputError(f"{operation}: seed", seed, "an int from 0, or None")
        self.greedy, self.seed = not temperature, seed
        self._processors = LogitsProcessorList()
        if not self.greedy and temperature != 1:
            self._processors.append(TemperatureLogitsWarper(float(temperature)))
        if top_p < 1:
            self._processors.append(TopPLogitsWarper(float(top_p)))
        self._random: dict[int, torch.Generator] = {}

    def token(self, logits: Tensor, row: int = 0) -> int:
        """The next token of a row, from logits [V]."""
        if self.greedy:
            return int(logits.argmax())
        before: Any = torch.empty(1, 0, dtype=torch.int64)  # the ids so far: these processors do not read them
        scores: Any = logits[None].float()
        scores = self._processors(before, scores)
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self._generator(row, logits.device)))

    def _generator(self, row: int, device: torch.device) -> torch.Generator:
        if row not in self._random:
            seed = int(torch.randint(2**31, ())) if self.seed is None else self.seed + row
            self._random[row] = torch.Generator(device).manual_seed(seed)
        return self._random[row]
