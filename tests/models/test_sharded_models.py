"""Models whose layers accelerate has put in several places: they answer as whole ones do."""

from __future__ import annotations

import pandas as pd
import pytest
from transformers import AutoModelForCausalLM

import kvviz
from kvviz.evaluation.run import _source
from kvviz.models.provenance import model_hash
from tests.evaluation.evaluation_tasks import BUDGETS, LENGTHS, Letters, few, save_model


@pytest.fixture
def folder(tmp_path):
    return save_model(tmp_path / "model")


@pytest.fixture
def shared_out(folder, tmp_path):
    """The model with two of its four layers on the disk, brought in as they are run."""
    plain = kvviz.load(folder)
    places = {name: "cpu" for name, _ in plain.model.model.named_children() if name != "layers"}
    places = {f"model.{name}": place for name, place in places.items()} | {"lm_head": "cpu"}
    places |= {f"model.layers.{layer}": "disk" if layer in (1, 2) else "cpu" for layer in range(4)}
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=plain.model.dtype, device_map=places, offload_folder=tmp_path / "offloaded"
    )
    model.train(False).requires_grad_(False)
    return plain, kvviz.LanguageModel(model, plain.tokenizer, plain.name)


def test_a_model_in_several_places_gives_the_same_rows(shared_out):
    plain, apart = shared_out
    assert any(parameter.is_meta for parameter in apart.model.parameters()), "no layer is elsewhere"
    assert model_hash(apart.model) == model_hash(plain.model)
    tables = [
        kvviz.evaluate(lm, [Letters()], few("clusterkv", "infinigen", "snapkv"), BUDGETS, LENGTHS[:1], samples=1)
        for lm in (plain, apart)
    ]
    assert len(tables[0]) > 3
    pd.testing.assert_frame_equal(*tables, check_exact=True)


def test_auto_leaves_the_places_to_accelerate(folder, monkeypatch):
    asked = []
    read = AutoModelForCausalLM.from_pretrained

    def spy(*args, **kwargs):
        asked.append(kwargs["device_map"])
        return read(*args, **kwargs)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", spy)
    lm, plain = kvviz.load(folder, device="auto"), kvviz.load(folder)
    assert asked == ["auto", None]
    assert lm.source == folder
    assert lm.device.type == plain.device.type
    assert model_hash(lm.model) == model_hash(plain.model)


def test_workers_share_a_model_out_as_the_caller_did(shared_out):
    plain, apart = shared_out
    apart.source = plain.source
    assert _source(apart, "weights")[1] == "auto"
    assert _source(plain, "weights")[1] == str(plain.device)
