"""Models whose layers accelerate has put on several devices give the same results as whole ones."""

from __future__ import annotations

import pandas as pd
import pytest
from transformers import AutoModelForCausalLM

import kvviz
from kvviz.evaluation.example_cells import TIMES
from kvviz.evaluation.run import _source
from kvviz.models.provenance import model_hash
from tests.evaluation.evaluation_tasks import BUDGETS, LENGTHS, Letters, few, save_model


@pytest.fixture
def folder(tmp_path):
    return save_model(tmp_path / "model")


@pytest.fixture
def sharded_models(folder, tmp_path):
    """The model, and a copy with two of its four layers on disk, which are loaded when they run."""
    plain = kvviz.load(folder)
    places = {name: "cpu" for name, _ in plain.model.model.named_children() if name != "layers"}
    places = {f"model.{name}": place for name, place in places.items()} | {"lm_head": "cpu"}
    places |= {f"model.layers.{layer}": "disk" if layer in (1, 2) else "cpu" for layer in range(4)}
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=plain.model.dtype, device_map=places, offload_folder=tmp_path / "offloaded"
    )
    model.train(False).requires_grad_(False)
    return plain, kvviz.LanguageModel(model, plain.tokenizer, plain.name)


@pytest.mark.slow
def test_a_model_on_several_devices_gives_the_same_rows(sharded_models):
    plain, sharded = sharded_models
    assert any(parameter.is_meta for parameter in sharded.model.parameters()), "no layer is on disk"
    assert model_hash(sharded.model) == model_hash(plain.model)
    tables = [
        kvviz.evaluate(lm, [Letters()], few("clusterkv", "infinigen", "snapkv"), BUDGETS, LENGTHS[:1], samples=1)
        for lm in (plain, sharded)
    ]
    assert len(tables[0]) > 3
    pd.testing.assert_frame_equal(*(table.drop(columns=list(TIMES)) for table in tables), check_exact=True)


def test_auto_leaves_the_device_map_to_accelerate(folder, monkeypatch):
    device_maps = []
    read = AutoModelForCausalLM.from_pretrained

    def spy(*args, **kwargs):
        device_maps.append(kwargs["device_map"])
        return read(*args, **kwargs)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", spy)
    lm, plain = kvviz.load(folder, device="auto"), kvviz.load(folder)
    assert device_maps == ["auto", None]
    assert lm.source == folder
    assert lm.device.type == plain.device.type
    assert model_hash(lm.model) == model_hash(plain.model)


def test_workers_load_a_model_like_the_caller(sharded_models):
    plain, sharded = sharded_models
    sharded.source = plain.source
    assert _source(sharded, "weights")[1] == "auto"
    assert _source(plain, "weights")[1] == str(plain.device)
