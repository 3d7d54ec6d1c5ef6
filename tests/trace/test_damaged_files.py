"""Truncated or edited files, and files of another kind or version, are refused with the reason."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from kvviz.errors import IncompatibleFileError
from kvviz.trace import Recording, Trace
from tests import synthetic
from tests.trace.test_trace import GEOMETRY, make_trace


def split(path: Path) -> tuple[dict, bytes]:
    """Header and data of a safetensors file."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def rewrite(path: Path, header: dict, data: bytes) -> None:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def edit_metadata(path: Path, change) -> None:
    header, data = split(path)
    metadata = json.loads(header["__metadata__"]["metadata"])
    header["__metadata__"]["metadata"] = json.dumps(change(metadata))
    rewrite(path, header, data)


@pytest.fixture
def trace_file(tmp_path):
    return make_trace().save(tmp_path / "trace.safetensors")


@pytest.fixture
def recording_file(tmp_path):
    return synthetic.recording().save(tmp_path / "recording.safetensors")


@pytest.mark.parametrize("part", ["nothing", "length", "header", "metadata", "data", "last byte"])
def test_a_truncated_file_is_refused(recording_file, part):
    raw = recording_file.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    cut = {"nothing": 0, "length": 5, "header": start - 40, "metadata": 60, "data": start + 1000, "last byte": -1}
    recording_file.write_bytes(raw[: cut[part]])
    with pytest.raises(IncompatibleFileError, match="damaged or truncated"):
        Recording.load(recording_file)


def test_a_longer_file_and_one_of_another_format_are_refused(recording_file, tmp_path):
    recording_file.write_bytes(recording_file.read_bytes() + b"\0" * 8)
    other = tmp_path / "other"
    other.write_bytes(b"PK\x03\x04" + b"not a safetensors file " * 20)
    for path in (recording_file, other):
        with pytest.raises(IncompatibleFileError, match="damaged or truncated"):
            Recording.load(path)


def test_another_kind_another_version_and_a_missing_file_have_different_errors(trace_file, recording_file, monkeypatch):
    with pytest.raises(IncompatibleFileError, match=r"of kind 'kvviz\.trace'; wanted kind 'kvviz\.recording'"):
        Recording.load(trace_file)
    monkeypatch.setattr(Recording, "VERSION", Recording.VERSION + 1)
    with pytest.raises(
        IncompatibleFileError, match=f"version {Recording.VERSION - 1}; wanted version {Recording.VERSION}"
    ):
        Recording.load(recording_file)
    with pytest.raises(FileNotFoundError, match="no such file"):
        Trace.load(trace_file.parent / "missing")


def test_other_safetensors_files_are_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"weight": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(IncompatibleFileError, match="of kind None"):
        Trace.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize("text", ["{not json", "[1, 2]", "null", "[" * 100_000, None])
def test_corrupt_metadata_is_refused(trace_file, text):
    header, data = split(trace_file)
    if text is None:
        del header["__metadata__"]["metadata"]
    else:
        header["__metadata__"]["metadata"] = text
    rewrite(trace_file, header, data)
    with pytest.raises(IncompatibleFileError, match="metadata"):
        Trace.load(trace_file)


RECORDING_METADATA = [
    "method", "title", "config", "budget", "model", "geometry", "tokens", "next_tokens", "prompt_length",
    "question_length", "dense_layers", "exact_layers", "answer",
]  # fmt: skip


@pytest.mark.parametrize("name", RECORDING_METADATA)
@pytest.mark.parametrize("value", [None, "missing", 1.5, True, [None], "wrong"])
def test_missing_and_wrong_metadata_is_refused_by_name(recording_file, name, value):
    if value == "wrong" and name in ("method", "title", "model", "answer"):
        value = 7

    def change(metadata):
        metadata[name] = value
        if value == "missing":
            del metadata[name]
        return metadata

    edit_metadata(recording_file, change)
    with pytest.raises(IncompatibleFileError, match=name):
        Recording.load(recording_file)


@pytest.mark.parametrize(
    "change",
    [
        {"geometry": {"n_layers": 6}},
        {"geometry": {**dataclasses.asdict(GEOMETRY), "n_heads": -4}},
        {"geometry": {**dataclasses.asdict(GEOMETRY), "n_kv_heads": 0}},
        {"geometry": {**dataclasses.asdict(GEOMETRY), "n_heads": 3}},
        {"geometry": {**dataclasses.asdict(GEOMETRY), "extra": 1}},
        {"geometry": {**dataclasses.asdict(GEOMETRY), "n_layers": 5}},
        {"tokens": ["one"]},
        {"surprise": 1},
    ],
    ids=["short", "negative", "zero", "no multiple", "extra", "too few layers", "tokens", "unknown"],
)
def test_metadata_that_does_not_match_the_trace_is_refused(trace_file, change):
    edit_metadata(trace_file, lambda metadata: metadata | change)
    with pytest.raises(IncompatibleFileError):
        Trace.load(trace_file)


@pytest.mark.parametrize(
    "change",
    [{"prompt_length": -1}, {"prompt_length": 119}, {"question_length": 7}, {"question_length": -1},
     {"dense_layers": [99]}, {"exact_layers": [-1]}],
    ids=str,
)  # fmt: skip
def test_numbers_that_do_not_match_the_recording_are_refused(recording_file, change):
    edit_metadata(recording_file, lambda metadata: metadata | change)
    with pytest.raises(IncompatibleFileError):
        Recording.load(recording_file)


@pytest.mark.parametrize(
    ("name", "renamed"), [("keys.1", "keys.x"), ("keys.1", "keys.-1"), ("keys.1", "keys.77"), ("token_ids", "ids")]
)
def test_renamed_and_missing_arrays_are_refused(trace_file, name, renamed):
    header, data = split(trace_file)
    header[renamed] = header.pop(name)
    rewrite(trace_file, header, data)
    with pytest.raises(IncompatibleFileError):
        Trace.load(trace_file)


def test_a_recording_with_an_incomplete_layer_is_refused(recording_file):
    header, data = split(recording_file)
    header["unused"] = header.pop("scores.3")  # the data stay, so that the file remains complete
    rewrite(recording_file, header, data)
    with pytest.raises(IncompatibleFileError, match="missing parts"):
        Recording.load(recording_file)


@pytest.mark.parametrize("dtype", ["BF16", "I16", "F8_E4M3", "XX"])
def test_an_unknown_dtype_in_the_header_is_refused(trace_file, dtype):
    header, data = split(trace_file)
    entry = header["keys.1"]
    entry["dtype"] = dtype
    entry["shape"] = [4, 10, 8] if dtype == "F8_E4M3" else [2, 10, 8]
    rewrite(trace_file, header, data)
    with pytest.raises(IncompatibleFileError):
        Trace.load(trace_file)


@pytest.mark.parametrize("shape", [[-2, 10, -8], [2, 80], [160], [10, 2, 8], [2, 10, 9], [2**63, 2**63, 8], []])
def test_wrong_and_negative_shapes_in_the_header_are_refused(trace_file, shape):
    header, data = split(trace_file)
    header["keys.1"]["shape"] = shape
    rewrite(trace_file, header, data)
    with pytest.raises(IncompatibleFileError):
        Trace.load(trace_file)


@pytest.mark.parametrize("offsets", [[-8, 312], [0, 10**9], [320, 0]])
def test_offsets_outside_the_file_are_refused(trace_file, offsets):
    header, data = split(trace_file)
    header["keys.1"]["data_offsets"] = offsets
    rewrite(trace_file, header, data)
    with pytest.raises(IncompatibleFileError, match="damaged or truncated"):
        Trace.load(trace_file)
