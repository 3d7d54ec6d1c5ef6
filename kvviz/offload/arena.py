"""Which offloaded tokens have a copy in the device's arena, and for how long."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidInputError


class Filling(NamedTuple):
    """Tokens to be copied into the arena beside the model's work: their places [n], and rows [n] of the pool."""

    places: Tensor
    rows: Tensor


class Arena(ABC):
    """A bounded number of the pool's first `rows` rows, for copies of tokens that are kept on a lower tier.

    A token is known by its place, head · capacity + position; `slot_of` says in which row of the pool each one is, -1
    where in none. One look-up can bring in at most `fetch_rows` tokens.
    """

    rows: int
    fetch_rows: int

    @abstractmethod
    def begin_step(self, slot_of: Tensor) -> None:
        """Evict the tokens that only earlier steps needed."""

    @abstractmethod
    def look_up(self, places: Tensor, slots: Tensor) -> None:
        """Note that the tokens at `places` [n], in these rows or in none (-1), are attended now.

        Rows beyond the arena are ignored. What is named here is not evicted until the next look-up.
        """

    @abstractmethod
    def admit(self, places: Tensor, slot_of: Tensor) -> Tensor:
        """Rows, ascending, for the tokens at `places` [n], distinct and without one; `slot_of` is brought up to date.

        Raises InvalidInputError for more tokens than rows that are not attended now.
        """

    def end_step(self, slot_of: Tensor, offloaded: int) -> Filling | None:
        """What is to be copied in once the step has attended, where the first `offloaded` positions are offloaded."""
        return None

    @abstractmethod
    def widen(self, capacity: int, wider: int) -> None:
        """Rename the tokens: a head has room for `wider` of them now instead of `capacity`."""


class StepArena(Arena):
    """Keeps the tokens that were attended in the last `recent_steps` steps.

    Source: ClusterKV (arXiv 2412.03213), section IV-D, whose cache keeps the selected tokens of the last R steps and
    compares cluster labels; here every token is looked up, so that of a cluster which was trimmed before only the
    missing tokens are loaded.

    Where the rows do not suffice for R steps, those attended longest ago make room.
    """

    def __init__(self, rows: int, recent_steps: int, device: torch.device) -> None:
        self.rows = self.fetch_rows = rows
        self.recent_steps = recent_steps
        self._owner = torch.full((rows,), -1, dtype=torch.int64, device=device)  # the token in each row
        self._used = torch.full((rows,), -1, dtype=torch.int64, device=device)  # when each row was attended last
        self._clock = 0  # counts look-ups: a step that does not fit at once makes several
        self._steps: deque[int] = deque(maxlen=recent_steps + 1)  # the clock when each of the last steps began

    def begin_step(self, slot_of: Tensor) -> None:
        """Evict the tokens that were attended more than `recent_steps` steps ago."""
        self._steps.append(self._clock + 1)
        expired = ((self._used < self._steps[0]) & (self._owner >= 0)).nonzero()[:, 0]
        if len(expired):
            slot_of[self._owner[expired]] = -1
            self._owner[expired] = -1

    def look_up(self, places: Tensor, slots: Tensor) -> None:
        """Note that these tokens are attended now."""
        self._clock += 1
        self._used[slots[(slots >= 0) & (slots < self.rows)]] = self._clock

    def admit(self, places: Tensor, slot_of: Tensor) -> Tensor:
        """Rows for the tokens at `places` [n], distinct and without one; `slot_of` is brought up to date."""
        free = (self._owner < 0).nonzero()[:, 0]
        if len(free) < len(places):
            free = self._evict(len(places), slot_of)
        rows = free[: len(places)]
        self._owner.scatter_(0, rows, places)  # 5 µs where indexing took 17 (8,192 rows, EPYC)
        self._used.scatter_(0, rows, self._clock)
        slot_of.scatter_(0, places, rows.to(slot_of.dtype))
        return rows

    def _evict(self, count: int, slot_of: Tensor) -> Tensor:
        """The `count` rows attended longest ago, freed."""
        age = torch.where(self._owner < 0, -1, self._used)
        oldest = age.topk(min(count, self.rows), largest=False).indices
        if count > self.rows or bool((age[oldest] >= self._clock).any()):
            raise InvalidInputError("arena on the device", f"{count} tokens at once", f"at most {self.rows} rows")
        owners = self._owner[oldest]
        slot_of[owners[owners >= 0]] = -1
        self._owner[oldest] = -1
        return oldest.sort().values

    def widen(self, capacity: int, wider: int) -> None:
        """Rename the tokens: a head has room for `wider` of them now instead of `capacity`."""
        owner = self._owner
        self._owner = torch.where(owner < 0, -1, owner // capacity * wider + owner % capacity)


@dataclass(frozen=True)
class StepCache:
    """Copies of the tokens that were attended in the last `recent_steps` steps (ClusterKV's R) stay on the device.

    0 fetches everything anew. Raises InvalidInputError for a number below 0.
    """

    recent_steps: int = 1

    def __post_init__(self) -> None:
        check_at_least("StepCache", self, recent_steps=0)

    def arena(self, heads: int, budget: int, prompt: int, arena_tokens: int | None, device: torch.device) -> Arena:
        """The arena of a layer of `heads` heads in all, each of which attends `budget` tokens."""
        tokens = min((1 + self.recent_steps) * budget, prompt) if arena_tokens is None else arena_tokens
        return StepArena(heads * tokens, self.recent_steps, device)


def check_at_least(operation: str, fields: object, **least: int) -> None:
    """Raise InvalidInputError for a field that is no int, or smaller than said here; None passes."""
    for name, bound in least.items():
        value = getattr(fields, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < bound):
            raise InvalidInputError(f"{operation}: {name}", repr(value), f"an int >= {bound}")
