"""The benchmark of long generations: which steps have a fixed budget, and what its table says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import kvviz
from tests import tiny_models

sys.path.insert(0, str(Path(__file__).parents[2] / "data" / "benchmarks"))  # scripts, not an installed package

from parts import long_generation  # found through the line above

PROMPT, STEPS, BLOCK, BUDGET = 300, 24, 8, 160


def text():
    return torch.randint(3, 90, (1, PROMPT + STEPS), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def rows():
    lm = kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer(), "tiny")
    return long_generation.measure(lm, text(), PROMPT, BLOCK, BUDGET)


def of(rows, method, name):
    return [row[name] for row in rows if row["method"] == method]


def test_every_method_is_measured_after_every_block(rows):
    steps = range(BLOCK, STEPS + 1, BLOCK)
    assert [(row["step"], row["method"]) for row in rows] == [
        (step, name) for step in steps for name in long_generation.METHODS
    ]


def test_attended_tokens_grow_only_where_the_paper_says_so(rows):
    generated = [8, 16, 24]
    assert of(rows, "full", "attended") == [PROMPT + count for count in generated]
    assert of(rows, "snapkv", "attended") == [BUDGET + count for count in generated]
    waiting = [count - 1 for count in generated]  # for their cluster; the step's own token counts within the budget
    assert of(rows, "clusterkv", "attended") == [BUDGET + count for count in waiting]
    assert of(rows, "centroidkv", "attended") == [BUDGET + count for count in generated], "merged every 64 steps"
    for name in ("quest", "pqcache", "ctkvr", "streaming_llm", "h2o", "tova", "r_kv", "triattention"):
        assert max(of(rows, name, "attended")) <= BUDGET, name
        assert min(of(rows, name, "attended")) > BUDGET / 2, name


def test_only_methods_in_host_memory_move_and_hit(rows):
    for name in ("full", "snapkv", "streaming_llm", "h2o", "tova", "r_kv", "triattention", "centroidkv"):
        assert of(rows, name, "hit_rate") == [None] * 3, name
        assert of(rows, name, "moved_bytes") == [0] * 3, name
    for name in ("clusterkv", "quest", "pqcache"):
        assert all(0 <= rate <= 1 for rate in of(rows, name, "hit_rate")), name
        assert min(of(rows, name, "moved_bytes")) > 0, name
        kept = zip(of(rows, name, "kept_bytes"), of(rows, name, "device_bytes"), strict=True)
        assert all(both > device for both, device in kept), name


def test_the_loss_is_that_of_the_texts_next_tokens(rows):
    """Of full attention it is the model's own; the block at the end has one token less to foretell."""
    model = tiny_models.make("llama")
    with torch.no_grad():
        told = model(text()).logits[0].log_softmax(-1)[torch.arange(PROMPT + STEPS - 1), text()[0, 1:]]
    for block, loss in enumerate(of(rows, "full", "nats")):
        start = PROMPT + block * BLOCK
        assert loss == pytest.approx(-float(told[start : start + BLOCK].mean()), abs=1e-4)
    for name in ("h2o", "tova", "r_kv", "triattention"):
        assert of(rows, name, "nats") != pytest.approx(of(rows, "full", "nats"), abs=1e-4), name


def test_times_are_shares_of_full_attention(rows):
    assert of(rows, "full", "ratio") == [1] * 3
    for row in rows:
        assert row["ratio"] == pytest.approx(row["seconds"] / of(rows, "full", "seconds")[row["step"] // BLOCK - 1])


def test_the_table_goes_from_the_first_block_to_the_last(rows):
    part = {"model": "tiny", "dtype": "float32", "prompt_tokens": PROMPT, "steps": STEPS, "block": BLOCK,
            "budget": BUDGET, "rows": rows}  # fmt: skip
    lines = long_generation.each(part).splitlines()
    snapkv = next(line for line in lines if line.startswith("| `snapkv`"))
    assert snapkv.split(" | ")[1:3] == [f"{BUDGET + 8}–{BUDGET + STEPS}", ""]
    assert len([line for line in lines if line.startswith("| `")]) == len(long_generation.METHODS)
    full = next(line for line in lines if line.startswith("| `full`"))
    assert full.split(" | ")[5] == "+0.000"
    older = {**part, "rows": [{name: value for name, value in row.items() if name != "nats"} for row in rows]}
    assert "loss" not in long_generation.each(older)
