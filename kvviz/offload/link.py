"""What moving bytes between host and device would take on a link: predicted, never measured by the run itself."""

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
# From what one KV head fetches in a step to what all heads do, so that both the latency and the bandwidth show.
MEASURED_BYTES = tuple(2**power for power in range(16, 26))
REPEATS = 9
HOST_NAME = "memory of this machine"


class MovesBytes(Protocol):
    """What knows how many bytes were moved in all: a Ledger."""

    @property
    def moved_bytes(self) -> int:
        """Bytes fetched from another tier."""


@dataclass(frozen=True)
class LinkModel:
    """Predicts how long recorded bytes take to move: bytes / `bytes_per_s` + `latency_s` for each transfer.

    `basis` says where the numbers come from. "peak" is arithmetic on the link's specification, without latency: no
    transfer is faster. "measured" was fitted to copies on this machine (`LinkModel.measured`).

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
        """The preset of that name: pcie3, pcie4, pcie5 (16 lanes) or nvlink-c2c; UnknownNameError for another."""
        if name not in cls.PRESETS:
            raise UnknownNameError("LinkModel", name, cls.PRESETS)
        return cls.PRESETS[name]

    @classmethod
    def pcie(cls, generation: int, lanes: int = 16) -> LinkModel:
        """PCI Express of generation 3, 4 or 5, one direction: 8, 16 or 32 GT/s a lane, 128 bits in every 130 sent.

        Source: PCI Express Base Specification 3.0, 4.0, 5.0 (128b/130b encoding). Packet headers are not counted.
        """
        if generation not in (3, 4, 5) or lanes not in (1, 2, 4, 8, 16):
            raise InvalidInputError("LinkModel.pcie", f"generation {generation}, {lanes} lanes", "3, 4, 5; 1 to 16")
        transfers_per_s = 8e9 * 2 ** (generation - 3)  # of one bit, on each lane
        return cls(f"PCIe {generation}.0 ×{lanes}", transfers_per_s * lanes * 128 / 130 / 8)

    @classmethod
    def fitted(cls, name: str, moved_bytes: Sequence[int], seconds: Sequence[float]) -> LinkModel:
        """The link that fits measured copies best: least squares of the relative errors, no latency below zero.

        Raises InvalidInputError for fewer than two sizes, or times that do not grow with the bytes.
        """
        sizes, times = np.asarray(moved_bytes, np.float64), np.asarray(seconds, np.float64)
        if sizes.shape != times.shape or len(set(sizes.tolist())) < 2 or not (times > 0).all():
            raise InvalidInputError(
                "LinkModel.fitted", f"{len(sizes)} sizes, {len(times)} times", "two sizes or more, a time > 0 for each"
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
        """The link of this machine to `device` (default: the GPU where there is one), fitted to copies of 64 KiB up.

        To a GPU: whole copies from pinned host memory. Without one: rows gathered from host memory and copied into the
        device's arena as the store does it, so the name is "memory of this machine" and no link is involved. The
        fastest of some copies of each size counts. Takes about a second.

        Raises InvalidInputError for another kind of device.
        """
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if target.type not in ("cuda", "cpu"):
            raise InvalidInputError("LinkModel.measured", f"device {target}", "a CUDA device or the CPU")
        times = _copies_to_gpu(target) if target.type == "cuda" else _gathers()
        name = f"pinned memory to {torch.cuda.get_device_name(target)}" if target.type == "cuda" else HOST_NAME
        return cls.fitted(name, list(times), [min(each) for each in times.values()])

    @overload
    def seconds(self, moved_bytes: float, transfers: float = 1) -> float: ...
    @overload
    def seconds(self, moved_bytes: ArrayLike, transfers: ArrayLike = 1) -> NDArray[np.float64] | float: ...
    def seconds(self, moved_bytes: ArrayLike, transfers: ArrayLike = 1) -> NDArray[np.float64] | float:
        """Predicted seconds to move so many bytes in so many transfers: a float, or an array where one came in.

        Where no bytes are moved there is no transfer and no latency. Raises InvalidInputError for negative numbers or
        what is no number.
        """
        sizes, counts = (_numbers(name, of) for name, of in (("moved_bytes", moved_bytes), ("transfers", transfers)))
        found = sizes / self.bytes_per_s + np.where(sizes > 0, counts, 0) * self.latency_s
        return found if found.ndim else float(found)

    def predict(self, recording: Recording) -> NDArray[np.float64]:
        """Predicted seconds of every decode step's transfers, [T]: all layers, one transfer a layer that moved any.

        A recording on the device moved nothing and takes 0.
        """
        found = np.zeros(recording.steps)
        for events in recording.events.values():
            found += self.seconds(events.moved_bytes)
        return found

    def predict_total(self, ledger: MovesBytes, transfers: int = 1) -> float:
        """Predicted seconds of all that a Ledger counts as moved; it does not know in how many transfers."""
        return self.seconds(ledger.moved_bytes, transfers)


LinkModel.PRESETS = {
    **{f"pcie{generation}": LinkModel.pcie(generation) for generation in (3, 4, 5)},
    # NVIDIA Grace Hopper Superchip Architecture whitepaper: 900 GB/s in both directions together.
    "nvlink-c2c": LinkModel("NVLink-C2C", 900e9 / 2),
}


def _numbers(name: str, given: ArrayLike) -> NDArray[np.float64]:
    try:
        numbers = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"LinkModel.seconds: {name}", repr(given), "numbers") from error
    if not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise InvalidInputError(f"LinkModel.seconds: {name}", "negative or not finite", "numbers >= 0")
    return numbers


def _copies_to_gpu(device: torch.device) -> dict[int, list[float]]:
    """Seconds of copies from pinned host memory, by bytes."""
    host = torch.zeros(MEASURED_BYTES[-1], dtype=torch.uint8, pin_memory=True)
    there = torch.zeros_like(host, device=device)

    def copy(count: int) -> None:
        there[:count].copy_(host[:count], non_blocking=True)
        torch.cuda.synchronize(device)

    copy(MEASURED_BYTES[-1])  # the first copy sets the context up
    return {count: _timed(copy, count) for count in MEASURED_BYTES}


def _gathers() -> dict[int, list[float]]:
    """Seconds in which the store gathers rows of host memory and copies them into the arena, by bytes.

    The rows lie scattered in four times the largest size, so that the processor's caches do not hold them.
    """
    row_bytes = ROW_ELEMENTS * torch.float32.itemsize
    most = MEASURED_BYTES[-1] // row_bytes
    space = Space("host", None, lambda: 2**62)
    rows = HostRows(1, 4 * most, ROW_ELEMENTS, torch.float32, space, pinned=False)
    rows.rows.zero_()
    arena = torch.ones(most, ROW_ELEMENTS)  # zeros would be mapped at the first copy only
    slots, random = torch.arange(most), torch.Generator().manual_seed(0)

    def load(places: torch.Tensor) -> None:
        rows.load(places, arena, slots[: len(places)])

    found = {}
    for count in MEASURED_BYTES:
        choices = [torch.randperm(4 * most, generator=random)[: count // row_bytes] for _ in range(REPEATS)]
        found[count] = [_timed(load, places, repeats=1)[0] for places in choices]
    return found


def _timed(work: Any, argument: Any, repeats: int = REPEATS) -> list[float]:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work(argument)
        times.append(time.perf_counter() - started)
    return times
