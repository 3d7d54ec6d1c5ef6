"""The store of packed keys and values: what is read of it, its bytes, batches with padding, copies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvviz
from kvviz.offload.growing import GrowingTensor
from kvviz.offload.quantised_store import PART_TOKENS, QuantisedStore

METHODS = {
    "kivi": {"residual": 32}, "turboquant": {}, "turboquant, inner products": {"key_variant": "inner_product"},
}  # fmt: skip


def make(name, **fields):
    method = kvviz.methods.create(name.split(",")[0], **METHODS[name] | fields)
    return QuantisedStore(*method.codecs())


def random_tokens(length, *, batch=1, heads=2, dim=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, heads, length, dim, generator=generator) for _ in range(2))


def filled(name, length=300, generated=45, **shape):
    """A store with a prompt and generated tokens, the newest of them not encoded yet."""
    store, (keys, values) = make(name), random_tokens(length + generated, **shape)
    store.append(keys[:, :, :length], values[:, :, :length])
    store.compress()
    for step in range(length, length + generated):
        store.append(keys[:, :, step : step + 1], values[:, :, step : step + 1])
        if step < length + generated - 1:
            store.compress()
    return store, keys, values


def tensors_of(value, found=None):
    """All tensors in an object, by address."""
    found = {} if found is None else found
    if isinstance(value, GrowingTensor):
        value = value.buffer
    if isinstance(value, torch.Tensor):
        found[value.data_ptr(), value.nbytes] = value.nbytes
    elif isinstance(value, tuple | list):
        for item in value:
            tensors_of(item, found)
    elif hasattr(value, "__dict__"):
        for item in vars(value).values():
            tensors_of(item, found)
    return found


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("batch", "heads", "rows"), [(1, 2, 2), (2, 1, 3), (3, 2, 6)])
def test_every_way_to_read_a_token_gives_the_same(name, batch, heads, rows):
    store, keys, _ = filled(name, batch=batch, heads=heads)
    whole = store.keys, store.values
    per_head = rows // heads
    for positions in (torch.arange(0, 345, 7), torch.arange(40, 90), torch.arange(330, 345), torch.arange(345)):
        indices = positions.expand(batch, rows, -1)
        for read, all_tokens in zip(store.read(indices), whole, strict=True):
            assert torch.equal(read, all_tokens.repeat_interleave(per_head, 1)[:, :, positions])
        assert torch.equal(store.read_keys(indices[1:], slice(1, None)), store.read_keys(indices)[1:])
        fetched = store.fetch(indices, padded=False)
        for buffer, all_tokens in zip(fetched[:2], whole, strict=True):
            spread = buffer.repeat_interleave(per_head, 1)
            got = spread.gather(2, fetched.slots[..., None].expand(-1, -1, -1, 16))
            assert torch.equal(got, all_tokens.repeat_interleave(per_head, 1)[:, :, positions])
    assert torch.equal(store.last(1)[0], keys[:, :, -1:])
    assert torch.equal(store.last(50)[0], whole[0][:, :, -50:])


@pytest.mark.parametrize("name", METHODS)
def test_pads_stay_pads_and_rows_differ(name):
    store, _, _ = filled(name)
    generator = torch.Generator().manual_seed(1)
    indices = torch.stack([torch.randperm(345, generator=generator)[:40].sort().values for _ in range(6)])[None]
    indices[0, :, 30:] = -1
    fetched = store.fetch(indices)
    assert torch.equal(fetched.slots < 0, indices < 0)
    expected = store.keys.repeat_interleave(3, 1)
    for row in range(6):
        got = fetched.keys[0, row // 3, fetched.slots[0, row, :30]]
        assert torch.equal(got, expected[0, row, indices[0, row, :30]])


@pytest.mark.parametrize("name", METHODS)
def test_its_bytes_are_those_of_all_its_tensors(name):
    store, _, _ = filled(name, length=1000)
    sizes = tensors_of([store._keys, store._values])
    assert store.kept_bytes() == {"device": sum(sizes.values())}
    exact = 2 * 2 * 1045 * 16 * 4
    assert store.kept_bytes()["device"] < 0.45 * exact
    tail = {"kivi": (1045 % 32) + 33}.get(name, 2)  # keys and values in full precision, the step's own among them
    packed = 2 * 1045 - tail
    per_token = {"kivi": (4 + 64 // 32, 4 + 4), "turboquant": (11, 11), "turboquant, inner products": (15, 11)}[name]
    indices = torch.arange(1045).expand(1, 2, -1)
    of_keys = 1045 - (1045 % 32 if name == "kivi" else 1)
    expected = 2 * (of_keys * per_token[0] + (packed - of_keys) * per_token[1] + tail * 64)
    assert store.read_bytes(indices) == expected
    assert store.token_bytes == sum(per_token)
    assert store.key_bytes == 2 * per_token[0]


@pytest.mark.parametrize("name", METHODS)
def test_padding_is_not_part_of_what_is_stored(name):
    """A row's stored tokens do not depend on the contents of its padding; other rows do not matter either."""
    keys, values = random_tokens(192, batch=2)
    stores = []
    for fill in (0.0, 50.0):
        padded = [tokens.clone() for tokens in (keys, values)]
        for tokens in padded:
            tokens[0, :, :37] = fill
        store = make(name)
        store.append(*padded)
        store.compress([37, 0])
        stores.append(store)
    assert torch.equal(stores[0].keys[0, :, 37:], stores[1].keys[0, :, 37:])
    assert torch.equal(stores[0].values[0, :, 37:], stores[1].values[0, :, 37:])
    alone = make(name)
    alone.append(keys[1:], values[1:])
    alone.compress()
    assert torch.equal(stores[0].keys[1:], alone.keys)
    assert torch.equal(stores[0].values[1:], alone.values)


@pytest.mark.parametrize("name", METHODS)
def test_a_copy_goes_on_by_itself_and_a_renewed_store_is_empty(name):
    store, _, _ = filled(name)
    before = store.keys.clone(), store.values.clone()
    copy, other = store.clone(), random_tokens(200, seed=9)
    for step in range(200):
        copy.append(other[0][:, :, step : step + 1], other[1][:, :, step : step + 1])
        copy.compress()
    assert torch.equal(store.keys, before[0])
    assert torch.equal(store.values, before[1])
    assert torch.equal(copy.keys[:, :, :300], before[0][:, :, :300])
    assert (copy.length, store.length) == (545, 345)
    renewed = store.renewed()
    renewed.append(*other)
    renewed.compress()
    fresh = make(name)
    fresh.append(*other)
    fresh.compress()
    assert torch.equal(renewed.keys, fresh.keys)


@pytest.mark.parametrize("name", METHODS)
def test_the_dtype_stays_and_a_chunked_prompt_is_the_same(name):
    keys, values = (tokens.bfloat16() for tokens in random_tokens(500))
    whole, chunked = make(name), make(name)
    whole.append(keys, values)
    chunked.reserve(keys, values, 500)
    for start in range(0, 500, 128):
        chunked.append(keys[:, :, start : start + 128], values[:, :, start : start + 128])
        assert torch.equal(chunked.keys, keys[:, :, : start + 128]), "a prompt is exact until it is encoded"
    for store in (whole, chunked):
        store.compress()
    assert whole.keys.dtype == torch.bfloat16
    assert torch.equal(whole.keys, chunked.keys)
    assert torch.equal(whole.values, chunked.values)


def test_a_step_over_all_tokens_never_decodes_more_than_a_part():
    store, (keys, values) = make("kivi"), random_tokens(3000)
    store.append(keys, values)
    store.compress()
    indices = torch.arange(3000).expand(1, 2, -1)
    parts = store.parts(indices)
    assert [part.stop - part.start for part in parts] == [PART_TOKENS, PART_TOKENS, 3000 - 2 * PART_TOKENS]
    assert store.parts(indices[..., :PART_TOKENS]) is None
    assert np.all([store.fetch(indices[..., part], padded=False).keys.shape[2] <= PART_TOKENS for part in parts])
