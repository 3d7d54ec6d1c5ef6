"""Which tokens of the outer tier have a copy in the device's arena, and for how long."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from ..errors import InvalidInputError


class StepArena:
    """A bounded number of rows for copies of tokens; those attended in the last `recent_steps` steps stay.

    A token is known by its place, head · capacity + position. Source: ClusterKV (arXiv 2412.03213), section IV-D, whose
    cache keeps the selected tokens of the last R steps and compares cluster labels; here every token is looked up, so
    that of a cluster which was trimmed before only the missing tokens are loaded.

    Where the rows do not suffice for R steps, those attended longest ago make room.
    """

    def __init__(self, rows: int, recent_steps: int, device: torch.device) -> None:
        self.rows, self.recent_steps = rows, recent_steps
        self._owner = torch.full((rows,), -1, dtype=torch.int64, device=device)  # the token in each row
        self._used = torch.full((rows,), -1, dtype=torch.int64, device=device)  # when each row was attended last
        self._clock = 0  # counts look-ups: a step that does not fit at once makes several
        self._steps: deque[int] = deque(maxlen=recent_steps + 1)  # the clock when each of the last steps began

    def begin_step(self, slot_of: Tensor) -> None:
        """Forget the tokens that were attended more than `recent_steps` steps ago."""
        self._steps.append(self._clock + 1)
        expired = ((self._used < self._steps[0]) & (self._owner >= 0)).nonzero()[:, 0]
        if len(expired):
            slot_of[self._owner[expired]] = -1
            self._owner[expired] = -1

    def begin_lookup(self) -> None:
        """Begin a look-up: from here on, what `touch` names is not evicted until the next one."""
        self._clock += 1

    def touch(self, slots: Tensor) -> None:
        """Note that these rows are attended now; rows beyond the arena are ignored."""
        self._used[slots[(slots >= 0) & (slots < self.rows)]] = self._clock

    def admit(self, tokens: Tensor, slot_of: Tensor) -> Tensor:
        """Rows for these tokens [n], distinct and without one; `slot_of` is brought up to date.

        Raises InvalidInputError for more tokens than rows that are not attended now.
        """
        free = (self._owner < 0).nonzero()[:, 0]
        if len(free) < len(tokens):
            free = self._evict(len(tokens), slot_of)
        rows = free[: len(tokens)]
        self._owner[rows] = tokens
        self._used[rows] = self._clock
        slot_of[tokens] = rows.to(slot_of.dtype)
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
