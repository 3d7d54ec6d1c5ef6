"""Presses as methods, against transformers' cache with the same press; real presses run in `make agreement`.

kvpress cannot be installed together with the transformers of these tests. Stand-ins have the interface that it
documents: a dataclass with a compression_ratio, a context manager that adds hooks to a model.
"""

from __future__ import annotations

import json
import pickle
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import DynamicCache

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.evaluation.example_cells import TIMES
from kvviz.tasks.base import REGISTRY
from tests.evaluation.evaluation_tasks import Letters
from tests.tiny_models import SIZES, letters_tokenizer, make, prompt

LAYERS, LENGTH = SIZES["num_hidden_layers"], 60


@dataclass
class LongestKeys:
    """Evicts the shortest keys of each layer and head."""

    compression_ratio: float = 0.0

    def compress(self, module: Any, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        count = int(keys.shape[2] * (1 - self.compression_ratio))
        best = keys.norm(dim=-1).topk(count, dim=-1).indices[..., None].expand(-1, -1, -1, keys.shape[-1])
        return keys.gather(2, best).contiguous(), values.gather(2, best).contiguous()

    def hook(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        layer = kwargs["past_key_values"].layers[module.layer_idx]
        if kwargs["hidden_states"].shape[1] == layer.keys.shape[2]:  # the prefill
            layer.keys, layer.values = self.compress(module, layer.keys, layer.values)

    @contextmanager
    def __call__(self, model: Any) -> Iterator[None]:
        handles = [block.self_attn.register_forward_hook(self.hook, with_kwargs=True) for block in model.model.layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@dataclass
class FewerInLaterLayers(LongestKeys):
    """A smaller budget in each later layer."""

    def compress(self, module: Any, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        press = LongestKeys(1 - (1 - self.compression_ratio) * (1 - 0.2 * module.layer_idx))
        return press.compress(module, keys, values)


@dataclass
class MaskedHeads(LongestKeys):
    """Keeps all keys in the cache and masks the shortest ones over all heads, as AdaKVPress does."""

    def compress(self, module: Any, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        lengths = keys[0].norm(dim=-1)  # [H, L]
        worst = lengths.flatten().argsort()[: int(lengths.numel() * self.compression_ratio)]
        module.masked_key_indices = (torch.zeros_like(worst), worst // keys.shape[2], worst % keys.shape[2])
        return keys, values


@dataclass
class Altering(LongestKeys):
    """Changes the values or keys that it keeps."""

    scale: float = 2.0
    in_place: bool = False

    def compress(self, module: Any, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.in_place:
            return super().compress(module, keys, values.mul_(self.scale))
        return super().compress(module, keys * self.scale, values)


@dataclass
class IgnoresRatio(LongestKeys):
    """Ignores the compression ratio that is set."""

    def compress(self, module: Any, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return LongestKeys(0.5).compress(module, keys, values)


@dataclass
class Measured:
    """Knows its compression ratio only after it has run."""

    @property
    def compression_ratio(self) -> float:
        raise AssertionError("run it first")

    def __call__(self, model: Any) -> None:
        raise NotImplementedError


@pytest.fixture(scope="module")
def lm() -> kvviz.LanguageModel:
    return kvviz.LanguageModel(make("llama"), letters_tokenizer())


def as_method(*args: Any, **kwargs: Any) -> Any:
    """`as_method`, imported late, as a user would."""
    from kvviz.cache import kvpress

    return kvpress.as_method(*args, **kwargs)


def whole_keys(lm: kvviz.LanguageModel, ids: Tensor) -> list[Tensor]:
    cache = DynamicCache(config=lm.model.config)
    with torch.no_grad():
        lm.model(ids, past_key_values=cache)
    return [layer.keys[0] for layer in cache.layers]


@torch.no_grad()
def generated_with(press: Any, lm: kvviz.LanguageModel, ids: Tensor, count: int) -> list[int]:
    """Greedy tokens with transformers' cache, compressed by the press."""
    cache = DynamicCache(config=lm.model.config)
    with press(lm.model):
        logits = lm.model(ids, past_key_values=cache).logits
    token_ids = [int(logits[0, -1].argmax())]
    while len(token_ids) < count:
        position = torch.tensor([[ids.shape[1] + len(token_ids) - 1]])
        logits = lm.model(torch.tensor([token_ids[-1:]]), past_key_values=cache, position_ids=position).logits
        token_ids.append(int(logits[0, -1].argmax()))
    return token_ids


@pytest.mark.parametrize("budget", [1, 20, LENGTH - 1])
def test_kept_positions_are_those_of_the_longest_keys(lm: kvviz.LanguageModel, budget: int) -> None:
    from kvviz.cache.kvpress import kept_positions

    ids = prompt(LENGTH)
    positions = kept_positions(lm.model, ids, LongestKeys(1 - (budget + 0.25) / LENGTH))
    for layer, keys in enumerate(whole_keys(lm, ids)):
        best = keys.norm(dim=-1).topk(budget).indices.sort(-1).values
        assert positions[layer].tolist() == [best.tolist()]


@pytest.mark.parametrize("press", [LongestKeys, FewerInLaterLayers])
def test_generate_gives_the_tokens_of_transformers_with_the_press(lm: kvviz.LanguageModel, press: Any) -> None:
    ids = prompt(LENGTH, seed=4)
    out = kvviz.generate(lm, ids, as_method(press(), budget=18), max_new_tokens=20, record=True)
    assert out.token_ids == generated_with(press(1 - 18.25 / LENGTH), lm, ids, 20)
    assert out.token_ids != kvviz.generate(lm, ids, "full", max_new_tokens=20).token_ids
    assert out.recording.method == f"kvpress.{press.__name__}"


@torch.no_grad()
def test_masked_heads_attend_to_unmasked_tokens(lm: kvviz.LanguageModel) -> None:
    ids, ratio = prompt(LENGTH), 1 - 18.25 / LENGTH
    masked = []
    for keys in whole_keys(lm, ids):
        lengths = keys.norm(dim=-1)
        worst = lengths.flatten().argsort()[: int(lengths.numel() * ratio)]
        masked.append(torch.zeros(lengths.numel(), dtype=torch.bool).index_fill(0, worst, True).view_as(lengths))
    out = kvviz.generate(lm, ids, as_method(MaskedHeads(), budget=18), max_new_tokens=12, record=True)
    for layer, heads in enumerate(masked):
        attended = [set(head) - {-1} for head in out.recording.indices(1, layer).tolist()]
        assert attended == [{*(~head).nonzero()[:, 0].tolist(), LENGTH, LENGTH + 1} for head in heads]
    assert len({int(head.sum()) for heads in masked for head in heads}) > 2
    assert not any(getattr(module, "masked_key_indices", None) for module in lm.model.modules())

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> tuple[Tensor, None]:
        hidden = torch.zeros(key.shape[1:3], dtype=torch.bool)
        hidden[:, :LENGTH] = masked[module.layer_idx] if query.shape[2] == 1 else False
        later = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(1 + key.shape[2] - query.shape[2])
        group = query.shape[1] // key.shape[1]
        logits = query @ key.repeat_interleave(group, 1).mT * query.shape[-1] ** -0.5
        logits = logits.masked_fill(hidden.repeat_interleave(group, 0)[None, :, None] | later, -torch.inf)
        return (logits.softmax(-1) @ value.repeat_interleave(group, 1)).transpose(1, 2), None

    transformers.AttentionInterface.register("masked_by_head", attend)
    lm.model.set_attn_implementation("masked_by_head")
    try:
        assert out.token_ids == generated_with(lambda model: nullcontext(), lm, ids, 12)
    finally:
        lm.model.set_attn_implementation("sdpa")


def test_compare_runs_a_press_at_each_budget(lm: kvviz.LanguageModel) -> None:
    methods = {"full": "full", "longest": as_method(LongestKeys()), "fewer": as_method(FewerInLaterLayers())}
    table = kvviz.compare(lm, prompt(LENGTH), methods, [15, 0.5], max_new_tokens=4).set_index(["method", "budget"])
    assert table.loc["longest", "attended_tokens"].to_dict() == {15: 15 + 2, 30: 30 + 2}  # 1, 2, 3 new tokens
    assert (table.loc["fewer", "attended_tokens"] < table.loc["longest", "attended_tokens"]).all()
    assert table.loc["full", "recall"].item() == 1


def test_a_press_has_its_own_budget_by_default(lm: kvviz.LanguageModel) -> None:
    table = kvviz.compare(lm, prompt(LENGTH), [as_method(LongestKeys(0.25))], [], max_new_tokens=2)
    assert table[["method", "budget"]].values.tolist() == [["kvpress.LongestKeys", 45]]


def test_evaluate_resumes_with_a_press(
    lm: kvviz.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REGISTRY, "letters", Letters)
    grid = {"tasks": ["letters"], "budgets": [20, 0.5], "lengths": [50], "samples": 2}
    methods = {"press": as_method(LongestKeys()), "streaming_llm": "streaming_llm"}
    whole = kvviz.evaluate(lm, methods=methods, **grid)
    out = tmp_path / "results.parquet"
    kvviz.evaluate(lm, methods={"press": as_method(LongestKeys(0.5))}, **grid, out=out)
    monkeypatch.setattr(LongestKeys, "compress", None)  # equal presses at equal budgets are the same cells
    table = kvviz.evaluate(lm, methods=methods, **grid, out=out)
    differing = ["commit", *TIMES]
    assert table.drop(columns=differing).equals(whole.drop(columns=differing))
    pressed = table[table["method"] == "press"]
    assert set(pressed["method_name"]) == {"kvpress.LongestKeys"}
    assert len(pressed) == 2 * 2 * 2
    assert not pressed["refused"].any()


def test_a_method_can_be_pickled(lm: kvviz.LanguageModel) -> None:
    method = as_method(FewerInLaterLayers(), budget=18)
    unpickled = pickle.loads(pickle.dumps(method))
    assert (unpickled, unpickled.name, unpickled.config) == (method, method.name, method.config)
    assert as_method(LongestKeys()).config != as_method(MaskedHeads()).config


def test_later_prompts_of_a_session_are_not_compressed(lm: kvviz.LanguageModel) -> None:
    from kvviz.cache.attachment import attached
    from kvviz.generation.generating import fill

    cache = kvviz.SelectiveCache(lm.model, as_method(LongestKeys(), budget=18))
    with torch.no_grad(), attached(lm.model):
        fill(lm, cache, prompt(LENGTH))
        lm.model(prompt(7, seed=9), past_key_values=cache)
        assert [layer.store.used for layer in cache.selective_layers] == [18 + 7] * LAYERS


@pytest.mark.parametrize(
    ("press", "said"),
    [
        (Altering(), "leaves the keys and values of the others"),
        (Altering(in_place=True), "leaves the keys and values of the others"),
        (IgnoresRatio(), "30.0 tokens per head at a budget of 20"),
        (Measured(), "a press whose compression_ratio can be set"),
        (object(), "an instance of one of kvpress's presses"),
        (LongestKeys, "an instance of one of kvpress's presses"),
    ],
)
def test_unsupported_presses_are_refused(lm: kvviz.LanguageModel, press: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        kvviz.generate(lm, prompt(LENGTH), as_method(press, budget=20), max_new_tokens=2)
    assert not any(module._forward_hooks for module in lm.model.modules())
    assert lm.model.config._attn_implementation == "sdpa"


def test_a_press_needs_a_prompt_of_generate(lm: kvviz.LanguageModel) -> None:
    method, ids = as_method(LongestKeys(), budget=20), prompt(LENGTH)
    with pytest.raises(InvalidInputError, match=r"a prompt of kvviz\.generate"):
        kvviz.replay(kvviz.capture(lm, ids), method, queries=4)
    kvviz.attach(lm.model)
    try:
        with pytest.raises(InvalidInputError, match=r"a prompt of kvviz\.generate"):
            lm.model.generate(ids, past_key_values=kvviz.SelectiveCache(lm.model, method), max_new_tokens=2)
    finally:
        kvviz.detach(lm.model)
    with pytest.raises(InvalidInputError, match="fields of the press"):
        kvviz.compare(lm, ids, [type(method)(press=LongestKeys(), sinks=4)], [20])


def test_the_recorded_run_with_kvpress_agrees_except_for_h2o(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[2] / "data" / "agreement"
    recorded = json.loads((folder / "kvpress.json").read_text())
    agreement = {
        (row["method"], row["budget"]): min(share for layer in row["agreement"] for share in layer)
        for row in recorded["pairs"]
    }
    assert {name for name, _ in agreement if name.startswith("h2o")} > {"h2o, no window, mean"}
    for (name, budget), smallest_share in agreement.items():
        if name not in ("h2o", "h2o, no window", "keydiff", "kvzip"):  # the page says how these differ
            assert smallest_share == 1, (name, budget)
    for row in recorded["pairs"]:
        if "budgets of the press" in row["method"]:
            assert row["kept"] == row["kept_by_press"]
    runs = [row for row in recorded["presses"] if "refused" not in row]
    assert {"SnapKVPress", "AdaKVPress", "ObservedAttentionPress"} < {row["press"] for row in runs}
    assert not [row["press"] for row in runs if row["same_tokens"] < row["tokens"]]
    monkeypatch.syspath_prepend(folder)
    text = runpy.run_path(str(folder / "run.py"))["text"]()
    assert runpy.run_path(str(folder / "page.py"))["page"](recorded, text) == (folder / "README.md").read_text()


@pytest.mark.slow
def test_importing_it_needs_no_kvpress_and_adds_no_method() -> None:
    code = "import kvviz, sys; before = kvviz.methods.names(); import kvviz.cache.kvpress\n"
    code += "assert kvviz.methods.names() == before; assert 'kvpress' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
