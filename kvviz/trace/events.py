"""LayerEvents: what one layer did at every decode step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import IncompatibleFileError
from .geometry import Geometry
from .storage import check_shape

Array = NDArray[Any]


@dataclass(frozen=True)
class LayerEvents:
    """What one layer did at every decode step.

    T steps, R rows (key/value heads, or query heads where the method chooses for each), S slots, N tokens in all.

    `members` and `members_of_step` are None together: where nothing was merged, and where it is not known what.
    Membership changes only when tokens are merged again, so that M is far smaller than T.
    """

    indices: NDArray[np.int32]  # [T, R, S] attended positions, ascending, -1 pads
    groups: NDArray[np.int32]  # [T, R, S] cluster or page of each, -1 where it was attended without being chosen
    scores: NDArray[np.float32]  # [T, R, S] what the method ranked by, NaN where nothing was ranked
    attention: NDArray[np.float32]  # [T, R, N] exact attention weights (mean over the row's query heads), 0 ahead
    merged: NDArray[np.int32]  # [T, H] merged centroids attended beside the indices, each for several tokens
    output_error: NDArray[np.float32]  # [T] relative error of the attention output, mean over query heads
    read_bytes: NDArray[np.int64]  # [T] keys and values attended
    moved_bytes: NDArray[np.int64]  # [T] keys and values fetched from another tier
    select_s: NDArray[np.float32]  # [T] seconds of selection
    members: NDArray[np.int32] | None = None  # [M, H, N] centroid of each token, in the order merged; -1 in none
    members_of_step: NDArray[np.int32] | None = None  # [T] which of the M held at each step, -1 where nothing is merged

    FIELDS: ClassVar[Mapping[str, Any]] = {
        "indices": np.int32, "groups": np.int32, "scores": np.float32, "attention": np.float32, "merged": np.int32,
        "output_error": np.float32, "read_bytes": np.int64, "moved_bytes": np.int64, "select_s": np.float32,
    }  # fmt: skip
    MERGED_FIELDS: ClassVar[Mapping[str, Any]] = {"members": np.int32, "members_of_step": np.int32}

    def arrays(self) -> dict[str, Array]:
        """Every array by name, `members` and `members_of_step` only where they are known."""
        every = {name: getattr(self, name) for name in (*self.FIELDS, *self.MERGED_FIELDS)}
        return {name: array for name, array in every.items() if array is not None}

    def cut(self, start: int, stop: int, length: int) -> LayerEvents:
        """The steps `start` to `stop` - 1, `length` tokens in all, without slots that only other steps needed."""
        parts = {name: getattr(self, name)[start:stop] for name in self.FIELDS}
        used = np.flatnonzero((parts["indices"] >= 0).any((0, 1)))  # pads may lie between used slots
        slots = used[-1] + 1 if used.size else 0
        for name in ("indices", "groups", "scores"):
            parts[name] = parts[name][..., :slots]
        parts["attention"] = parts["attention"][..., :length]
        if self.members is not None and self.members_of_step is not None:
            own = self.members_of_step[start:stop]
            kept = np.unique(own[own >= 0])
            if kept.size:
                places = np.where(own < 0, -1, np.searchsorted(kept, own)).astype(np.int32)
                parts |= {"members": self.members[kept][..., :length], "members_of_step": places}
        return LayerEvents(**parts)

    def check(self, name: str, steps: int, length: int, geometry: Geometry) -> None:
        """Raise IncompatibleFileError where shapes, dtypes or positions do not fit `steps` steps, `length` tokens."""
        rows, slots = (*self.indices.shape, 0, 0, 0)[1:3]
        shapes = {"attention": (steps, rows, length), "merged": (steps, geometry.n_kv_heads)} | dict.fromkeys(
            ("indices", "groups", "scores"), (steps, rows, slots)
        )
        for key, dtype in self.FIELDS.items():
            check_shape(f"{name}.{key}", getattr(self, key), shapes.get(key, (steps,)), dtype)
        if rows not in (geometry.n_kv_heads, geometry.n_heads):
            wanted = f"{geometry.n_kv_heads} (key/value heads) or {geometry.n_heads} (query heads)"
            raise IncompatibleFileError(f"{name}: rows", rows, wanted)
        seen = (length - steps + 1 + np.arange(steps))[:, None, None]  # tokens that each step can see
        if ((self.indices < -1) | (self.indices >= seen)).any():
            raise IncompatibleFileError(
                f"{name}.indices", "positions outside the visible tokens", "-1 or a visible one"
            )
        before, after = self.indices[..., :-1], self.indices[..., 1:]
        if ((before >= after) & (after >= 0)).any():
            raise IncompatibleFileError(f"{name}.indices", "positions out of order or twice", "each once, ascending")
        self._check_members(name, steps, length, geometry)

    def _check_members(self, name: str, steps: int, length: int, geometry: Geometry) -> None:
        members, of_step = self.members, self.members_of_step
        if members is None and of_step is None:
            return
        if members is None or of_step is None:
            raise IncompatibleFileError(name, "members without members_of_step, or the reverse", "both or neither")
        count = (*members.shape, 0)[0]
        check_shape(f"{name}.members", members, (count, geometry.n_kv_heads, length), np.int32)
        check_shape(f"{name}.members_of_step", of_step, (steps,), np.int32)
        if ((of_step < -1) | (of_step >= count)).any():
            raise IncompatibleFileError(f"{name}.members_of_step", "numbers outside members", f"-1 to {count - 1}")
        # Of each membership, and last of none: the centroids it names [M+1, H] and the end of the merged tokens [M+1].
        named = np.pad(members.max(-1, initial=-1) + 1, ((0, 1), (0, 0)))
        merged = np.any(members >= 0, axis=1)
        ends = np.pad(np.where(merged.any(-1), length - merged[:, ::-1].argmax(-1), 0), (0, 1))
        seen = length - steps + 1 + np.arange(steps)
        if (members < -1).any() or (named[of_step] > self.merged).any() or (ends[of_step] > seen).any():
            wanted = "-1 or a centroid attended, of tokens visible"
            raise IncompatibleFileError(f"{name}.members", "centroids that were not attended", wanted)
