"""Sliding windows in a Geometry: from a config, in files, and in texts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvviz.errors import IncompatibleFileError
from kvviz.trace.geometry import Geometry, load_geometry

FIELDS = {
    "model_type": "made", "num_attention_heads": 4, "num_key_value_heads": 1, "hidden_size": 32,
    "num_hidden_layers": 3, "max_position_embeddings": 64,
}  # fmt: skip
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({}, ()),
        ({"sliding_window": None, "layer_types": ["full_attention"] * 3}, ()),
        ({"sliding_window": 8, "layer_types": KINDS}, (8, 0, 8)),
        ({"sliding_window": 8, "layer_types": ["full_attention"] * 3}, ()),
        ({"sliding_window": 8}, (8, 8, 8)),
    ],
)
def test_windows_come_from_the_config(fields, windows):
    geometry = Geometry.of_config("made", SimpleNamespace(**FIELDS, **fields))
    assert geometry.windows == windows
    assert geometry.full_layers == tuple(layer for layer in range(3) if not (windows and windows[layer]))


def test_a_geometry_comes_back_from_its_metadata():
    hybrid = Geometry(3, 4, 1, 8, 64, (8, 0, 8))
    assert load_geometry(hybrid.metadata(), "file") == hybrid
    plain = Geometry(3, 4, 1, 8, 64)
    assert "windows" not in plain.metadata()  # as in files of models without windows
    assert load_geometry(plain.metadata(), "file") == plain


@pytest.mark.parametrize("windows", [[8, 0], [8, 0, -1], "8"])
def test_impossible_windows_are_refused(windows):
    with pytest.raises(IncompatibleFileError):
        load_geometry(Geometry(3, 4, 1, 8, 64).metadata() | {"windows": windows}, "file")


def test_a_layer_says_what_it_attends_to():
    geometry = Geometry(3, 4, 1, 8, 64, (512, 0, 8))
    assert geometry.layer_text(0) == "layer 0, sliding window of 512: attends to its window only"
    assert geometry.layer_text(1) == "layer 1"


def test_bytes_by_length_stop_growing_with_the_window():
    geometry = Geometry(18, 4, 1, 256, 32768, (512, 512, 512, 512, 512, 0) * 3)
    full, sliding = geometry.kv_bytes([100, 511, 512, 32768], bytes_per_value=4)
    token = 2 * 256 * 4  # a key and a value of one head
    assert full.tolist() == [3 * token * length for length in (100, 511, 512, 32768)]
    assert sliding.tolist() == [15 * token * length for length in (100, 511, 511, 511)]
    plain, none = Geometry(2, 4, 2, 8, 64).kv_bytes(10, batch=3)
    assert (int(plain), int(none)) == (2 * 2 * 2 * 8 * 10 * 3 * 2, 0)
