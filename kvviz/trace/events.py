"""LayerEvents: what one layer did at each decode step."""

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
    """The events of one layer at each decode step: selections, exact attention, errors, bytes and times.

    T steps, R selection heads (KV heads, or query heads if the method selects for each), S slots, N tokens in all.

    `members` and `members_of_step` are both None if nothing was merged, or if the members are unknown. Members that
    stay the same are stored once: if they change only when tokens are merged again, M is far smaller than T. `merged`
    and `members` have a row per KV head, or per selection head if each chooses its own centroids. `merged_share` is
    None if members are, and in files written before it existed.
    """

    indices: NDArray[np.int32]  # [T, R, S] attended positions, ascending, -1 pads
    groups: NDArray[np.int32]  # [T, R, S] cluster or page of each, -1 for sinks, recent and generated tokens
    scores: NDArray[np.float32]  # [T, R, S] the method's ranking scores, NaN if nothing was ranked
    attention: NDArray[np.float32]  # [T, R, N] exact attention weights, mean over query heads; 0 for later tokens
    merged: NDArray[np.int32]  # [T, H or R] number of centroids attended to, each for several tokens
    output_error: NDArray[np.float32]  # [T] relative error of the attention output, mean over query heads
    read_bytes: NDArray[np.int64]  # [T] bytes of the attended keys and values
    moved_bytes: NDArray[np.int64]  # [T] bytes moved between tiers (see `Ledger`)
    select_s: NDArray[np.float32]  # [T] seconds of selection
    members: NDArray[np.int32] | None = None  # [M, H or R, N] centroid that stands for each token; -1 for none
    members_of_step: NDArray[np.int32] | None = None  # [T] which of the M applies at each step, -1 if nothing is merged
    merged_share: NDArray[np.float16] | None = None  # [T, R, N] `metrics.merged_share` of each token: 0 if not merged

    FIELDS: ClassVar[Mapping[str, Any]] = {
        "indices": np.int32, "groups": np.int32, "scores": np.float32, "attention": np.float32, "merged": np.int32,
        "output_error": np.float32, "read_bytes": np.int64, "moved_bytes": np.int64, "select_s": np.float32,
    }  # fmt: skip
    MERGED_FIELDS: ClassVar[Mapping[str, Any]] = {
        "members": np.int32, "members_of_step": np.int32, "merged_share": np.float16,
    }  # fmt: skip

    def arrays(self) -> dict[str, Array]:
        """All arrays by name; those of merged tokens only if they are known."""
        arrays = {name: getattr(self, name) for name in (*self.FIELDS, *self.MERGED_FIELDS)}
        return {name: array for name, array in arrays.items() if array is not None}

    def cut(self, start: int, stop: int, length: int) -> LayerEvents:
        """The events of the steps `start` to `stop` - 1, with `length` tokens, without slots used only by others."""
        parts = {name: getattr(self, name)[start:stop] for name in self.FIELDS}
        used = np.flatnonzero((parts["indices"] >= 0).any((0, 1)))  # pads may lie between used slots
        slots = used[-1] + 1 if used.size else 0
        for name in ("indices", "groups", "scores"):
            parts[name] = parts[name][..., :slots]
        parts["attention"] = parts["attention"][..., :length]
        if self.members is not None and self.members_of_step is not None:
            of_step = self.members_of_step[start:stop]
            merges = np.unique(of_step[of_step >= 0])
            if merges.size:
                renumbered = np.where(of_step < 0, -1, np.searchsorted(merges, of_step)).astype(np.int32)
                parts |= {"members": self.members[merges][..., :length], "members_of_step": renumbered}
                if self.merged_share is not None:
                    parts["merged_share"] = self.merged_share[start:stop, :, :length]
        return LayerEvents(**parts)

    def check(self, name: str, steps: int, length: int, geometry: Geometry) -> None:
        """Raise IncompatibleFileError if shapes, dtypes or positions do not match `steps` steps, `length` tokens."""
        rows, slots = (*self.indices.shape, 0, 0, 0)[1:3]
        merging = (*self.merged.shape, 0, 0)[1]  # rows that choose centroids
        merging = merging if merging in (geometry.n_kv_heads, rows) else geometry.n_kv_heads
        shapes = {"attention": (steps, rows, length), "merged": (steps, merging)} | dict.fromkeys(
            ("indices", "groups", "scores"), (steps, rows, slots)
        )
        for key, dtype in self.FIELDS.items():
            check_shape(f"{name}.{key}", getattr(self, key), shapes.get(key, (steps,)), dtype)
        if rows not in (geometry.n_kv_heads, geometry.n_heads):
            wanted = f"{geometry.n_kv_heads} (KV heads) or {geometry.n_heads} (query heads)"
            raise IncompatibleFileError(f"{name}: rows", rows, wanted)
        visible = (length - steps + 1 + np.arange(steps))[:, None, None]  # tokens that each step can see
        if ((self.indices < -1) | (self.indices >= visible)).any():
            raise IncompatibleFileError(
                f"{name}.indices", "positions outside the visible tokens", "-1 or a visible position"
            )
        before, after = self.indices[..., :-1], self.indices[..., 1:]
        if ((before >= after) & (after >= 0)).any():
            raise IncompatibleFileError(f"{name}.indices", "positions out of order or twice", "each once, ascending")
        self._check_members(name, steps, length)
        if self.merged_share is not None:
            check_shape(f"{name}.merged_share", self.merged_share, (steps, rows, length), np.float16)
            if self.members is None or not ((self.merged_share >= 0) & (self.merged_share <= 1)).all():
                raise IncompatibleFileError(f"{name}.merged_share", "shares of no merged token", "members, and 0 to 1")

    def _check_members(self, name: str, steps: int, length: int) -> None:
        members, of_step = self.members, self.members_of_step
        if members is None and of_step is None:
            return
        if members is None or of_step is None:
            raise IncompatibleFileError(name, "members without members_of_step, or vice versa", "both or neither")
        count = (*members.shape, 0)[0]
        check_shape(f"{name}.members", members, (count, self.merged.shape[1], length), np.int32)
        check_shape(f"{name}.members_of_step", of_step, (steps,), np.int32)
        if ((of_step < -1) | (of_step >= count)).any():
            raise IncompatibleFileError(f"{name}.members_of_step", "indices outside members", f"-1 to {count - 1}")
        # For each merge, and last for none: the number of its centroids [M+1, R] and the end of its tokens [M+1].
        ordered = np.sort(members, axis=-1)
        centroids = np.pad((np.diff(ordered, axis=-1, prepend=-1) > 0).sum(-1), ((0, 1), (0, 0)))
        merged = np.any(members >= 0, axis=1)
        ends = np.pad(np.where(merged.any(-1), length - merged[:, ::-1].argmax(-1), 0), (0, 1))
        visible = length - steps + 1 + np.arange(steps)
        if (members < -1).any() or (centroids[of_step] > self.merged).any() or (ends[of_step] > visible).any():
            wanted = "-1, or an attended centroid of visible tokens"
            raise IncompatibleFileError(f"{name}.members", "centroids that were not attended to", wanted)
