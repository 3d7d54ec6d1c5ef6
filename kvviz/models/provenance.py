"""Where numbers come from: hardware, versions, commit and the model's weights."""

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
    """The name of the GPU, or that of the processor and the number of its cores."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    lines = info.read_text().splitlines() if (info := Path("/proc/cpuinfo")).exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.processor() or platform.machine()


def installed(package: str) -> str:
    """The version of a package, "not installed" without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@cache
def commit() -> str:
    """The commit of kvviz's source, with "+" where its code differs from it; "unknown" for an installed package."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return "unknown"
    found = _git(root, "rev-parse", "--short=7", "HEAD")
    return found + "+" * bool(_git(root, "status", "--porcelain", "--", "kvviz", "kernels")) if found else "unknown"


def _git(root: Path, *command: str) -> str:
    try:
        return subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True).stdout.strip()
    except OSError:  # no git here
        return ""


def content_hash(path: str | os.PathLike[str]) -> str:
    """BLAKE2b of a file, or of all files in a folder with their names: 16 hexadecimal digits; "" where there is none.

    A file is read again only where its time or size has changed.
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
    """BLAKE2b of every weight of the model, by name, dtype and shape: 16 hexadecimal digits.

    The same wherever accelerate has put the weights; those it keeps elsewhere are brought in one at a time.
    """
    import torch

    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found = _brought_in(model, name) if tensor.is_meta else tensor
        digest.update(found.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _brought_in(model: nn.Module, name: str) -> Tensor:
    from accelerate.utils import align_module_device

    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    with align_module_device(module):
        found: Tensor = getattr(module, own).detach().cpu().clone()
    return found
