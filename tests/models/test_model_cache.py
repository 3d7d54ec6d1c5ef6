"""The cache of dequantised GGUF files: exact, made once, and never used if damaged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import pytest
import torch
import transformers

from kvviz import errors
from kvviz.models import dequantized as model_cache
from kvviz.models import load
from tests.tiny_llama import same_weights, write_gguf


@pytest.fixture
def tiny_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A random two-layer Llama as a .gguf file, with an empty cache folder."""
    monkeypatch.setenv("KVVIZ_CACHE", str(tmp_path / "cache"))
    return write_gguf(tmp_path / "tiny.gguf", seed=0)


def test_a_gguf_file_gives_the_weights_of_transformers_and_is_converted_once(tiny_gguf: Path, monkeypatch) -> None:
    lm = load(tiny_gguf, device="cpu")
    direct = transformers.AutoModelForCausalLM.from_pretrained(tiny_gguf.parent, gguf_file=tiny_gguf.name)
    assert same_weights(lm.model, direct)
    assert lm.name == "tiny"
    monkeypatch.setattr(model_cache, "_dequantize", lambda *_: pytest.fail("converted twice"))
    assert same_weights(load(tiny_gguf, device="cpu").model, lm.model)


def test_a_gguf_file_is_parsed_once(tiny_gguf: Path, monkeypatch) -> None:
    parsed = []
    reader = gguf.GGUFReader
    monkeypatch.setattr(gguf, "GGUFReader", lambda path: parsed.append(path) or reader(path))
    counting = gguf.GGUFReader
    load(tiny_gguf, device="cpu")
    assert parsed == [str(tiny_gguf)]
    assert gguf.GGUFReader is counting, "left patched"


def test_a_changed_file_of_the_same_name_is_another_model(tiny_gguf: Path) -> None:
    first = load(tiny_gguf, device="cpu").model
    write_gguf(tiny_gguf, seed=1)
    assert not same_weights(load(tiny_gguf, device="cpu").model, first)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda place: flip_a_bit(place / "model.safetensors"),
        lambda place: os.truncate(place / "model.safetensors", 1000),
        lambda place: flip_a_bit(place / "config.json"),
        lambda place: (place / "tokenizer.json").unlink(),
        lambda place: (place / model_cache.MANIFEST).unlink(),
        lambda place: (place / model_cache.MANIFEST).write_text("[]"),
        lambda place: (place / model_cache.MANIFEST).write_text("{"),
        shutil.rmtree,
    ],
    ids=["bit", "truncated", "config", "tokenizer", "no manifest", "empty manifest", "half a manifest", "gone"],
)
def test_a_damaged_cache_is_made_again(tiny_gguf: Path, damage) -> None:
    weights = {name: tensor.clone() for name, tensor in load(tiny_gguf, device="cpu").model.state_dict().items()}
    place = model_cache.dequantized(tiny_gguf)
    damage(place)
    again = load(tiny_gguf, device="cpu").model.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    assert model_cache._intact(place)


def test_files_of_a_killed_process_are_removed(tiny_gguf: Path) -> None:
    place = model_cache.dequantized(tiny_gguf)
    place.rename(place.with_name(f"{place.name}.abc.part"))
    again = model_cache.dequantized(tiny_gguf)
    assert sorted(path.name for path in again.parent.iterdir()) == [place.name, f"{place.name}.lock"]


@pytest.mark.slow
def test_two_processes_at_once_both_get_the_model(tiny_gguf: Path) -> None:
    command = [sys.executable, "-c", f"import kvviz; print(kvviz.load({str(tiny_gguf)!r}, device='cpu').name)"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0] for process in processes] == ["tiny\n", "tiny\n"]
    assert len(list(model_cache.folder().iterdir())) == 2  # the model and its lock


def test_an_unwritable_cache_folder_is_named(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVVIZ_CACHE", str(tiny_gguf / "below-a-file"))
    with pytest.raises(errors.KVVizError, match=r"below-a-file.*KVVIZ_CACHE"):
        load(tiny_gguf)


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_behind(tiny_gguf: Path) -> None:
    # A limit on the file size simulates a full disk: writing fails in the same place.
    script = f"""
import resource, kvviz, torch, transformers
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    kvviz.load({str(tiny_gguf)!r}, device="cpu")
except kvviz.KVVizError as error:
    print(error)
"""
    process = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert "KVVIZ_CACHE" in process.stdout
    assert [path.suffix for path in model_cache.folder().iterdir()] == [".lock"]


def test_half_a_gguf_file_is_refused(tiny_gguf: Path) -> None:
    os.truncate(tiny_gguf, tiny_gguf.stat().st_size // 2)
    with pytest.raises(errors.IncompatibleFileError, match=r"tiny\.gguf"):
        load(tiny_gguf)
    assert [path.suffix for path in model_cache.folder().iterdir()] == [".lock"]
