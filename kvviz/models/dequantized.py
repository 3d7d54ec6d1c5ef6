"""De-quantised copies of GGUF models in the user's cache folder, made once and verified at every use."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import IncompatibleFileError, KVVizError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

VERSION = 1  # increase it whenever the output of `_dequantize` changes
MANIFEST = "manifest.json"


def folder() -> Path:
    """The cache folder: the environment variable KVVIZ_CACHE, or else the operating system's user cache folder."""
    import platformdirs

    return Path(os.environ.get("KVVIZ_CACHE") or platformdirs.user_cache_dir("kvviz"))


def dequantized(gguf: Path) -> Path:
    """Path of a verified folder with the model and tokenizer of a .gguf file, de-quantised to float32 safetensors.

    The first call creates the folder (9 s for 135 million weights). Its key is the file's content, transformers' major
    version and our format version. If several processes call, one creates it and the others wait. A damaged copy is
    created again.

    Raises IncompatibleFileError if transformers cannot read the file as GGUF, and KVVizError if the cache folder cannot
    be written; partial copies are removed.
    """
    place = folder() / f"{gguf.stem}-{_key(gguf)}"
    if _intact(place):  # checked without the lock, so that a read-only cache folder can still be used
        return place
    with writing(place), _locked(place):
        if not _intact(place):
            _replace(place, gguf)
    return place


def dequantized_config(gguf: Path) -> PreTrainedConfig:
    """The config of a .gguf file: from the folder of `dequantized` if there is one, or else from the file itself.

    The first takes no time, the second 3 s for SmolLM2-135M: transformers reads the vocabulary too.
    Raises IncompatibleFileError if transformers cannot read the file as GGUF.
    """
    from transformers import AutoConfig

    place = folder() / f"{gguf.stem}-{_key(gguf)}"
    if (place / "config.json").is_file():
        config: PreTrainedConfig = AutoConfig.from_pretrained(str(place), trust_remote_code=False)
        return config
    with _readable(gguf), _parsed_once():
        config = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name, trust_remote_code=False)
    return config


def _key(gguf: Path) -> str:
    major = importlib.metadata.version("transformers").partition(".")[0]
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{digest[:16]}-transformers{major}-v{VERSION}"


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    from filelock import FileLock

    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        yield


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn the errors of a full, read-only or missing disk into an error that names the remedy."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise KVVizError(
            f"cache a de-quantised model in {place.parent}",
            error,
            "a writable folder with enough space; the environment variable KVVIZ_CACHE names another one",
        ) from error


def _replace(place: Path, gguf: Path) -> None:
    """Create the folder under a temporary name and rename it. Needs the lock."""
    for leftover in place.parent.glob(f"{place.name}.*.part"):  # from a killed process, since we hold the lock
        shutil.rmtree(leftover)
    part = Path(tempfile.mkdtemp(dir=place.parent, prefix=f"{place.name}.", suffix=".part"))
    try:
        _dequantize(gguf, part)
        manifest = {name.name: _fingerprint(name) for name in part.iterdir()}
        (part / MANIFEST).write_text(json.dumps(manifest, indent=1))
        if place.exists():  # a damaged copy
            shutil.rmtree(place)
        part.rename(place)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _fingerprint(path: Path) -> dict[str, int]:
    # CRC-32 detects all bursts of up to 32 wrong bits, and all but 1 in 4e9 of longer ones. 538 MB take 0.1 s here,
    # compared with 0.3 s for SHA-256 with the processor's SHA instructions and over a second without them.
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return {"bytes": path.stat().st_size, "crc32": crc}


def _intact(place: Path) -> bool:
    try:
        manifest = json.loads((place / MANIFEST).read_text())
        return bool(manifest) and all(_fingerprint(place / name) == expected for name, expected in manifest.items())
    except (OSError, ValueError, AttributeError):  # missing, or not our manifest
        return False


def _dequantize(gguf: Path, target: Path) -> None:
    import torch
    import transformers

    options: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):  # newer releases keep the blocks if the `kernels` package is there
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with _readable(gguf), _parsed_once():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False, **options
        )
        tokenizer = read_tokenizer(gguf)
    if quantizer := getattr(model, "hf_quantizer", None):  # it refuses to save de-quantised weights
        quantizer.remove_quantization_config(model)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


@contextmanager
def _readable(gguf: Path) -> Iterator[None]:
    """Turn transformers' errors for a file that it cannot read as GGUF into one that says so."""
    try:
        yield
    except (ValueError, KeyError, NotImplementedError) as error:
        wanted = "a GGUF file of an architecture that transformers reads"
        raise IncompatibleFileError(f"read {gguf}", error, wanted) from error


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Make transformers parse a .gguf file once: for config, weights and tokenizer it would take 3 s each.

    It would also make the table of tensor names again for each of the model's modules.
    """
    import gguf

    originals = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    try:
        for name, original in originals.items():
            setattr(gguf, name, cache(original))
        yield
    finally:
        for name, original in originals.items():
            setattr(gguf, name, original)


def read_tokenizer(gguf: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a .gguf file.

    SmolLM's tokenizer is assembled here from the file's vocabulary and merges: transformers 5.0 reads it as
    CodeLlama's, which loses spaces, and 5.23 does not split digits, which changes the spaces before a number. All other
    tokenizers are converted by transformers.
    """
    from gguf import GGUFReader
    from transformers import AutoTokenizer

    fields = GGUFReader(str(gguf)).fields  # as transformers names it, see _parsed_once
    names = [f"tokenizer.ggml.{name}" for name in ("model", "pre")]
    if [fields[name].contents() for name in names if name in fields] == ["gpt2", "smollm"]:
        return _smollm_tokenizer({name.removeprefix("tokenizer."): field for name, field in fields.items()})
    return AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)


def _smollm_tokenizer(fields: dict[str, Any]) -> PreTrainedTokenizerBase:
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words: list[str] = fields["ggml.tokens"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # GGUF's token type of control tokens
    special = [word for word, kind in zip(words, fields["ggml.token_type"].contents(), strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    named = {
        f"{name}_token": words[fields[f"ggml.{key}_token_id"].contents()]
        for name, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items()
    }
    template = fields["chat_template"].contents()
    fast: Any = transformers.PreTrainedTokenizerFast  # its constructor has no types
    wrapped: PreTrainedTokenizerBase = fast(tokenizer_object=tokenizer, chat_template=template, **named)
    return wrapped
