"""LinkModel: predicted times for moving bytes between host and device; the run itself is not timed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidInputError, UnknownNameError
from ..trace import Recording
from .host import HostRows
from .space import Space

ROW_ELEMENTS = 256  # a key and a value of 128 channels each, as in Llama 3
# From the fetches of one KV head in a step to those of all heads, so that both latency and bandwidth show.
MEASURED_BYTES = tuple(2**power for power in range(16, 26))
REPEATS = 9
HOST_NAME = "memory of this machine"


class MovesBytes(Protocol):
    """An object that knows the total number of bytes moved: a Ledger."""

    @property
    def moved_bytes(self) -> int:
        """Bytes moved between tiers."""


@dataclass(frozen=True)
class LinkModel:
    """A model of a link: the predicted time to move bytes is bytes / `bytes_per_s` + `latency_s` per transfer.

    `basis` says where the numbers come from. "peak": from the link's specification, without latency; no transfer is
    faster. "measured": fitted to copies on this machine (`LinkModel.measured`).

    Raises InvalidInputError for a bandwidth that is not positive or a negative latency.
    """

    PRESETS: ClassVar[Mapping[str, LinkModel]]

    name: str
    bytes_per_s: float
    latency_s: float = 0.0
    basis: Literal["peak", "measured"] = "peak"

    def __post_init__(self) -> None:
        if not (np.isfinite(self.bytes_per_s) and self.bytes_per_s > 0):
            raise InvalidInputError("LinkModel: bytes_per_s", self.bytes_per_s, "a finite number > 0")
        if not (np.isfinite(self.latency_s) and self.latency_s >= 0):
            raise InvalidInputError("LinkModel: latency_s", self.latency_s, "a finite number >= 0")

    @property
    def label(self) -> str:
        """Name and basis, for legends."""
        return f"{self.name} ({'peak of the specification' if self.basis == 'peak' else 'measured'})"

    @classmethod
    def named(cls, name: str) -> LinkModel:
        """The preset with this name: pcie3, pcie4, pcie5 (16 lanes) or nvlink-c2c. Others raise UnknownNameError."""
        if name not in cls.PRESETS:
            raise UnknownNameError("LinkModel", name, cls.PRESETS)
        return cls.PRESETS[name]

    @classmethod
    def pcie(cls, generation: int, lanes: int = 16) -> LinkModel:
        """PCI Express of generation 3, 4 or 5, one direction: 8, 16 or 32 GT/s per lane; 128 of 130 bits are data.

        Source: PCI Express Base Specification 3.0, 4.0, 5.0 (128b/130b encoding). Packet headers are not counted.
        """
        if generation not in (3, 4, 5) or lanes not in (1, 2, 4, 8, 16):
            raise InvalidInputError("LinkModel.pcie", f"generation {generation}, {lanes} lanes", "3, 4, 5; 1 to 16")
        transfers_per_s = 8e9 * 2 ** (generation - 3)  # one bit each, per lane
        return cls(f"PCIe {generation}.0 ×{lanes}", transfers_per_s * lanes * 128 / 130 / 8)

    @classmethod
    def fitted(cls, name: str, moved_bytes: Sequence[int], seconds: Sequence[float]) -> LinkModel:
        """The link that best fits measured copies: least squares of the relative errors, with a latency of at least 0.

        Raises InvalidInputError for fewer than two sizes, or times that do not grow with the bytes.
        """
        sizes, times = np.asarray(moved_bytes, np.float64), np.asarray(seconds, np.float64)
        if sizes.shape != times.shape or len(set(sizes.tolist())) < 2 or not (times > 0).all():
            raise InvalidInputError(
                "LinkModel.fitted", f"{len(sizes)} sizes, {len(times)} times", "at least 2 sizes, each with a time > 0"
            )
        columns = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
        latency_s, slope = np.linalg.lstsq(columns, np.ones_like(times), rcond=None)[0].tolist()
        if latency_s < 0:
            latency_s, slope = 0.0, float(columns[:, 1].sum() / (columns[:, 1] ** 2).sum())
        if slope <= 0:
            raise InvalidInputError("LinkModel.fitted", "times that do not grow with the bytes", "longer copies")
        return cls(name, 1 / slope, latency_s, "measured")

    @classmethod
    def measured(cls, device: str | torch.device | None = None) -> LinkModel:
        """The link from this machine to `device` (default: the GPU, if any), fitted to copies of 64 KiB and more.

        With a GPU, it makes whole copies from pinned host memory. Without one, it gathers rows in host memory and
        copies them into the device's arena, as the store does; no link is involved, so the name is "memory of this
        machine". The fastest copy of each size counts. Takes about a second.

        Raises InvalidInputError for another kind of device.
        """
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if target.type not in ("cuda", "cpu"):
            raise InvalidInputError("LinkModel.measured", f"device {target}", "a CUDA device or the CPU")
        times = _copies_to_gpu(target) if target.type == "cuda" else _gathers()
        name = f"pinned memory to {torch.cuda.get_device_name(target)}" if target.type == "cuda" else HOST_NAME
        return cls.fitted(name, list(times), [min(repeats) for repeats in times.values()])

    @overload
    def seconds(self, moved_bytes: float, transfers: float = 1) -> float: ...
    @overload
    def seconds(self, moved_bytes: ArrayLike, transfers: ArrayLike = 1) -> NDArray[np.float64] | float: ...
    def seconds(self, moved_bytes: ArrayLike, transfers: ArrayLike = 1) -> NDArray[np.float64] | float:
        """Predicted seconds to move this many bytes in this many transfers: a float, or an array for array input.

        Zero bytes need no transfer and have no latency. Raises InvalidInputError for negative numbers, or values that
        are not numbers.
        """
        sizes, counts = _numbers("moved_bytes", moved_bytes), _numbers("transfers", transfers)
        seconds = sizes / self.bytes_per_s + np.where(sizes > 0, counts, 0) * self.latency_s
        return seconds if seconds.ndim else float(seconds)

    def predict(self, recording: Recording) -> NDArray[np.float64]:
        """Predicted seconds of the transfers in each decode step, [T]: one transfer per layer that moved bytes.

        A recording with all tokens on the device moved nothing and takes 0.
        """
        seconds = np.zeros(recording.steps)
        for events in recording.events.values():
            seconds += self.seconds(events.moved_bytes)
        return seconds

    def predict_total(self, ledger: MovesBytes, transfers: int = 1) -> float:
        """Predicted seconds for all moved bytes of a Ledger, which does not count the transfers."""
        return self.seconds(ledger.moved_bytes, transfers)


LinkModel.PRESETS = {
    **{f"pcie{generation}": LinkModel.pcie(generation) for generation in (3, 4, 5)},
    # NVIDIA Grace Hopper Superchip Architecture whitepaper: 900 GB/s in both directions together.
    "nvlink-c2c": LinkModel("NVLink-C2C", 900e9 / 2),
}


def _numbers(name: str, values: ArrayLike) -> NDArray[np.float64]:
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"LinkModel.seconds: {name}", repr(values), "numbers") from error
    if not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise InvalidInputError(f"LinkModel.seconds: {name}", "negative or not finite", "numbers >= 0")
    return numbers


def _copies_to_gpu(device: torch.device) -> dict[int, list[float]]:
    """Seconds of copies from pinned host memory, for each number of bytes."""
    source = torch.zeros(MEASURED_BYTES[-1], dtype=torch.uint8, pin_memory=True)
    target = torch.zeros_like(source, device=device)

    def copy(count: int) -> None:
        target[:count].copy_(source[:count], non_blocking=True)
        torch.cuda.synchronize(device)

    copy(MEASURED_BYTES[-1])  # the first copy sets up the CUDA context
    return {count: _timed(copy, count) for count in MEASURED_BYTES}


def _gathers() -> dict[int, list[float]]:
    """Seconds in which the store gathers rows in host memory and copies them into the arena, for each number of bytes.

    The rows are scattered over four times the largest size, so that the processor's caches do not hold them.
    """
    row_bytes = ROW_ELEMENTS * torch.float32.itemsize
    most = MEASURED_BYTES[-1] // row_bytes
    space = Space("host", None, lambda: 2**62)
    rows = HostRows(1, 4 * most, ROW_ELEMENTS, torch.float32, space, pinned=False)
    rows.rows.zero_()
    arena = torch.ones(most, ROW_ELEMENTS)  # zeros would only be mapped at the first copy
    slots, rng = torch.arange(most), torch.Generator().manual_seed(0)

    def load(places: torch.Tensor) -> None:
        rows.load(places, arena, slots[: len(places)])

    times = {}
    for count in MEASURED_BYTES:
        choices = [torch.randperm(4 * most, generator=rng)[: count // row_bytes] for _ in range(REPEATS)]
        times[count] = [_timed(load, places, repeats=1)[0] for places in choices]
    return times


def _timed(work: Any, argument: Any, repeats: int = REPEATS) -> list[float]:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work(argument)
        times.append(time.perf_counter() - started)
    return times
