"""A recording as a grid of cells, decode steps × positions: what the method attended to, and what the oracle would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..metrics import Verdict
from ..trace import Recording

BLANK, AGREED, MISSED, WASTED = Verdict.UNMARKED, Verdict.AGREED, Verdict.MISSED, Verdict.WASTED
KEPT = Verdict.KEPT
_STROKES = 96  # across a panel, approximately


@dataclass(frozen=True)
class Cells:
    """T steps × C columns of `width` tokens each; a cell shows the most attended of its marked tokens.

    A token is marked if the method or the oracle selects it: agreed (both), missed (only the oracle), wasted (only the
    method, which chose it) or kept (only the method, which always attends to it: sinks, recent window, generated
    tokens). A merged token agrees if its centroid gives it at least half of its weight.
    """

    first_step: int
    start: int  # position of the first column
    width: int  # tokens per column
    mark: NDArray[np.uint8]  # [T, C] BLANK, AGREED, MISSED, WASTED or KEPT
    weight: NDArray[np.float32]  # [T, C] exact attention weight of the token shown
    position: NDArray[np.int64]  # [T, C] position of the token shown, -1 in blank cells
    group: NDArray[np.int64]  # [T, C] cluster or page of the token shown, -1 if it has none
    counts: NDArray[np.int64]  # [T, C, 4] agreed, missed, wasted and kept tokens of the cell

    @property
    def centers(self) -> NDArray[np.floating[Any]]:
        """Middle of each column on the position axis, [C]."""
        return self.start + self.width * np.arange(self.mark.shape[1]) + (self.width - 1) / 2


def cells(
    recording: Recording, layer: int, row: int, steps: tuple[int, int], positions: tuple[int, int], columns: int
) -> Cells:
    """The cells of one layer and row of a recording, max-pooled over positions to at most `columns` columns.

    `steps` and `positions` are half-open ranges within the recording.
    """
    (first, last), (start, stop) = steps, positions
    width = -(-(stop - start) // columns)
    padded = -(-(stop - start) // width) * width
    shape = (last - first, padded)
    mark = np.full(shape, BLANK, np.uint8)
    weight, group = np.full(shape, -1.0, np.float32), np.full(shape, -1, np.int64)
    for line, step in enumerate(range(first, last)):
        end = min(recording.visible(step), stop)
        if end <= start:
            continue
        view = slice(0, end - start)
        chosen = recording.indices(step, layer)[row]
        verdicts = recording.agreement(step, layer)[row, start:end]
        mark[line, view] = np.where(verdicts == Verdict.MERGED_AWAY, AGREED, verdicts)
        weight[line, view] = recording.attention(step, layer)[row, start:end]
        inside = (chosen >= start) & (chosen < end)
        group[line, chosen[inside] - start] = recording.groups(step, layer)[row][inside]
    blocks = (last - first, padded // width, width)
    mark, weight, group = mark.reshape(blocks), weight.reshape(blocks), group.reshape(blocks)
    shown = np.where(mark != BLANK, weight, -2.0).argmax(-1)[..., None]

    def pick(array: NDArray[Any]) -> NDArray[Any]:
        return np.take_along_axis(array, shown, -1)[..., 0]

    place = start + np.arange(padded).reshape(1, -1, width)
    return Cells(
        first_step=first, start=start, width=width, mark=pick(mark), weight=np.maximum(pick(weight), 0.0),
        position=np.where(pick(mark) != BLANK, pick(np.broadcast_to(place, blocks)), -1), group=pick(group),
        counts=np.stack([(mark == kind).sum(-1) for kind in (AGREED, MISSED, WASTED, KEPT)], -1),
    )  # fmt: skip


def rectangles(mask: NDArray[np.bool_], grid: Cells, *, closed: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Corners (x, y) of rectangles over the true cells of `mask` [T, C]: one per run in a row, separated by NaN.

    One filled path draws them all as vectors. A path with an outline needs `closed` rectangles. float32 represents the
    half-token edges of 8 million positions exactly.
    """
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    line, left = np.nonzero(edges == 1)
    right = np.nonzero(edges == -1)[1]  # in the same order as the left edges
    x0, x1 = (grid.start + grid.width * side - 0.5 for side in (left, right))
    y0, y1 = (grid.first_step + line + side for side in (-0.45, 0.45))
    gap = np.full(len(line), np.nan)
    closing = [x0] if closed else [], [y0] if closed else []
    x = np.stack([x0, x1, x1, x0, *closing[0], gap], -1).ravel().astype(np.float32)
    y = np.stack([y0, y0, y1, y1, *closing[1], gap], -1).ravel().astype(np.float32)
    return x, y


def middles(mask: NDArray[np.bool_], grid: Cells) -> tuple[NDArray[Any], NDArray[Any]]:
    """Middles (x, y) of the true cells of `mask` [T, C]."""
    line, column = np.nonzero(mask)
    return grid.centers[column].astype(np.float32), (grid.first_step + line).astype(np.float32)


def slashes(mask: NDArray[np.bool_], grid: Cells) -> tuple[NDArray[Any], NDArray[Any]]:
    """Ends (x, y) of the strokes that hatch the true cells of `mask` [T, C], separated by NaN.

    A browser prints a pattern fill as a bitmap; strokes stay vectors. Wide cells get several strokes.
    """
    strokes = max(1, round(_STROKES / mask.shape[1]))
    line, column = (np.repeat(part, strokes) for part in np.nonzero(mask))
    left = grid.start + grid.width * (column + np.tile(np.arange(strokes), mask.sum()) / strokes) - 0.5
    right = left + grid.width / strokes
    gap = np.full(len(line), np.nan)
    x = np.stack([left, right, gap], -1).ravel().astype(np.float32)
    y = np.stack([grid.first_step + line + 0.4, grid.first_step + line - 0.4, gap], -1).ravel().astype(np.float32)
    return x, y
