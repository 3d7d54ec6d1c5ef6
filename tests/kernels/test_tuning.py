"""Tuned launch configurations: files read and written, with a simulated GPU."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kvviz_kernels import tuning

DEFAULT = {"block": 64, "num_warps": 4}
GPU = torch.device("cuda", 0)


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """The file of a simulated GPU."""
    for cached in (tuning._gpu_name, tuning._entries, tuning._log_once):
        cached.cache_clear()
    monkeypatch.setattr(tuning, "FOLDER", tmp_path / "tuned")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA H200 (141 GB)")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    yield tmp_path / "tuned" / "nvidia-h200-141-gb.json"
    for cached in (tuning._gpu_name, tuning._entries):
        cached.cache_clear()


def write(file, text):
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def test_the_file_of_the_gpu_is_read(tuned):
    write(tuned, '{"a": {"block": 128, "num_warps": 8}, "b": {"block": 16, "num_warps": 1}}')
    assert tuning.best_config("a", GPU, DEFAULT) == {"block": 128, "num_warps": 8}
    assert tuning.best_config("b", GPU, DEFAULT) == {"block": 16, "num_warps": 1}
    assert tuning.best_config("a", torch.device("cpu"), DEFAULT) == DEFAULT, "the interpreter is not a GPU"


def test_an_unknown_gpu_has_the_default_which_is_logged_once(tuned, caplog):
    with caplog.at_level(logging.INFO, "kvviz_kernels"):
        for _ in range(2):
            assert tuning.best_config("a", GPU, DEFAULT) == DEFAULT
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["a: no configuration tuned for NVIDIA H200 (141 GB), using the default"]


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 3}', '{"a": {"block": 6.5}}', '{"a": {"block": true}}', "\xff"])
def test_a_malformed_file_is_named(text, tuned):
    write(tuned, text)
    with pytest.raises(ValueError, match=r"nvidia-h200-141-gb\.json: got .*; wanted"):
        tuning.best_config("a", GPU, DEFAULT)


def test_options_that_the_kernel_does_not_have_are_named(tuned):
    write(tuned, '{"a": {"block": 128, "stages": 2}}')
    with pytest.raises(ValueError, match=r"a: got block, stages in .*; wanted block, num_warps"):
        tuning.best_config("a", GPU, DEFAULT)


def test_tuning_saves_the_fastest_and_keeps_other_entries(tuned, monkeypatch):
    write(tuned, '{"z": {"block": 1, "num_warps": 1}}')
    times = {32: 3.0, 64: 1.0, 128: None, 256: 2.0}
    monkeypatch.setattr(tuning, "_time", lambda run, candidate: times[run(candidate)])
    candidates = [{"block": block, "num_warps": 4} for block in times]
    assert tuning.best_config("a", GPU, DEFAULT) == DEFAULT
    assert tuning.tune("a", candidates, lambda config: config["block"], GPU) == {"block": 64, "num_warps": 4}
    assert tuning.best_config("a", GPU, {"block": 1, "num_warps": 1}) == {"block": 64, "num_warps": 4}
    entries = json.loads(tuned.read_text())
    assert list(entries) == ["a", "z"]
    assert entries["z"] == {"block": 1, "num_warps": 1}
    assert [path.name for path in tuned.parent.iterdir()] == [tuned.name], "no partial file is left"
    with pytest.raises(RuntimeError, match="none of the 1 candidates fits"):
        tuning.tune("a", candidates[2:3], lambda config: config["block"], GPU)


def test_without_a_gpu_nothing_is_tuned(tuned, monkeypatch):
    with pytest.raises(RuntimeError, match="tune a: got cpu; wanted an NVIDIA GPU"):
        tuning.tune("a", [DEFAULT], print, torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="wanted an NVIDIA GPU"):
        tuning.tune("a", [DEFAULT], print, GPU)
    assert not tuned.exists()


def test_the_files_of_the_repository_can_be_read():
    for file in tuning.FOLDER.glob("*.json"):
        assert tuning._entries(file), file


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to tune on")
@pytest.mark.slow
def test_the_script_refuses_to_measure_without_a_gpu():
    script = Path(__file__).parents[2] / "kernels" / "tune.py"
    completed = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert completed.returncode == 1
    assert "tune.py: got no GPU; wanted an NVIDIA GPU and Triton" in completed.stderr
