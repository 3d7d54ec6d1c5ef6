"""Out of host memory or disk: an early error if possible, a clear message, and the generated tokens are kept."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import traceback

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache import selective_layer as hf_layer
from kvviz.offload import KVStore, lower_tier
from kvviz.offload.host import HostRows
from kvviz.offload.space import Space, _left_in_groups
from tests.tiny_models import letters_tokenizer, make, prompt

FIELDS = {"method": "quest", "budget": 64, "dense_layers": 1}
LAYER_BYTES = 2 * 2 * 8 * 4  # per token and layer: heads, key and value, D, float32


@pytest.fixture(scope="module")
def tiny():
    lm = kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")
    lm.model.generation_config.eos_token_id = None  # so that it does not stop early
    return lm


@pytest.fixture
def unannounced(monkeypatch):
    """generate() that does not announce the number of tokens, so that space is taken for 20 tokens at a time."""
    for module in (lower_tier, hf_layer):
        monkeypatch.setattr(module, "SPARE_TOKENS", 20)
    expect = kvviz.SelectiveCache.expect
    monkeypatch.setattr(kvviz.SelectiveCache, "expect", lambda self, length, new_tokens=0: expect(self, length))


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_the_error_is_raised_during_the_prompt(tiny, tmp_path, tier):
    """Three layers select; the limit is exactly what they need."""
    needed = 3 * (200 + 7 + 33) * LAYER_BYTES
    fields = {**FIELDS, "question": "and why", "max_new_tokens": 33}
    folder = {"folder": tmp_path} if tier == "disk" else {}
    generation = kvviz.generate(tiny, prompt(200), store=KVStore(tier, limit_bytes=needed, **folder), **fields)
    assert generation.ledger.kept_bytes[tier] == needed
    too_small = KVStore(tier, limit_bytes=needed - 1, **folder)
    message = (
        f"offload to {tier}: got a request for {needed // 3:,} bytes, with {needed // 3 * 2:,} in use; wanted at most "
        f"{needed // 3 - 1:,} bytes, which are left of the limit of {needed - 1:,}"
    )
    with pytest.raises(kvviz.OutOfSpaceError) as raised:
        kvviz.generate(tiny, prompt(200), store=too_small, **fields)
    assert str(raised.value) == message
    assert raised.value.generation is None
    assert tiny.model.config._attn_implementation == "sdpa"
    for _ in range(100):  # a worker may still be writing
        gc.collect()
        if too_small._space.taken_bytes == 0:
            break
        time.sleep(0.05)
    assert too_small._space.taken_bytes == 0, "the run's space is free although the error is still referenced"
    assert not list(tmp_path.rglob("*.rows"))
    assert kvviz.generate(tiny, prompt(150), store=too_small, **{**FIELDS, "max_new_tokens": 33}).text


@pytest.mark.parametrize("record", [False, True])
def test_generated_tokens_are_kept(tiny, unannounced, record):
    """The prompt takes space for 100 + 20 tokens; the next 20 exceed the limit."""
    fields = {**FIELDS, "max_new_tokens": 25}
    whole = kvviz.generate(tiny, prompt(100), record=record, **fields)
    store = KVStore("host", limit_bytes=int(3.5 * 120 * LAYER_BYTES))
    with pytest.raises(kvviz.OutOfSpaceError, match=r"with 46,080 in use; wanted at most 7,680 bytes") as raised:
        kvviz.generate(tiny, prompt(100), store=store, record=record, **fields)
    error = raised.value
    out = error.generation
    assert isinstance(out, kvviz.Generation)
    assert len(out.token_ids) == 21, "the first from the prompt, then one per step while there is space"
    assert out.token_ids == whole.token_ids[:21]
    assert out.text == whole.text[: len(out.text)]
    assert out.text == tiny.tokenizer.decode(out.token_ids, skip_special_tokens=True)
    assert out.timings.tpot_s > 0
    assert out.ledger.kept_bytes["host"] == 3 * 120 * LAYER_BYTES
    assert "21 tokens" in error.__notes__[0]
    assert "error's `generation`" in "".join(traceback.format_exception(error))
    gc.collect()
    assert store._space.taken_bytes == 0
    if not record:
        return
    assert out.recording.steps == 20
    assert len(out.recording.token_ids) == 100 + 20
    for layer in out.recording.layers:
        partial_indices, whole_indices = (generation.recording.indices(19, layer) for generation in (out, whole))
        slots = partial_indices.shape[-1]
        assert np.array_equal(partial_indices, whole_indices[:, :slots])
        assert np.all(whole_indices[:, slots:] == -1)
    assert out.recording.answer == out.text


def test_an_unfinished_step_is_not_recorded(tiny, monkeypatch):
    """The last layer fails after the others have recorded the step."""
    calls = []

    def fetch(self, *args, **kwargs):
        calls.append(self)
        if len(calls) == 3 * 5:
            raise kvviz.OutOfSpaceError("offload to host", "much", "less")
        return original(self, *args, **kwargs)

    store = type(KVStore("host").layer(lambda length: 1))
    original = store.fetch
    monkeypatch.setattr(store, "fetch", fetch)
    with pytest.raises(kvviz.OutOfSpaceError) as raised:
        kvviz.generate(tiny, prompt(200), store="host", record=True, max_new_tokens=20, **FIELDS)
    recording = raised.value.generation.recording
    assert len(raised.value.generation.token_ids) == 5
    assert recording.steps == 4
    assert {len(events.indices) for events in recording.events.values()} == {4}


@pytest.mark.parametrize("step", [1, 3])
def test_an_error_during_the_question_leaves_no_text(tiny, monkeypatch, step):
    calls = []

    def forward(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1 + step:
            raise kvviz.OutOfSpaceError("offload to host", "much", "less")
        return original(*args, **kwargs)

    original = tiny.model.forward
    monkeypatch.setattr(tiny.model, "forward", forward)
    with pytest.raises(kvviz.OutOfSpaceError) as raised:
        kvviz.generate(tiny, prompt(200), question="and why", store="host", record=True, **FIELDS)
    out = raised.value.generation
    assert (out.text, out.token_ids) == ("", [])
    assert np.isnan(out.timings.ttft_s)
    assert out.recording.steps == step - 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [(kvviz.OutOfSpaceError("offload to host", "1", "0"), kvviz.OutOfSpaceError), (OSError(5, "I/O"), OSError)],
)
def test_the_error_of_a_background_write_is_raised(tiny, monkeypatch, error, kind):
    """From the fourth on, writes of generated tokens fail in the worker, and the next wait raises the error."""
    writes = []

    def write(self, start, keys, values):
        writes.append(start)
        if len(writes) > 3:
            raise error
        original(self, start, keys, values)

    original = HostRows.write
    monkeypatch.setattr(HostRows, "write", write)
    whole = kvviz.generate(tiny, prompt(200), max_new_tokens=110, **FIELDS)
    with pytest.raises(kind) as raised:
        kvviz.generate(tiny, prompt(200), store="host", max_new_tokens=110, **FIELDS)
    assert len(writes) > 3
    if kind is kvviz.OutOfSpaceError:
        token_ids = raised.value.generation.token_ids
        assert token_ids == whole.token_ids[: len(token_ids)]
        # Quest's pages stay on the device from 192 on; 64 tokens have left the window at token 257, the 57th generated.
        assert len(token_ids) == 57 + 1


def test_the_error_of_writing_the_prompt_is_raised(tiny, monkeypatch):
    def write(self, start, keys, values):
        raise kvviz.OutOfSpaceError("offload to host", "1", "0")

    monkeypatch.setattr(HostRows, "write", write)
    with pytest.raises(kvviz.OutOfSpaceError) as raised:
        kvviz.generate(tiny, prompt(200), store="host", **FIELDS)
    assert raised.value.generation is None


def test_an_interrupt_is_not_changed(tiny, monkeypatch):
    def forward(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny.model, "forward", forward)
    with pytest.raises(KeyboardInterrupt) as raised:
        kvviz.generate(tiny, prompt(200), store="host", **FIELDS)
    assert not hasattr(raised.value, "generation")


def test_reserved_memory_is_not_free_before_it_is_written():
    space = Space("host", None, lambda: 1000)
    first = space.take(600)
    with pytest.raises(kvviz.OutOfSpaceError, match="for 500 bytes, with 600 in use; wanted at most 400 bytes"):
        space.take(500)
    first.note_written(200)  # the system now counts it as used
    second = space.take(500)
    second.note_written(10_000)
    assert space.taken_bytes == 1100
    second.give_back()
    second.give_back()
    first.give_back()
    assert space.taken_bytes == 0
    space.take(1000)


@pytest.mark.slow
def test_a_failed_allocation_raises_a_clear_error():
    """A limit on the address space imitates a machine with less memory than it reports."""
    pytest.importorskip("resource")
    code = """
import resource, torch, kvviz
from kvviz.offload.host import HostRows
from kvviz.offload.space import Space
resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))
space = Space("host", None, lambda: 1 << 40)
try:
    HostRows(1, 1 << 32, 10, torch.float32, space, pinned=False)
except kvviz.OutOfSpaceError as error:
    print(error)
print(space.taken_bytes)
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.startswith(
        "offload to host: got a request for 171,798,691,840 bytes, with 0 in use; wanted fewer: 1,099,511,627,776 bytes"
    )
    assert completed.stdout.endswith("\n0\n")


def test_a_containers_memory_limit_counts(tmp_path):
    root, own_groups = tmp_path / "cgroup", tmp_path / "own"
    group = root / "user" / "job"
    group.mkdir(parents=True)
    own_groups.write_text("4:memory:/elsewhere\n0::/user/job\n")
    assert list(_left_in_groups(root, own_groups)) == []
    for folder, limit, used in ((group, "max", 50), (group.parent, "1000", 700)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 500\ninactive_file 120\n")
    assert list(_left_in_groups(root, own_groups)) == [1000 - 700 + 120]
    own_groups.write_text("0::/\n")
    assert list(_left_in_groups(root, own_groups)) == []
    assert list(_left_in_groups(root, tmp_path / "missing")) == []


def test_closed_rows_free_their_memory():
    rows = HostRows(1, 10, 4, torch.float32, Space("host", None, lambda: 10**6), pinned=False)
    rows.close()
    assert rows.stored_bytes == rows.rows.untyped_storage().nbytes() == 0
