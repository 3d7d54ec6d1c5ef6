"""MechanismStepper's page of a method that merges tokens, in a real Chromium."""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import expect

import kvviz
from kvviz.trace import Trace
from kvviz.widgets import MechanismStepper
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.widgets.test_browser import opened

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]


@pytest.fixture(scope="module")
def trace() -> Trace:
    rng = np.random.default_rng(0)
    arrays = {
        name: {1: rng.normal(size=(heads, 260, 16)).astype(np.float16)}
        for name, heads in (("queries", 4), ("keys", 2), ("values", 2))
    }
    return Trace("tiny", kvviz.Geometry(2, 4, 2, 16, 512), [f" {n}" for n in range(260)], np.arange(260), **arrays)


@pytest.mark.parametrize("method", ["centroidkv", "streaming_llm"])
def test_tokens_in_centroids_are_marked_as_merged_and_explained(browser, tmp_path, trace, method):
    path = tmp_path / "merged.html"
    widget = MechanismStepper(trace, method, budget=96, queries=30)
    last = len(widget.scene.frames) - 1
    widget.frame = last
    widget.to_html(path)
    lit = widget.scene.frames[last].lit
    merged = np.asarray(lit.positions)[np.asarray(lit.merged)]
    assert len(merged[merged < 230]) == 0 if method == "streaming_llm" else len(merged) > 0
    with opened(browser, path) as page:
        expect(page.locator("[data-position].kv-merged")).to_have_count(len(merged))
        expect(page.locator(".kv-legend .kv-merged")).to_have_count(int(method == "centroidkv"))
