"""Launch configurations of the fused kernels, stored in the repository per GPU name: tuned/<gpu>.json.

A file maps kernel names to their best configurations, {"gather_attention": {"block": 64, "num_warps": 4}}. Reading it
is cheap and makes runs repeatable; timing candidates at first use would cost seconds in every process.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

Config = dict[str, int]
FOLDER = Path(__file__).parent / "tuned"
_logger = logging.getLogger(__package__)


def grid(**choices: tuple[int, ...]) -> list[Config]:
    """Every combination of the choices for each option; those of the last option vary fastest."""
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def best_config(kernel: str, device: torch.device, default: Config) -> Config:
    """The tuned configuration of `kernel` for the GPU `device`, or `default` if none was tuned.

    The use of a default on a GPU is logged once at level INFO. Other devices (Triton's interpreter) always use the
    default. Raises ValueError for a file that cannot be read, or an entry whose names differ from the default's.
    """
    if device.type != "cuda":
        return default
    gpu = _gpu_name(device.index if device.index is not None else torch.cuda.current_device())
    entry = _entries(_file(gpu)).get(kernel)
    if entry is None:
        _log_once(kernel, gpu)
        return default
    if entry.keys() != default.keys():
        got, wanted = ", ".join(sorted(entry)), ", ".join(sorted(default))
        raise ValueError(f"{kernel}: got {got} in {_file(gpu).name}; wanted {wanted} (kernels/tune.py writes it again)")
    return entry


def tune(kernel: str, candidates: list[Config], run: Callable[..., object], device: torch.device) -> Config:
    """The fastest candidate on this GPU, also written to the GPU's file under `kernel`.

    run(config=candidate) launches the kernel once. Candidates that need more shared memory or registers than the GPU
    has are skipped. Times are medians from triton.testing.do_bench. Raises RuntimeError without a GPU, or if no
    candidate runs.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        raise RuntimeError(f"tune {kernel}: got {device}; wanted an NVIDIA GPU")
    times: dict[int, float] = {}
    for place, candidate in enumerate(candidates):
        milliseconds = _time(run, candidate)
        if milliseconds is None:
            _logger.info("tune %s: %s does not fit on this GPU", kernel, candidate)
        else:
            times[place] = milliseconds
    if not times:
        raise RuntimeError(f"tune {kernel}: none of the {len(candidates)} candidates fits on {device}")
    best = candidates[min(times, key=times.__getitem__)]
    _write(_file(_gpu_name(device.index if device.index is not None else torch.cuda.current_device())), kernel, best)
    return best


def _time(run: Callable[..., object], candidate: Config) -> float | None:
    """Median milliseconds of a candidate; None if it needs more resources than the GPU has."""
    from triton.runtime.errors import OutOfResources
    from triton.testing import do_bench

    try:
        return float(do_bench(lambda: run(config=candidate), return_mode="median"))
    except OutOfResources:
        return None


@cache
def _gpu_name(index: int) -> str:
    return torch.cuda.get_device_name(index)


def _file(gpu: str) -> Path:
    return FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}.json"


@cache
def _entries(file: Path) -> dict[str, Config]:
    """The entries of a file; {} if it does not exist."""
    if not file.exists():
        return {}
    try:
        entries = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file}: got text that is not JSON ({error}); wanted what kernels/tune.py writes") from error
    if not isinstance(entries, dict) or not all(map(_is_config, entries.values())):
        wanted = '{"kernel": {"option": integer}}'
        raise ValueError(f"{file}: got {json.dumps(entries)[:100]}; wanted {wanted}")
    return entries


def _is_config(entry: object) -> bool:
    return isinstance(entry, dict) and all(type(value) is int for value in entry.values())


def _write(file: Path, kernel: str, config: Config) -> None:
    """Write one kernel's configuration to a file, which is never incomplete."""
    _entries.cache_clear()
    entries = {**_entries(file), kernel: config}
    file.parent.mkdir(exist_ok=True)
    handle, part = tempfile.mkstemp(dir=file.parent, suffix=".part")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(json.dumps(entries, indent=1, sort_keys=True) + "\n")
        os.chmod(part, 0o644)  # mkstemp makes it private
        os.replace(part, file)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    _entries.cache_clear()


@cache
def _log_once(kernel: str, gpu: str) -> None:
    _logger.info("%s: no configuration tuned for %s, using the default", kernel, gpu)
