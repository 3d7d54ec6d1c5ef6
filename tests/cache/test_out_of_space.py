"""Out of host memory or disk: said early where it is known, clear where not, and what was generated is kept."""

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
LAYER_BYTES = 2 * 2 * 8 * 4  # of one token in one layer: heads, key and value, D, float32


@pytest.fixture(scope="module")
def tiny():
    lm = kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")
    lm.model.generation_config.eos_token_id = None  # it must not stop by itself
    return lm


@pytest.fixture
def unannounced(monkeypatch):
    """generate() that does not say how much it will write, so that room for 20 tokens at a time is made on the way."""
    for module in (lower_tier, hf_layer):
        monkeypatch.setattr(module, "SPARE_TOKENS", 20)
    expect = kvviz.SelectiveCache.expect
    monkeypatch.setattr(kvviz.SelectiveCache, "expect", lambda self, length, new_tokens=0: expect(self, length))


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_what_cannot_fit_is_said_during_the_prompt(tiny, tmp_path, tier):
    """Three layers select; the limit is what they need, to the byte."""
    needed = 3 * (200 + 7 + 33) * LAYER_BYTES
    fields = {**FIELDS, "question": "and why", "max_new_tokens": 33}
    folder = {"folder": tmp_path} if tier == "disk" else {}
    fits = kvviz.generate(tiny, prompt(200), store=KVStore(tier, limit_bytes=needed, **folder), **fields)
    assert fits.ledger.kept_bytes[tier] == needed
    tight = KVStore(tier, limit_bytes=needed - 1, **folder)
    message = (
        f"offload to {tier}: got {needed // 3:,} bytes asked, beside {needed // 3 * 2:,} taken; wanted at most "
        f"{needed // 3 - 1:,} bytes, which is what is left of the limit of {needed - 1:,}"
    )
    with pytest.raises(kvviz.OutOfSpaceError) as found:
        kvviz.generate(tiny, prompt(200), store=tight, **fields)
    assert str(found.value) == message
    assert found.value.generation is None
    assert tiny.model.config._attn_implementation == "sdpa"
    for _ in range(100):  # a worker may still be writing what was taken before
        gc.collect()
        if tight._space.taken_bytes == 0:
            break
        time.sleep(0.05)
    assert tight._space.taken_bytes == 0, "the error is still held, what the run took is not"
    assert not list(tmp_path.rglob("*.rows"))
    assert kvviz.generate(tiny, prompt(150), store=tight, **{**FIELDS, "max_new_tokens": 33}).text


@pytest.mark.parametrize("record", [False, True])
def test_what_was_generated_is_kept(tiny, unannounced, record):
    """Room for 100 + 20 tokens is made with the prompt; the next room exceeds the limit."""
    fields = {**FIELDS, "max_new_tokens": 25}
    whole = kvviz.generate(tiny, prompt(100), record=record, **fields)
    kept = KVStore("host", limit_bytes=int(3.5 * 120 * LAYER_BYTES))
    with pytest.raises(kvviz.OutOfSpaceError, match=r"beside 46,080 taken; wanted at most 7,680 bytes") as found:
        kvviz.generate(tiny, prompt(100), store=kept, record=record, **fields)
    error = found.value
    out = error.generation
    assert isinstance(out, kvviz.Generation)
    assert len(out.token_ids) == 21, "the first from the prompt, then one a step while there is room"
    assert out.token_ids == whole.token_ids[:21]
    assert out.text == whole.text[: len(out.text)]
    assert out.text == tiny.tokenizer.decode(out.token_ids, skip_special_tokens=True)
    assert out.timings.tpot_s > 0
    assert out.ledger.kept_bytes["host"] == 3 * 120 * LAYER_BYTES
    assert "21 tokens" in error.__notes__[0]
    assert "error's `generation`" in "".join(traceback.format_exception(error))
    gc.collect()
    assert kept._space.taken_bytes == 0
    if not record:
        return
    assert out.recording.steps == 20
    assert len(out.recording.token_ids) == 100 + 20
    for layer in out.recording.layers:
        mine, theirs = (one.recording.indices(19, layer) for one in (out, whole))
        slots = mine.shape[-1]
        assert np.array_equal(mine, theirs[:, :slots])
        assert np.all(theirs[:, slots:] == -1)
    assert out.recording.answer == out.text


def test_a_step_that_only_some_layers_came_to_is_left_out_of_the_recording(tiny, monkeypatch):
    """The last layer fails, those before it have noted the step."""
    calls = []

    def fetch(self, *args, **kwargs):
        calls.append(self)
        if len(calls) == 3 * 5:
            raise kvviz.OutOfSpaceError("offload to host", "much", "less")
        return own(self, *args, **kwargs)

    store = type(KVStore("host").layer(lambda length: 1))
    own = store.fetch
    monkeypatch.setattr(store, "fetch", fetch)
    with pytest.raises(kvviz.OutOfSpaceError) as found:
        kvviz.generate(tiny, prompt(200), store="host", record=True, max_new_tokens=20, **FIELDS)
    recording = found.value.generation.recording
    assert len(found.value.generation.token_ids) == 5
    assert recording.steps == 4
    assert {len(events.indices) for events in recording.events.values()} == {4}


@pytest.mark.parametrize("step", [1, 3])
def test_an_end_during_the_question_has_no_text(tiny, monkeypatch, step):
    calls = []

    def forward(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1 + step:
            raise kvviz.OutOfSpaceError("offload to host", "much", "less")
        return own(*args, **kwargs)

    own = tiny.model.forward
    monkeypatch.setattr(tiny.model, "forward", forward)
    with pytest.raises(kvviz.OutOfSpaceError) as found:
        kvviz.generate(tiny, prompt(200), question="and why", store="host", record=True, **FIELDS)
    out = found.value.generation
    assert (out.text, out.token_ids) == ("", [])
    assert np.isnan(out.timings.ttft_s)
    assert out.recording.steps == step - 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [(kvviz.OutOfSpaceError("offload to host", "1", "0"), kvviz.OutOfSpaceError), (OSError(5, "I/O"), OSError)],
)
def test_a_failing_background_write_surfaces(tiny, monkeypatch, error, kind):
    """The fourth and later writes, of what was generated, fail in the worker: the next wait raises their error."""
    writes = []

    def write(self, start, keys, values):
        writes.append(start)
        if len(writes) > 3:
            raise error
        own(self, start, keys, values)

    own = HostRows.write
    monkeypatch.setattr(HostRows, "write", write)
    whole = kvviz.generate(tiny, prompt(200), max_new_tokens=110, **FIELDS)
    with pytest.raises(kind) as found:
        kvviz.generate(tiny, prompt(200), store="host", max_new_tokens=110, **FIELDS)
    assert len(writes) > 3
    if kind is kvviz.OutOfSpaceError:
        kept = found.value.generation.token_ids
        assert kept == whole.token_ids[: len(kept)]
        # The device keeps Quest's pages from 192 on; 64 tokens have left the window once token 257 is fed, the 57th.
        assert len(kept) == 57 + 1


def test_a_failing_write_of_the_prompt_surfaces(tiny, monkeypatch):
    def write(self, start, keys, values):
        raise kvviz.OutOfSpaceError("offload to host", "1", "0")

    monkeypatch.setattr(HostRows, "write", write)
    with pytest.raises(kvviz.OutOfSpaceError) as found:
        kvviz.generate(tiny, prompt(200), store="host", **FIELDS)
    assert found.value.generation is None


def test_an_interrupt_stays_an_interrupt(tiny, monkeypatch):
    def forward(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny.model, "forward", forward)
    with pytest.raises(KeyboardInterrupt) as found:
        kvviz.generate(tiny, prompt(200), store="host", **FIELDS)
    assert not hasattr(found.value, "generation")


def test_memory_that_is_taken_and_not_yet_written_is_not_free():
    space = Space("host", None, lambda: 1000)
    first = space.take(600)
    with pytest.raises(kvviz.OutOfSpaceError, match="got 500 bytes asked, beside 600 taken; wanted at most 400 bytes"):
        space.take(500)
    first.note_written(200)  # which the machine now counts itself
    second = space.take(500)
    second.note_written(10_000)
    assert space.taken_bytes == 1100
    second.give_back()
    second.give_back()
    first.give_back()
    assert space.taken_bytes == 0
    space.take(1000)


def test_memory_that_the_system_refuses_is_a_clear_error():
    """A limit on the address space stands in for a machine that promised more than it has."""
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(
        "offload to host: got 171,798,691,840 bytes asked, beside 0 taken; wanted fewer: 1,099,511,627,776 bytes"
    )
    assert done.stdout.endswith("\n0\n")


def test_a_containers_memory_limit_counts(tmp_path):
    root, own = tmp_path / "cgroup", tmp_path / "own"
    group = root / "user" / "job"
    group.mkdir(parents=True)
    own.write_text("4:memory:/elsewhere\n0::/user/job\n")
    assert list(_left_in_groups(root, own)) == []
    for folder, limit, used in ((group, "max", 50), (group.parent, "1000", 700)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 500\ninactive_file 120\n")
    assert list(_left_in_groups(root, own)) == [1000 - 700 + 120]
    own.write_text("0::/\n")
    assert list(_left_in_groups(root, own)) == []
    assert list(_left_in_groups(root, tmp_path / "missing")) == []


def test_rows_give_their_memory_back():
    rows = HostRows(1, 10, 4, torch.float32, Space("host", None, lambda: 10**6), pinned=False)
    rows.close()
    assert rows.stored_bytes == rows.rows.untyped_storage().nbytes() == 0
