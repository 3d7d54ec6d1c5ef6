"""KIVI against a reference in NumPy: codes bit for bit, values, bytes, the tokens in full precision, and attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.layer_cache import LayerCache
from kvviz.errors import InvalidInputError
from kvviz.methods.base import LayerContext
from kvviz.offload.quantised_store import QuantisedStore

CONTEXT = LayerContext(index=4, n_layers=8, n_heads=6, n_kv_heads=2, head_dim=16, scale=0.25, details=True)


def random_tokens(length, *, heads=2, dim=16, batch=1, seed=0):
    """Tokens with channels of very different sizes, and far from zero, as keys have."""
    rng = np.random.default_rng(seed)
    sizes = rng.lognormal(0, 1.5, (1, heads, 1, dim))
    tokens = sizes * (rng.normal(size=(batch, heads, length, dim)) + rng.normal(size=(1, heads, 1, dim)))
    return torch.from_numpy(tokens.astype(np.float32))


def of_group(numbers, bits):
    """Codes, scale and minimum of a group, number by number."""
    low, high = np.float32(min(numbers)), np.float32(max(numbers))
    scale = np.float16((high - low) / np.float32(2**bits - 1))
    low = np.float16(low)
    codes = []
    for value in numbers:
        steps = (np.float32(value) - np.float32(low)) / np.float32(scale) if scale else np.float32(0)
        codes.append(int(np.rint(min(max(steps, 0), 2**bits - 1))))
    return codes, scale, low


def decoded(codes, scale, low):
    return [np.float32(code) * np.float32(scale) + np.float32(low) for code in codes]


def reference(tokens, bits, size, packed, *, by_channel):
    """Codes of the first `packed` tokens [H, packed, D], and all tokens as they are stored [H, L, D]."""
    tokens = tokens.numpy()
    heads, _, dim = tokens.shape
    codes, stored = np.zeros((heads, packed, dim), np.uint8), tokens.copy()
    for head in range(heads):
        for outer in range(dim if by_channel else packed):
            for start in range(0, packed if by_channel else dim, size):
                inner = slice(start, min(start + size, packed if by_channel else dim))
                place = (head, inner, outer) if by_channel else (head, outer, inner)
                of_code, scale, low = of_group(tokens[place], bits)
                codes[place], stored[place] = of_code, decoded(of_code, scale, low)
    return codes, stored


def unpacked(packed, bits, dim):
    """Codes from bytes whose bits follow each other, the lowest first, in runs of 8 codes."""
    stream = np.unpackbits(packed.numpy(), axis=-1, bitorder="little")
    numbers = stream.reshape(*packed.shape[:-1], -1, bits) @ (1 << np.arange(bits))
    return numbers[..., :dim]


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("dim", "size"), [(16, 32), (64, 32), (80, 32), (20, 8)])
def test_codes_and_values_are_those_of_the_reference(bits, dim, size):
    keys, values = random_tokens(96, dim=dim), random_tokens(96, dim=dim, seed=1)
    method = kvviz.methods.create("kivi", key_bits=bits, value_bits=bits, group_size=size, residual=32)
    for codec, tokens, by_channel in zip(method.codecs(), (keys, values), (True, False), strict=True):
        codes, _ = reference(tokens[0], bits, size, 96, by_channel=by_channel)
        encoded = codec.encode(tokens, codec.fit(tokens))
        assert np.array_equal(unpacked(encoded.tokens[0][0], bits, dim), codes)
    store = QuantisedStore(*method.codecs())
    store.append(keys, values)
    store.compress()
    assert np.array_equal(store.keys[0].numpy(), reference(keys[0], bits, size, 96, by_channel=True)[1])
    assert np.array_equal(store.values[0].numpy(), reference(values[0], bits, size, 64, by_channel=False)[1])


def test_a_group_of_equal_numbers_and_one_beyond_float16_are_finite():
    tokens = torch.ones(1, 2, 64, 16)
    tokens[:, 1, ::2] = 1e6
    store = QuantisedStore(*kvviz.methods.create("kivi", residual=32).codecs())
    store.append(tokens, tokens)
    store.compress()
    assert torch.equal(store.keys[:, 0], tokens[:, 0])
    assert bool(store.keys.isfinite().all())
    assert bool(store.values.isfinite().all())


@pytest.mark.parametrize("prompt", [1, 63, 128, 130])
def test_generated_tokens_move_from_full_precision_into_groups(prompt):
    """Of 300 generated tokens, each step stores what the reference says: keys 64 at once, values one by one."""
    keys, values = random_tokens(prompt + 300), random_tokens(prompt + 300, seed=1)
    layer = LayerCache(CONTEXT, kvviz.methods.create("kivi", group_size=16, residual=64))
    layer.store.append(keys[:, :, :prompt], values[:, :, :prompt])
    layer.build()
    queries = torch.randn(1, 6, 300, 16, generator=torch.Generator().manual_seed(2))
    for length in range(prompt + 1, prompt + 301):
        layer.store.append(keys[:, :, length - 1 : length], values[:, :, length - 1 : length])
        layer.decode(queries[:, :, length - 1 - prompt])
        if length - prompt in (1, 97, 300):
            for kind, tokens, packed in (
                ("keys", keys, length // 64 * 64), ("values", values, max(length - 64, 0)),
            ):  # fmt: skip
                _, stored = reference(tokens[0, :, :length], 2, 16, packed, by_channel=kind == "keys")
                assert np.array_equal(getattr(layer.store, kind)[0].numpy(), stored), (kind, length)
    whole = 2 * 2 * (prompt + 300) * 16 * 4
    assert layer.store.kept_bytes()["device"] < 0.6 * whole


def attention(queries, keys, values, group=3):
    """Exact attention of one step's queries [Q, D] in float64."""
    outputs = []
    for head, query in enumerate(queries.double().numpy()):
        logits = keys[head // group].astype(np.float64) @ query * CONTEXT.scale
        weights = np.exp(logits - logits.max())
        outputs.append(weights / weights.sum() @ values[head // group].astype(np.float64))
    return np.array(outputs)


@pytest.mark.parametrize("over", ["full", "quest", "clusterkv", "sparq"])
def test_a_step_attends_to_the_stored_tokens_of_the_choice(over):
    """The other method chooses as without KIVI: its index is made of exact keys, and Quest and ClusterKV keep one."""
    length, fields = 1100, {} if over == "full" else {"budget": 96}
    keys, values = random_tokens(length + 1), random_tokens(length + 1, seed=1)
    query = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(3))
    layers = {}
    for name in (over, f"kivi({over})"):
        layer = layers[name] = LayerCache(CONTEXT, kvviz.methods.create(name, **fields))
        layer.store.append(keys[:, :, :length], values[:, :, :length])
        layer.build()
        layer.store.append(keys[:, :, length:], values[:, :, length:])
        if name != "full":
            output = layer.decode(query)
    chosen = layers[f"kivi({over})"].last.indices
    if over in ("quest", "clusterkv"):
        assert torch.equal(chosen, layers[over].last.indices)
    _, stored_keys = reference(keys[0], 2, 32, length // 128 * 128, by_channel=True)
    _, stored_values = reference(values[0], 2, 32, length - 128, by_channel=False)
    rows = [head.unique() for head in chosen[0]]
    rows = [row[row >= 0].numpy() for row in rows]
    expected = attention(
        query[0], [stored_keys[head, row] for head, row in enumerate(rows)],
        [stored_values[head, row] for head, row in enumerate(rows)],
    )  # fmt: skip
    assert np.abs(output[0].numpy() - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_residual_that_covers_all_tokens_is_full_attention():
    keys, values = random_tokens(301), random_tokens(301, seed=1)
    query = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(3))
    layer = LayerCache(CONTEXT, kvviz.methods.create("kivi", residual=320))
    layer.store.append(keys[:, :, :300], values[:, :, :300])
    layer.build()
    layer.store.append(keys[:, :, 300:], values[:, :, 300:])
    expected = attention(query[0], keys[0].numpy(), values[0].numpy())
    assert np.abs(layer.decode(query)[0].numpy() - expected).max() < 1e-4


def test_eight_bits_are_full_attention_within_the_bound():
    """A code is at most half a scale off, so that logits and values are bounded, and with them the output."""
    keys, values = random_tokens(1025), random_tokens(1025, seed=1)
    query = 0.1 * torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(3))
    method = kvviz.methods.create("kivi", key_bits=8, value_bits=8, residual=32)
    layer = LayerCache(CONTEXT, method)
    layer.store.append(keys[:, :, :1024], values[:, :, :1024])
    layer.build()
    layer.store.append(keys[:, :, 1024:], values[:, :, 1024:])
    output = layer.decode(query)[0].numpy()
    grouped = keys[0, :, :1024].unflatten(1, (-1, 32))
    step = (grouped.amax(2) - grouped.amin(2)).amax(1).numpy() / 255  # [H, D], of the widest group
    of_logits = np.array([np.abs(query[0, q].numpy()) @ step[q // 3] for q in range(6)]) * CONTEXT.scale / 2
    of_values = np.array([np.ptp(values[0, q // 3].numpy(), axis=-1).max() for q in range(6)]) / 255 / 2
    largest = np.array([np.abs(values[0, q // 3].numpy()).max() for q in range(6)])
    bound = 1.05 * ((np.exp(2 * of_logits) - 1) * largest + of_values)  # 5 % for the rounding of scales and minima
    error = np.abs(output - attention(query[0], keys[0].numpy(), values[0].numpy())).max(-1)
    assert (error > 0).all()
    assert (error < bound).all()


def test_fields_and_methods_that_do_not_fit_are_refused():
    with pytest.raises(InvalidInputError, match="a multiple of group_size, 32"):
        kvviz.methods.create("kivi", residual=100)
    with pytest.raises(InvalidInputError, match="kind eviction; wanted a method that keeps all tokens"):
        kvviz.methods.create("kivi", over="snapkv")


def test_alone_it_has_its_own_name_in_print_and_colour():
    alone, over_quest = kvviz.methods.get("kivi"), kvviz.methods.get("kivi(quest)")
    assert (alone.title, over_quest.title) == ("KIVI", "KIVI over Quest")
    assert alone.style.color not in ("muted", "foreground")
    assert over_quest.style.color == kvviz.methods.get("quest").style.color


@pytest.mark.model
def test_four_bits_predict_a_paragraph_better_than_two(lm, prose):
    """The log-probability of a paragraph after a long prompt: full attention, 4 bits, 2 bits, in this order."""
    prompt, answer = prose[:2000], prose[2000:2100]
    score = {
        bits: kvviz.score(lm, prompt, answer, "kivi", key_bits=bits, value_bits=bits, residual=32).total
        for bits in (2, 4)
    }
    full = kvviz.score(lm, prompt, answer, "full").total
    assert full - 2 < score[4] < full + 2
    assert score[2] < score[4] - 2
