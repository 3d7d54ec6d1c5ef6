"""Provenance of measurements: hardware, versions, commit and the model's weights."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


@cache
def hardware(device: str) -> str:
    """The name of the GPU, or the name and number of cores of the processor."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    lines = info.read_text().splitlines() if (info := Path("/proc/cpuinfo")).exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.processor() or platform.machine()


def installed(package: str) -> str:
    """The version of a package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@cache
def commit() -> str:
    """The commit of kvviz's source, with "+" if the code has changes; "unknown" for an installed package."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return "unknown"
    head = _git(root, "rev-parse", "--short=7", "HEAD")
    return head + "+" * bool(_git(root, "status", "--porcelain", "--", "kvviz", "kernels")) if head else "unknown"


def _git(root: Path, *command: str) -> str:
    try:
        return subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True).stdout.strip()
    except OSError:  # git is not installed
        return ""


def content_hash(path: str | os.PathLike[str]) -> str:
    """BLAKE2b hash of a file, or of all files in a folder with their names: 16 hexadecimal digits; "" if missing.

    A file is read again only if its modification time or size has changed.
    """
    root = Path(path)
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            return ""
        digest.update(f"{file.relative_to(root)} {_content(file, stat.st_mtime_ns, stat.st_size)}".encode())
    return digest.hexdigest()


@cache
def _content(file: Path, _changed_ns: int, _size: int) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def model_hash(model: nn.Module) -> str:
    """BLAKE2b hash of all weights of the model with their names, dtypes and shapes: 16 hexadecimal digits.

    It does not depend on where accelerate keeps the weights; offloaded weights are fetched one at a time.
    """
    import torch

    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        weights = _fetched(model, name) if tensor.is_meta else tensor
        digest.update(weights.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _fetched(model: nn.Module, name: str) -> Tensor:
    from accelerate.utils import align_module_device

    path, _, parameter = name.rpartition(".")
    module = model.get_submodule(path)
    with align_module_device(module):
        weights: Tensor = getattr(module, parameter).detach().cpu().clone()
    return weights
