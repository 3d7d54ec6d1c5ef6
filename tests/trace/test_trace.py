"""Traces and recordings on disk and in memory: files are read back exactly, and invalid contents are refused."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError

from kvviz.errors import IncompatibleFileError, InvalidInputError, UnknownNameError
from kvviz.trace import Geometry, LayerEvents, Recording, Trace, storage
from tests import synthetic

GEOMETRY = Geometry(n_layers=6, n_heads=4, n_kv_heads=2, head_dim=8, max_positions=64)


def make_trace(length: int = 10, layers: tuple[int, ...] = (1, 5)) -> Trace:
    rng = np.random.default_rng(0)

    def tensors(heads):
        return {layer: rng.normal(size=(heads, length, 8)).astype(np.float16) for layer in layers}

    return Trace(
        model="tiny", geometry=GEOMETRY, tokens=["<s>", "é", "\ud800", *["$x$"] * (length - 3)],
        token_ids=np.arange(length), queries=tensors(4), keys=tensors(2), values=tensors(2),
    )  # fmt: skip


def mapped(array) -> bool:
    return isinstance(array, np.memmap) and not array.flags.writeable


@pytest.fixture
def trace_file(tmp_path):
    return make_trace().save(tmp_path / "trace.safetensors")


@pytest.fixture
def recording_file(tmp_path):
    return synthetic.recording().save(tmp_path / "recording.safetensors")


def test_a_trace_is_read_back_memory_mapped(trace_file):
    before, after = make_trace(), Trace.load(trace_file)
    assert (after.model, after.geometry, after.tokens) == (before.model, before.geometry, before.tokens)
    assert after.layers == before.layers == (1, 5)
    assert len(after) == 10
    np.testing.assert_array_equal(after.token_ids, before.token_ids)
    for name in ("queries", "keys", "values"):
        for layer, array in getattr(after, name).items():
            assert mapped(array)
            np.testing.assert_array_equal(array, getattr(before, name)[layer])


def test_a_recording_is_read_back_memory_mapped(recording_file):
    before, after = synthetic.recording(), Recording.load(recording_file)
    for item in dataclasses.fields(Recording):
        if item.name not in ("token_ids", "events"):
            assert getattr(after, item.name) == getattr(before, item.name), item.name
    np.testing.assert_array_equal(after.token_ids, before.token_ids)
    assert after.layers == before.layers
    for layer in after.layers:
        for name in LayerEvents.FIELDS:
            assert mapped(getattr(after.events[layer], name))
            np.testing.assert_array_equal(getattr(after.events[layer], name), getattr(before.events[layer], name))
    assert after.summary() == before.summary()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in Linux's /proc")
def test_a_loaded_file_needs_one_descriptor_for_all_arrays(recording_file):
    def open_files():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    recording = Recording.load(recording_file)
    assert open_files() == before + 1
    del recording


def test_a_recording_without_layers_or_steps_is_read_back_too(tmp_path):
    empty = synthetic.recording(steps=1).replace(events={})
    loaded = Recording.load(empty.save(tmp_path / "empty"))
    assert loaded.layers == ()
    assert np.isnan(loaded.summary()["recall"])
    one = synthetic.recording(prompt_length=40, steps=1)
    cut = {
        layer: {name: getattr(events, name)[:0] for name in LayerEvents.FIELDS} for layer, events in one.events.items()
    }
    events = {
        layer: LayerEvents(**(arrays | {"attention": arrays["attention"][..., :40]})) for layer, arrays in cut.items()
    }
    no_steps = one.replace(tokens=one.tokens[:40], token_ids=one.token_ids[:40], next_tokens=[], events=events)
    loaded = Recording.load(no_steps.save(tmp_path / "no_steps"))
    assert loaded.steps == 0
    assert loaded.events[2].indices.shape == (0, 2, 33)
    with pytest.raises(InvalidInputError, match="step of a recording: got 0"):
        loaded.indices(0, 2)


@pytest.mark.parametrize("change", [{"keys": np.float32}, {"queries": (3, 10, 8)}, {"values": (2, 9, 8)}], ids=str)
def test_a_trace_with_wrong_arrays_is_refused(change):
    trace = make_trace()
    ((name, wrong),) = change.items()
    array = np.zeros(wrong, np.float16) if isinstance(wrong, tuple) else trace.keys[1].astype(wrong)
    with pytest.raises(IncompatibleFileError, match=rf"Trace\.{name}\[1\]"):
        dataclasses.replace(trace, **{name: {**getattr(trace, name), 1: array}})


@pytest.mark.parametrize(
    ("indices", "message"),
    [([0, 121], "outside the visible"), ([-2, 3], "outside the visible"), ([5, 5], "out of order or twice"),
     ([7, 2], "out of order or twice")],
)  # fmt: skip
def test_positions_that_a_step_cannot_attend_to_are_refused(indices, message):
    recording = synthetic.recording()
    events = recording.events[2]
    wrong = events.indices.copy()
    wrong[0, 0] = -1
    wrong[0, 0, :2] = indices  # step 0 sees 121 tokens, 0 to 120
    with pytest.raises(IncompatibleFileError, match=message):
        recording.replace(events={2: dataclasses.replace(events, indices=wrong)})


def test_rows_are_key_value_heads_or_query_heads():
    recording = synthetic.recording(heads=2)  # 4 query heads
    events = recording.events[2]
    parts = ("indices", "groups", "scores", "attention")

    def with_rows(rows):
        return recording.replace(
            events={2: dataclasses.replace(events, **{name: getattr(events, name)[:, rows] for name in parts})}
        )

    assert with_rows([0, 0, 1, 1]).recall(0, 2).shape == (4,)
    with pytest.raises(IncompatibleFileError, match=r"rows: got 3; wanted 2 .* or 4"):
        with_rows([0, 0, 1])


def test_layers_and_steps_that_were_not_recorded_are_refused():
    recording, trace = synthetic.recording(steps=6), make_trace()
    for read in (recording.indices, recording.groups, recording.scores, recording.attention, recording.oracle,
                 recording.recall, recording.attention_mass):  # fmt: skip
        with pytest.raises(InvalidInputError, match=r"layer of a recording: got 9; wanted a recorded layer: \(2, 3\)"):
            read(0, 9)
        for step in (-1, 6):
            with pytest.raises(InvalidInputError, match=f"step of a recording: got {step}; wanted 0 to 5"):
                read(step, 2)
    with pytest.raises(InvalidInputError, match=r"got 2; wanted a captured layer: \(1, 5\)"):
        trace.check_layer(2)


def test_the_oracle_takes_as_many_tokens_as_the_method():
    recording = synthetic.recording(prompt_length=30, steps=5, budget=28)  # more slots than the first steps can see
    for step in range(recording.steps):
        weights, chosen = recording.attention(step, 3), recording.indices(step, 3)
        assert weights.shape == (2, 31 + step)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-3)
        oracle = recording.oracle(step, 3)
        assert oracle.shape == chosen.shape
        for row in range(2):
            count = (chosen[row] >= 0).sum()
            best = sorted(range(weights.shape[-1]), key=lambda place: (-weights[row, place], place))[:count]
            assert oracle[row][oracle[row] >= 0].tolist() == best
            selected = set(chosen[row][chosen[row] >= 0].tolist())
            assert recording.recall(step, 3)[row] == pytest.approx(len(selected & set(best)) / count)
            mass = weights[row, sorted(selected)].sum()
            assert recording.attention_mass(step, 3)[row] == pytest.approx(mass, abs=1e-6)


def test_a_dense_layer_has_full_recall():
    recording = synthetic.recording(prompt_length=20, steps=3)
    events = recording.events[2]
    all_tokens = np.full((3, 2, 23), -1, np.int32)
    for step in range(3):
        all_tokens[step, :, : 21 + step] = np.arange(21 + step)
    dense = dataclasses.replace(
        events,
        indices=all_tokens,
        groups=np.full_like(all_tokens, -1),
        scores=np.full(all_tokens.shape, np.nan, np.float32),
    )
    dense_recording = recording.replace(events={2: dense})
    for step in range(3):
        np.testing.assert_array_equal(dense_recording.recall(step, 2), 1)
        np.testing.assert_allclose(dense_recording.attention_mass(step, 2), 1, atol=1e-3)


def interrupt(*_, **__):
    raise KeyboardInterrupt


def fill_the_disk(arrays, path, metadata):
    Path(path).write_bytes(b"half of it")
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(("fault", "error"), [(fill_the_disk, OSError), (interrupt, KeyboardInterrupt)])
def test_a_failed_save_leaves_only_the_old_file(recording_file, monkeypatch, fault, error):
    before = recording_file.read_bytes()
    monkeypatch.setattr(storage, "save_file", fault)
    with pytest.raises(error):
        synthetic.recording(seed=1).save(recording_file)
    assert recording_file.read_bytes() == before
    assert list(recording_file.parent.iterdir()) == [recording_file]


def test_an_interrupt_between_writing_and_renaming_leaves_the_old_file(recording_file, monkeypatch):
    before = recording_file.read_bytes()
    monkeypatch.setattr(storage.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        synthetic.recording(seed=1).save(recording_file)
    assert recording_file.read_bytes() == before
    assert list(recording_file.parent.iterdir()) == [recording_file]


def test_a_failed_write_of_the_system_leaves_the_old_file(recording_file):
    """A separate process has a limit on the size of files, so that the library's write fails in the middle."""
    before = recording_file.read_bytes()
    program = """
import resource, sys
from tests import synthetic
big = synthetic.recording(prompt_length=4000, steps=8)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    big.save(sys.argv[1])
except OSError as error:
    print(error)
"""
    command = [sys.executable, "-c", program, str(recording_file)]
    process = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert process.stdout.startswith(f"write {recording_file}")
    assert recording_file.read_bytes() == before
    assert list(recording_file.parent.iterdir()) == [recording_file]


def test_saving_over_a_loaded_file_keeps_the_loaded_arrays(recording_file):
    old, new = Recording.load(recording_file), synthetic.recording(seed=1)
    new.save(recording_file)
    np.testing.assert_array_equal(old.events[2].indices, synthetic.recording().events[2].indices)
    np.testing.assert_array_equal(Recording.load(recording_file).events[2].indices, new.events[2].indices)


def test_unreadable_contents_are_not_written(tmp_path):
    with pytest.raises(InvalidInputError, match="int16"):
        storage.write_arrays(tmp_path / "x", "kind", 1, {"a": np.zeros(3, np.int16)}, {})
    with pytest.raises(InvalidInputError, match="metadata"):
        storage.write_arrays(tmp_path / "x", "kind", 1, {}, {"a": np.int64(3)})
    with pytest.raises(FileNotFoundError, match="no folder"):
        make_trace().save(tmp_path / "missing" / "x")
    assert list(tmp_path.iterdir()) == []


def test_numbers_by_head_are_means_over_spread_steps():
    made = synthetic.recording()
    layers, rows = len(made.layers), len(made.indices(0, made.layers[0]))
    for name in ("recall", "attention_mass"):
        own = [[getattr(made, name)(step, layer) for step in (0, made.steps - 1)] for layer in made.layers]
        np.testing.assert_allclose(made.by_head(name, steps=2), np.mean(own, axis=1))
    error = made.by_head("output_error")
    assert error.shape == (layers, rows)
    np.testing.assert_allclose(
        error[:, 0], [made.events[layer].output_error.mean() for layer in made.layers], rtol=1e-6
    )
    own = [made.events[layer].attention[:, :, 5:9].sum(-1).mean(0) for layer in made.layers]
    np.testing.assert_allclose(made.by_head("attention", range(5, 9)), own, rtol=1e-5)
    np.testing.assert_array_equal(made.by_head("attention", ()), np.zeros((layers, rows)))
    with pytest.raises(UnknownNameError, match=r"Recording\.by_head"):
        made.by_head("speed")
