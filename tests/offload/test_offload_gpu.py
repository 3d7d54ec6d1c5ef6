"""Offloading from a real GPU: pinned memory, side streams, attention on the host."""

from __future__ import annotations

import pytest
import torch

import kvviz
from kvviz.offload import KVStore, LinkModel
from tests.cache.test_offload_generation import GREEDY, method_of
from tests.tiny_models import make, prompt

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("name", ["clusterkv", "pqcache", "ctkvr", "quest"])
def test_a_gpu_generates_the_same_text_with_all_tiers(name, tier):
    model = make("llama").cuda()
    kvviz.attach(model)
    texts = []
    for store in ("device", tier, KVStore(tier, arena_tokens=9)):
        cache = kvviz.SelectiveCache(model, method_of(name), store)
        texts.append(model.generate(prompt(300).cuda(), past_key_values=cache, **GREEDY))
        moved = cache.ledger().moved_bytes
        assert (moved > 0) == (store != "device")
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_fetched_bit_for_bit(dtype):
    keys, values = torch.randn(2, 2, 3, 700, 64, device="cuda").to(dtype)
    store = KVStore("host").layer(lambda prompt: 60)
    store.append(keys, values)
    store.offload(newest=20)
    indices = torch.stack([torch.randperm(700)[:60].sort().values for _ in range(6)]).view(2, 3, 60).cuda()
    fetched = store.fetch(indices, padded=False)
    slots = fetched.slots[..., None].expand(-1, -1, -1, 64)
    positions = indices[..., None].expand(-1, -1, -1, 64)
    assert torch.equal(fetched.keys.gather(2, slots), keys.gather(2, positions))
    assert torch.equal(fetched.values.gather(2, slots), values.gather(2, positions))
    assert store._lower.rows.rows.is_pinned()


def test_measuring_the_link_of_this_machine():
    link = LinkModel.measured()
    assert 1e9 < link.bytes_per_s < 1e12
    assert torch.cuda.get_device_name() in link.name
