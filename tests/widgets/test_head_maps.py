"""The map of layers × heads: its numbers, where widgets open, and how it picks."""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import expect

from kvviz.errors import InvalidInputError
from kvviz.widgets import BudgetExplorer, ClusterInspector, DecodeStepper, MethodComparer, head_maps
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.browser.picking import expect_head, settle
from tests.synthetic import recording
from tests.widgets.test_browser import opened
from tests.widgets.test_widget_input import made_trace

browser_test = pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)
SPAN = range(40, 44)


@pytest.fixture(scope="module")
def made():
    return recording(layers=(2, 3, 5))


def attention(made):
    """The mean attention on the span over all steps, by layer and head."""
    weights = {layer: made.events[layer].attention[:, :, list(SPAN)].sum(-1).mean(0) for layer in made.layers}
    return {(layer, head): row[head] for layer, row in weights.items() for head in range(len(row))}


def test_a_stepper_with_a_span_opens_at_the_head_that_asks_for_it(made):
    numbers = attention(made)
    stepper = DecodeStepper(made, span=SPAN)
    assert (stepper.layer, stepper.head) == max(numbers, key=numbers.__getitem__)
    first = stepper.page["head_maps"][0]
    assert first["label"] == "attention on “word40 word4 … 2 word43”"
    for (layer, head), weight in numbers.items():
        assert first["values"][str(layer)][head] == pytest.approx(weight, abs=1e-4)
    of_layer = {head: numbers[3, head] for head in range(2)}
    assert DecodeStepper(made, span=SPAN, layer=3).head == max(of_layer, key=of_layer.__getitem__)
    given = DecodeStepper(made, span="word41", layer=2, head=1)
    assert (given.layer, given.head, given.page["span"]) == (2, 1, [41])
    plain = DecodeStepper(made)
    assert (plain.layer, plain.head, plain.page["span"]) == (2, 0, [])
    with pytest.raises(InvalidInputError, match="DecodeStepper: span: tokens: got 'nowhere'"):
        DecodeStepper(made, span="nowhere")
    with pytest.raises(InvalidInputError, match="layer of a DecodeStepper: got 4"):
        DecodeStepper(made, span=SPAN, layer=4)


def test_a_comparer_shows_where_the_methods_differ(made):
    other = recording(layers=(2, 5), seed=4).replace(method="quest", tokens=made.tokens, token_ids=made.token_ids)
    comparer = MethodComparer([made, other], span=SPAN)
    numbers = {place: weight for place, weight in attention(made).items() if place[0] != 3}
    assert (comparer.layer, comparer.head) == max(numbers, key=numbers.__getitem__)
    assert comparer.token == SPAN[0]
    maps = {entry["label"]: entry["values"] for entry in comparer.page["head_maps"]}
    for layer, head in numbers:
        means = [np.mean([run.recall(step, layer)[head] for step in range(run.steps)]) for run in (made, other)]
        assert maps["recall: the best method less the worst"][str(layer)][head] == pytest.approx(
            np.ptp(means), abs=1e-4
        )


@pytest.mark.browser
@browser_test
def test_the_map_picks_a_head_and_shows_another_number(browser, made, tmp_path):
    path = tmp_path / "stepper.html"
    DecodeStepper(made, span=SPAN, layer=2, head=0).to_html(path)
    numbers = attention(made)
    with opened(browser, path) as page:
        cell = page.locator(".kv-headcell")
        assert cell.count() == 9  # and a row for all heads
        picked = page.locator(".kv-headcell[data-picked]")
        assert picked.get_attribute("aria-label").startswith("layer 2, KV head 0: ")
        sizes = {
            (layer, head): cell.nth(3 * head + made.layers.index(layer)).locator("span").bounding_box()["width"]
            for layer, head in numbers
        }
        assert max(sizes, key=sizes.__getitem__) == max(numbers, key=numbers.__getitem__)
        cell.nth(4).click()
        expect_head(page, 3, 1)
        picked.press("ArrowRight")
        expect_head(page, 5, 1)
        expect(page.locator(".kv-headsaid")).to_contain_text("layer 5, KV head 1: attention on")
        settle(page, "the number that the map of heads shows", "recall")
        expect(page.locator(".kv-headsaid")).to_contain_text("layer 5, KV head 1: recall")
        marked = page.locator(".kv-prompt [data-span]").evaluate_all("all => all.map(one => +one.dataset.position)")
        assert marked == list(SPAN)
        bar = page.locator(".kv-sight").bounding_box()
        ends = [box["x"] + 1 - bar["x"] for box in (one.bounding_box() for one in page.locator(".kv-end").all())]
        assert ends == pytest.approx([bar["width"] * made.prompt_length / len(made.tokens)], abs=1)
        asked = [one.bounding_box()["x"] + 1 - bar["x"] for one in page.locator(".kv-asked").all()]
        assert asked == pytest.approx([bar["width"] * (place + 0.5) / len(made.tokens) for place in SPAN], abs=1)


def exact_attention(trace, layer):
    """Softmax weights of the last token's queries, [Q, L], one head at a time."""
    queries, keys = trace.queries[layer].astype(np.float64), trace.keys[layer].astype(np.float64)
    group = len(queries) // len(keys)
    logits = np.stack([keys[head // group] @ query[-1] for head, query in enumerate(queries)])
    weights = np.exp(logits / np.sqrt(queries.shape[-1]) - logits.max() / np.sqrt(queries.shape[-1]))
    return weights / weights.sum(-1, keepdims=True)


def test_numbers_of_a_trace_by_head():
    trace = made_trace(200, layers=(2, 3))
    for row, layer in enumerate(trace.layers):
        weights = exact_attention(trace, layer)  # [4, L]
        on_span, best = weights[:, list(SPAN)].sum(-1), np.sort(weights, axis=-1)[:, -20:].sum(-1)
        np.testing.assert_allclose(trace.by_head(SPAN, group="each")[row], on_span, rtol=1e-4)
        np.testing.assert_allclose(trace.by_head(best=20, group="each")[row], best, rtol=1e-4)
        np.testing.assert_allclose(trace.by_head(SPAN)[row], on_span.reshape(2, 2).mean(-1), rtol=1e-4)
    np.testing.assert_allclose(trace.by_head(best=500), 1, rtol=1e-5)


@pytest.mark.parametrize("widget", [BudgetExplorer, ClusterInspector])
def test_widgets_of_a_trace_open_at_the_head_that_asks_for_the_span(widget):
    trace = made_trace(200, layers=(2, 3))
    fields = {"method": "quest", "dense_layers": 0} if widget is BudgetExplorer else {}
    shares = {
        (layer, head): share
        for layer in trace.layers
        for head, share in enumerate(exact_attention(trace, layer)[:, list(SPAN)].sum(-1).reshape(2, 2).mean(-1))
    }
    opened_at = widget(trace, span=SPAN, **fields)
    assert (opened_at.layer, opened_at.head) == max(shares, key=shares.__getitem__)
    maps = opened_at.page["head_maps"]
    assert [entry["label"].split(" ")[0:2] for entry in maps] == [["attention", "on"]] * 2
    for (layer, head), share in shares.items():
        assert maps[0]["values"][str(layer)][head] == pytest.approx(share, abs=1e-4)
    assert widget(trace, span=SPAN, layer=2, **fields).layer == 2
    assert widget(trace, span=SPAN, head=0, **fields).head == 0
    assert opened_at.page["span"] == list(SPAN)
    with pytest.raises(InvalidInputError, match=f"{widget.__name__}: span: tokens"):
        widget(trace, span="nowhere", **fields)


@pytest.mark.parametrize("widget", [BudgetExplorer, ClusterInspector])
def test_a_long_trace_has_no_map_unless_a_span_asks_for_it_and_says_so(widget, monkeypatch):
    monkeypatch.setattr(head_maps, "MOST_KEYS", 399)
    trace = made_trace(200, layers=(2, 3))
    fields = {"method": "quest", "dense_layers": 0} if widget is BudgetExplorer else {}
    plain, asked = widget(trace, **fields), widget(trace, span=SPAN, **fields)
    assert plain.page["head_maps"] == []
    assert any("drawn only with span=" in note for note in plain.page["notes"])
    assert len(asked.page["head_maps"]) == 2
    assert not any("span=" in note for note in asked.page["notes"])


@pytest.mark.browser
@browser_test
def test_drop_downs_pick_where_there_is_no_map(browser, tmp_path, monkeypatch):
    trace = made_trace(200, layers=(2, 3))
    for most, drop_downs in ((head_maps.MOST_KEYS, 0), (399, 2)):
        monkeypatch.setattr(head_maps, "MOST_KEYS", most)
        BudgetExplorer(trace, method="quest", dense_layers=0).to_html(tmp_path / "page.html")
        with opened(browser, tmp_path / "page.html") as page:
            pickers = [page.get_by_label(label, exact=True).count() for label in ("layer", "KV head")]
            assert sum(pickers) == drop_downs
            assert (page.locator(".kv-headcell").count() == 0) == (drop_downs == 2)
