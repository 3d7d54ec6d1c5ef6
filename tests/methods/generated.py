"""Long generations of a tiny model, and what each of their steps attends to and keeps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import transformers

import kvviz
from tests.tiny_models import SIZES, prompt

FREED_EVERY = 64  # a layer frees dropped tokens after so many steps, and keeps room for as many


@dataclass
class Steps:
    """The most tokens that any head of any layer attended to and stored, per step, and the bytes of all layers."""

    attended: list[int]
    stored: list[int]
    kept_bytes: list[int]
    bytes_per_token: int


def generate(method, *, prompt_length=40, steps=2100, layers=2):
    """A tiny Llama with room for so many tokens generates greedily; all its layers are served by the method."""
    torch.manual_seed(0)
    sizes = {**SIZES, "num_hidden_layers": layers, "max_position_embeddings": prompt_length + steps + 1}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, initializer_range=0.2)
    model = transformers.LlamaForCausalLM(config).eval()
    kvviz.attach(model)
    cache = kvviz.SelectiveCache(model, method)
    selective = list(cache.selective_layers)
    assert len(selective) == layers
    seen = Steps([], [], [], layers * 2 * 2 * config.head_dim * 4)

    def observe(layer, queries, selection, output, seconds):
        if layer is selective[0]:
            seen.attended.append(0)
            seen.stored.append(0)
        seen.attended[-1] = max(seen.attended[-1], int((selection.indices >= 0).sum(-1).max()))
        seen.stored[-1] = max(seen.stored[-1], layer.store.used)
        if layer is selective[-1]:
            buffers = [buffer for each in selective for buffer in (each.store.key_buffer, each.store.value_buffer)]
            seen.kept_bytes.append(sum(buffer.untyped_storage().nbytes() for buffer in buffers))

    for layer in selective:
        layer.observer = observe
    options = {"max_new_tokens": steps, "do_sample": False, "eos_token_id": None}
    with torch.no_grad():
        ids = model.generate(prompt(prompt_length), past_key_values=cache, **options)
    assert ids.shape[1] == prompt_length + steps
    assert sum(cache.ledger().kept_bytes.values()) == seen.kept_bytes[-1]
    return seen


def assert_bounded(seen, budget, steps=2100):
    """No step attends to more than the budget, and memory is that of the budget and of what is not freed yet."""
    assert len(seen.attended) == steps - 1  # the last token is generated, not decoded
    assert max(seen.attended) == budget
    assert max(seen.stored) <= budget + FREED_EVERY
    assert max(seen.kept_bytes[FREED_EVERY:]) <= (budget + 2 * FREED_EVERY) * seen.bytes_per_token
    assert seen.kept_bytes[-1] < 0.2 * steps * seen.bytes_per_token
