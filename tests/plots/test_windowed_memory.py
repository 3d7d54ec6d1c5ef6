"""The memory curve of a model with sliding windows."""

from __future__ import annotations

from types import SimpleNamespace

from kvviz.plots import kv_memory
from kvviz.trace.geometry import Geometry


def test_a_window_stops_growing_and_other_objects_still_do():
    windowed = Geometry(2, 1, 1, 8, 4096, (64, 0))
    plain = SimpleNamespace(n_layers=2, n_kv_heads=1, head_dim=8)
    curves = kv_memory({"windowed": windowed, "plain": plain}, lengths=[32, 1024]).data
    token = 2 * 8 * 2
    assert curves[0].y.tolist() == [token * 2 * 32, token * (1024 + 63)]
    assert curves[1].y.tolist() == [token * 2 * 32, token * 2 * 1024]
