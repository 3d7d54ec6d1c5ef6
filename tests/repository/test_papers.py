"""The papers' figures and tables beside ours: none is missing, and every measurement runs at a small size."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import pytest

import kvviz
from tests import tiny_models

PAPERS = Path(__file__).parents[2] / "data" / "papers"


def _script():
    """data/papers/make.py as a module; it imports its entries and measurements like a script."""
    sys.path.insert(0, str(PAPERS))
    try:
        spec = importlib.util.spec_from_file_location("papers_make", PAPERS / "make.py")
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
    finally:
        sys.path.remove(str(PAPERS))
    return script


SCRIPT = _script()


@pytest.fixture(scope="module")
def tiny() -> kvviz.LanguageModel:
    """A tiny model whose tokens are the printable characters."""
    return kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer(), "tiny")


@pytest.mark.parametrize("name", sorted(SCRIPT.MEASURES))
def test_every_measurement_runs_at_a_small_size(name, tiny):
    each = SCRIPT.MEASURES[name]
    rows = each.run(tiny, **each.small)
    assert rows
    for row in rows:
        for value in row.values():
            assert isinstance(value, str | int | float | bool | None), f"{value!r} is not what JSON stores"
            assert not isinstance(value, float) or math.isfinite(value)
