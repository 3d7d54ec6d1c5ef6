"""Rows in a mapped file: read bit for bit as written, all damage detected, disk space really allocated."""

from __future__ import annotations

import gc
import itertools
import os
import stat
import subprocess
import sys

import pytest
import torch

import kvviz
from kvviz.offload import DeviceStore, KVStore, disk
from kvviz.offload.disk import DiskRows
from kvviz.offload.folders import LOCK, MARKER, PrivateFolder
from kvviz.offload.space import Space
from tests.offload.test_offload import BATCH, DIM, HEADS, normal, values_at
from tests.tiny_models import letters_tokenizer, make, prompt

SLOW = pytest.mark.slow


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def any_bits(*shape, dtype, seed=0):
    """A tensor with random bits, including NaN and infinity."""
    generator = torch.Generator().manual_seed(seed)
    size = [*shape[:-1], shape[-1] * dtype.itemsize]
    return torch.randint(0, 256, size, dtype=torch.uint8, generator=generator).view(dtype)


def disk_rows(tmp_path, heads=3, capacity=40, width=10, dtype=torch.float32, limit=None):
    space = Space("disk", limit, lambda: 10**9)
    return DiskRows(heads, capacity, width, dtype, space, folder=PrivateFolder(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("widths", [(1, 1), (5, 5), (64, 64), (3, 2)])
@pytest.mark.parametrize("count", [1, 63, 1000])
def test_rows_are_read_bit_for_bit_as_written(tmp_path, dtype, widths, count):
    rows = disk_rows(tmp_path, 2 * 3, 1100, sum(widths), dtype)
    keys, values = (any_bits(2, 3, count, width, dtype=dtype, seed=width) for width in widths)
    half = count // 2
    rows.write(17, keys[:, :, :half], values[:, :, :half])
    rows.write(17 + half, keys[:, :, half:], values[:, :, half:])
    expected = torch.cat([keys, values], dim=-1).flatten(0, 1)
    assert torch.equal(bits(rows.range(17, 17 + count)), bits(expected))
    grown = rows.grown(3000)
    assert not rows.path.exists()
    assert torch.equal(bits(grown.range(17, 17 + count)), bits(expected))
    places = torch.randperm(6 * count, generator=torch.Generator().manual_seed(1))
    pool, slots = any_bits(6 * count + 5, sum(widths), dtype=dtype), torch.arange(6 * count).flip(0) + 2
    grown.load(places // count * 3000 + 17 + places % count, pool, slots)
    assert torch.equal(bits(pool[slots]), bits(expected.flatten(0, 1)[places]))
    grown.load(places[:0], pool, slots[:0])


def flip(rows, place, byte, bit):
    """Change one bit of the file, bypassing the mapping."""
    row_bytes = rows.stored_bytes // len(rows.rows)
    with rows.path.open("r+b") as file:
        file.seek(place * row_bytes + byte)
        old = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([old ^ (1 << bit)]))


@pytest.mark.parametrize(("width", "dtype"), [(4, torch.float32), (6, torch.bfloat16), (5, torch.bfloat16)])
def test_any_flipped_bit_is_detected_and_located(tmp_path, width, dtype):
    rows = disk_rows(tmp_path, width=width, dtype=dtype)
    whole = any_bits(1, 3, 40, width, dtype=dtype)
    rows.write(0, whole[..., :2], whole[..., 2:])
    place = 40 + 23  # token 23 of head 1
    out = rows.rows.new_empty((2, width))
    for byte, bit in itertools.product(range(width * dtype.itemsize), range(8)):
        flip(rows, place, byte, bit)
        with pytest.raises(kvviz.DamagedOffloadError) as raised:
            rows.read(torch.tensor([7, place]), out)
        flip(rows, place, byte, bit)
    assert str(rows.path) in str(raised.value)
    assert "token 23 of head 1 of 3 (1 of the 2 rows read)" in str(raised.value)
    rows.read(torch.tensor([7, place]), out)
    flip(rows, place, 1, 0)
    reads = (
        lambda: rows.range(20, 30),
        lambda: rows.at(torch.tensor([[[7, place]]])),
        lambda: rows.grown(50),
        lambda: rows.load(torch.tensor([place]), out, torch.tensor([0])),
    )
    for read in reads:
        with pytest.raises(kvviz.DamagedOffloadError, match="token 23 of head 1"):
            read()
    assert rows.range(24, 40).shape == (3, 16, width)
    assert len(list(rows.path.parent.glob("*.rows"))) == 1, "the unfinished larger file is removed"


def test_changes_of_two_words_do_not_cancel_out(tmp_path):
    """The highest bits of two words, which a sum of 64-bit words modulo 2^64 would not detect."""
    rows = disk_rows(tmp_path, heads=1, capacity=1, width=16)
    whole = any_bits(1, 1, 1, 16, dtype=torch.float32)
    rows.write(0, whole[..., :8], whole[..., 8:])
    out = rows.rows.new_empty((1, 16))
    for first, second in itertools.combinations(range(3, 64, 4), 2):
        for byte in (first, second):
            flip(rows, 0, byte, 7)
        with pytest.raises(kvviz.DamagedOffloadError):
            rows.read(torch.tensor([0]), out)
        for byte in (first, second):
            flip(rows, 0, byte, 7)
    for first in range(15):  # two words are exchanged
        words = rows.rows.view(torch.int32)[0]
        words[[first, first + 1]] = words[[first + 1, first]]
        with pytest.raises(kvviz.DamagedOffloadError):
            rows.read(torch.tensor([0]), out)
        words[[first, first + 1]] = words[[first + 1, first]]


def test_exchanged_rows_are_detected(tmp_path):
    """A checksum depends on the position, so that an intact row in the wrong position is detected."""
    rows = disk_rows(tmp_path)
    whole = any_bits(1, 3, 40, 10, dtype=torch.float32)
    rows.write(0, whole[..., :5], whole[..., 5:])
    rows.rows[[3, 4]] = rows.rows[[4, 3]]
    with pytest.raises(kvviz.DamagedOffloadError, match="token 3 of head 0"):
        rows.range(0, 40)


def test_a_truncated_file_is_an_error_and_does_not_end_the_process(tmp_path):
    rows = disk_rows(tmp_path, capacity=4000)
    rows.write(0, *torch.zeros(2, 1, 3, 4000, 5))
    os.truncate(rows.path, rows.stored_bytes // 2)
    with pytest.raises(kvviz.DamagedOffloadError, match=r"240,000 bytes: .*wanted 480,000 bytes"):
        rows.read(torch.tensor([11_000]), torch.empty(1, 10))
    with pytest.raises(kvviz.DamagedOffloadError, match="240,000 bytes"):
        rows.range(3900, 4000)


def test_a_deleted_file_can_still_be_read(tmp_path):
    rows = disk_rows(tmp_path)
    whole = normal(40, 0)
    rows.write(0, whole[0][:1], whole[1][:1])
    rows.path.unlink()
    assert torch.equal(rows.range(0, 40)[..., :DIM], whole[0][0])
    rows.close()


def test_disk_space_is_allocated_at_once_and_freed(tmp_path, monkeypatch):
    for has_fallocate in (True, False):
        if not has_fallocate:
            monkeypatch.delattr(os, "posix_fallocate", raising=False)
        rows = disk_rows(tmp_path, capacity=10_001)
        size = 3 * 10_001 * 40
        assert rows.path.stat().st_size == rows.stored_bytes == size
        assert rows.path.stat().st_blocks * 512 >= size
        assert not rows.rows.any()
        assert stat.S_IMODE(rows.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(rows.path.parent.stat().st_mode) == 0o700
        assert rows.path.parent.name.startswith("kvviz-")
        assert rows._space.taken_bytes == size
        rows.close()
        assert rows._space.taken_bytes == rows.stored_bytes == 0
        assert {path.name for path in rows.path.parent.iterdir()} == {LOCK, MARKER}
        folder = rows.path.parent
        del rows
        assert not folder.exists()


def test_the_error_of_a_full_disk_names_the_bytes(tmp_path, monkeypatch):
    """The free bytes that the disk reports are checked first."""
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100_000}))
    kv_store = KVStore("disk", folder=tmp_path)
    store = kv_store.layer(lambda length: 50)
    store.append(*normal(4000, 1))
    with pytest.raises(
        kvviz.OutOfSpaceError,
        match=r"offload to disk: got a request for 1,\d{3},\d{3} bytes, with 0 in use; wanted at most 100,000",
    ):
        store.offload(newest=8)
    assert torch.equal(store.keys, normal(4000, 1)[0])
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="no limits on file sizes")
@pytest.mark.parametrize("fallocate", [True, False])
@pytest.mark.slow
def test_a_failed_allocation_leaves_no_partial_file(tmp_path, fallocate):
    """A limit on file sizes imitates a full disk: both refuse although the reported free bytes suffice."""
    code = f"""
import os, resource
from pathlib import Path
import torch, kvviz
from kvviz.offload.disk import DiskRows
from kvviz.offload.folders import PrivateFolder
from kvviz.offload.space import Space
if not {fallocate}: del os.posix_fallocate
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
space, folder = Space("disk", None, lambda: 10**9), PrivateFolder(Path({str(tmp_path)!r}))
small = DiskRows(1, 100, 10, torch.float32, space, folder=folder)
try:
    small.grown(10_000)
except kvviz.OutOfSpaceError as error:
    print(error)
print(sorted(os.listdir(small.path.parent)), space.taken_bytes, bool(small.range(0, 100).any()))
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    error, rest = completed.stdout.splitlines()
    assert error.startswith("offload to disk: got a request for 400,000 bytes, with 4,000 in use; wanted fewer: ")
    assert error.endswith("File too large")
    assert rest == f"['0.rows', '{MARKER}', '{LOCK}'] 4000 False"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fields", [{"folder": "/nowhere/at/all", "tier": "disk"}, {"folder": "/tmp", "tier": "host"}])
def test_a_bad_folder_is_named(fields):
    with pytest.raises(kvviz.InvalidInputError, match=f"KVStore: folder: got '{fields['folder']}'"):
        KVStore(**fields)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    kv_store = KVStore("disk", folder=tmp_path / ".")
    tmp_path.rmdir()
    store = kv_store.layer(lambda length: 50)
    store.append(*normal(400, 1))
    with pytest.raises((kvviz.KVVizError, OSError), match=str(tmp_path)):
        store.offload(newest=8)


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize(("newest", "expected"), [(8, 830), (700, 0)])
def test_tokens_beyond_the_capacity_of_the_lower_tier(tier, newest, expected):
    """When generation outgrows the lower tier's rows, new tokens must not be written into rows of the next head."""
    store, device = KVStore(tier).layer(lambda length: 50), DeviceStore()
    store.expect(expected)
    for either in (store, device):
        either.append(*normal(800, 1))
    store.offload(newest=newest)
    for step in range(40):
        for either in (store, device):
            either.append(*normal(1, step))
        indices = torch.arange(device.length - 5, device.length).expand(BATCH, HEADS, -1)
        fetched, expected_values = (values_at(either.fetch(indices), indices) for either in (store, device))
        assert torch.equal(fetched[0], expected_values[0])
        store.offload(newest=newest)
    assert torch.equal(store.keys, device.keys)


@pytest.fixture(scope="module")
def tiny():
    return kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")


@pytest.mark.parametrize(
    "method", ["clusterkv", pytest.param("quest", marks=SLOW), pytest.param("pqcache", marks=SLOW)]
)
def test_generation_is_the_same_as_on_the_device(tiny, tmp_path, method):
    fields = {"method": method, "budget": 64, "max_new_tokens": 80, "dense_layers": 1}
    on_device = kvviz.generate(tiny, prompt(300), **fields)
    kv_store = KVStore("disk", folder=tmp_path)
    out = kvviz.generate(tiny, prompt(300), store=kv_store, **fields)
    assert out.token_ids == on_device.token_ids
    assert out.ledger.moved_bytes > 0
    assert out.ledger.kept_bytes["disk"] == 3 * 2 * (300 + 80) * 2 * 8 * 4, "layers, heads, tokens, k and v, D, float32"
    gc.collect()
    assert [path.suffix for path in tmp_path.rglob("*.rows")] == [], "the files are deleted with the cache"
    del kv_store
    gc.collect()
    assert not list(tmp_path.iterdir()), "the folder is deleted with the store"


def test_damage_during_a_generation_keeps_the_generated_tokens(tiny, tmp_path, monkeypatch):
    fields = {"method": "quest", "budget": 64, "max_new_tokens": 30, "dense_layers": 1}
    whole = kvviz.generate(tiny, prompt(300), **fields)
    steps = []

    def forward(*args, **kwargs):
        steps.append(args)
        if len(steps) == 12:
            for path in tmp_path.rglob("*.rows"):
                path.write_bytes(bytes([byte ^ 4 for byte in path.read_bytes()]))
        return original(*args, **kwargs)

    original = tiny.model.forward
    monkeypatch.setattr(tiny.model, "forward", forward)
    with pytest.raises(kvviz.DamagedOffloadError, match=str(tmp_path)) as raised:
        kvviz.generate(tiny, prompt(300), store=KVStore("disk", folder=tmp_path), **fields)
    token_ids = raised.value.generation.token_ids
    assert len(token_ids) >= 11
    assert token_ids == whole.token_ids[: len(token_ids)]
