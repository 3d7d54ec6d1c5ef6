"""The union of several heads: counts and marks against brute force, what the widgets send, and what a page shows."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import expect
from safetensors.numpy import load

from kvviz import metrics, replay
from kvviz.errors import UnknownNameError
from kvviz.metrics import Verdict
from kvviz.widgets import BudgetExplorer, DecodeStepper, MethodComparer, unions, view
from kvviz.widgets.page import Embedded, blob, self_contained
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.browser.picking import cell, expect_head, pick_head
from tests.generation.test_explore import made_trace
from tests.synthetic import recording
from tests.widgets.test_browser import attended, opened
from tests.widgets.test_method_comparer import of_query_heads
from tests.widgets.test_stepper_page import embedded

browser_test = pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)
ALL = "union of all KV heads"


def by_hand(made, step, layer, rows):
    """The verdict on each token, and the heads that attended, wanted, missed and wasted it, by the definitions."""
    verdicts = {}
    for position in range(made.visible(step)):
        each = [made.agreement(step, layer)[row, position] for row in rows]
        attended = sum(verdict in (Verdict.AGREED, Verdict.WASTED, Verdict.KEPT) for verdict in each)
        wanted = sum(verdict in (Verdict.AGREED, Verdict.MISSED, Verdict.MERGED_AWAY) for verdict in each)
        missed, wasted = each.count(Verdict.MISSED), each.count(Verdict.WASTED)
        if attended and wanted:
            verdict = Verdict.AGREED
        elif attended:
            verdict = Verdict.WASTED if wasted else Verdict.KEPT
        elif wanted:
            verdict = Verdict.MISSED if missed else Verdict.MERGED_AWAY
        else:
            continue
        verdicts[position] = (verdict, attended, wanted, missed, wasted)
    return verdicts


def frames(arrays):
    """The tokens shown at each step: verdict, counts of heads, by position."""
    marks = view.verdicts(arrays["marks"])
    for step in range(len(arrays["offsets"]) - 1):
        at = range(*arrays["offsets"][[step, step + 1]])
        yield {
            int(arrays["positions"][index]): (marks[index], *(int(arrays[name][index]) for name in unions.COUNTS))
            for index in at
        }


@pytest.mark.parametrize("rows", [range(3), range(1, 3), range(1)])
def test_the_union_agrees_with_its_definition_at_every_token(rows):
    made = recording(heads=3)
    arrays = unions.arrays(made, 3, rows, "layer")
    for step, shown in enumerate(frames(arrays)):
        assert shown == by_hand(made, step, 3, rows)
        union = made.union(step, 3, rows)
        assert {place: int(union.verdict[place]) for place in shown} == {
            place: int(found[0]) for place, found in shown.items()
        }
        assert arrays["recall"][step] == pytest.approx(made.recall(step, 3)[list(rows)].mean())
        assert arrays["mass"][step] == pytest.approx(made.attention_mass(step, 3)[list(rows)].mean())
        at = slice(*arrays["offsets"][[step, step + 1]])
        weights = made.attention(step, 3)[list(rows)].mean(0)
        np.testing.assert_allclose(arrays["weights"][at], weights[arrays["positions"][at]], rtol=1e-5)
        share = [max(found[1], found[2] * (found[1] == 0)) / len(rows) for found in shown.values()]
        assert arrays["levels"][at].tolist() == [int(np.ceil(view.LEVELS * each)) - 1 for each in share]


def test_merged_tokens_are_merged_in_the_union_only_if_no_head_missed_them():
    made = replay(made_trace(120), "centroidkv", queries=4, budget=40, sinks=4, recent=8)
    heads = range(made.events[3].indices.shape[1])
    kinds = set()
    for step, shown in enumerate(frames(unions.arrays(made, 3, heads, "layer"))):
        wanted = {place: found for place, found in by_hand(made, step, 3, heads).items()}
        assert {place: found for place, found in shown.items() if found[0] != Verdict.UNMARKED} == wanted
        kinds |= {found[0] for found in wanted.values()}
    assert {Verdict.MERGED_AWAY, Verdict.AGREED} <= kinds


def test_the_cases_of_a_token():
    rows = [
        [Verdict.AGREED, Verdict.WASTED, Verdict.MISSED, Verdict.KEPT, Verdict.KEPT, Verdict.MERGED_AWAY, 255],
        [Verdict.MISSED, Verdict.MISSED, 255, Verdict.WASTED, Verdict.KEPT, Verdict.MERGED_AWAY, 255],
    ]
    union = metrics.head_union(rows)
    agreed, wasted, missed = Verdict.AGREED, Verdict.WASTED, Verdict.MISSED
    assert union.verdict.tolist() == [agreed, agreed, missed, wasted, Verdict.KEPT, Verdict.MERGED_AWAY, 255]
    assert union.attended.tolist() == [1, 1, 0, 2, 2, 0, 0]
    assert union.wanted.tolist() == [2, 1, 1, 0, 0, 2, 0]
    assert union.missed.tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert union.wasted.tolist() == [0, 1, 0, 1, 0, 0, 0]


def test_the_widgets_send_unions_of_the_layer_and_of_query_heads():
    made = recording()
    assert DecodeStepper(made).page["unions"] == ["layer"]
    by_query = of_query_heads(made)
    stepper = DecodeStepper(by_query, head=3, union="kv_head")
    assert (stepper.page["unions"], stepper.page["per_kv_head"]) == (["layer", "kv_head"], 2)
    assert next(frames(load(stepper.slice))) == by_hand(by_query, 0, 2, [2, 3])
    both = by_query.indices(0, 2)[[2, 3]]
    assert stepper.highlighted().tolist() == sorted(set(both[both >= 0].tolist()))
    words = stepper.snapshot().alternative
    assert "union of the query heads of KV head 1" in words
    assert "mean recall (this KV head, this step)" in words
    stepper.union = "layer"
    assert next(frames(load(stepper.slice))) == by_hand(by_query, 0, 2, range(4))
    comparer = MethodComparer([made, by_query], head=1, union="kv_head")
    for run, rows, packed in zip((made, by_query), ([1], [2, 3]), comparer.slices, strict=True):
        assert next(frames(load(packed))) == by_hand(run, 0, 2, rows)
    comparer.union = "layer"
    arrays = load(comparer.slices[1])
    assert arrays["attended"][0] == len(np.unique(by_query.indices(0, 2)[by_query.indices(0, 2) >= 0]))
    with pytest.raises(UnknownNameError, match="union of a DecodeStepper"):
        DecodeStepper(made, union="kv_head")
    with pytest.raises(UnknownNameError, match="union of a MethodComparer"):
        comparer.union = "heads"
    assert comparer.union == "layer"


@pytest.mark.parametrize("fields", [{"method": "quest"}, {"method": "centroidkv", "recent": 8}])
def test_the_explorer_shows_the_union_of_the_layer(fields):
    """Its tokens and parts agree with the union of a replay; recall, mass and the curve are means over the heads."""
    trace = made_trace(200)
    explorer = BudgetExplorer(trace, layer=3, budget=96, union="layer", **fields)
    made = replay(trace, queries=8, budget=96, **fields)
    (shown,), wanted = frames(load(explorer.slice)), by_hand(made, 7, 3, range(2))
    assert {place: found for place, found in shown.items() if found[0] != Verdict.UNMARKED} == wanted
    indices = made.indices(7, 3)
    assert explorer.highlighted().tolist() == np.unique(indices[indices >= 0]).tolist()
    parts, verdicts = explorer.numbers["parts"], [int(found[0]) for found in wanted.values()]
    sinks, recent = (round(getattr(made.ledgers[3], name)) for name in ("sinks", "recent"))
    assert (parts["sinks"], parts["recent"], parts["generated"]) == (sinks, recent, 8)
    chosen = [place for place, found in wanted.items() if found[0] == Verdict.AGREED and sinks <= place < 192 - recent]
    assert (parts["agreed"], parts["wasted"]) == (len(chosen), verdicts.count(Verdict.WASTED))
    assert parts["missed"] == verdicts.count(Verdict.MISSED)
    assert parts["merged"] == made.events[3].merged[7].sum()
    mass = np.mean([made.attention_mass(step, 3).mean() for step in range(8)])
    assert explorer.numbers["mass"] == pytest.approx(mass)
    assert explorer.numbers["recall"] == pytest.approx(np.mean([made.recall(step, 3).mean() for step in range(8)]))
    for _ in range(3):
        explorer._heard(explorer, {"kind": "curve"}, [])
    for budget, mass, *_ in explorer.curve["points"]:
        heads = explorer.explorer.point(3, budget=budget, **fields).attention_mass
        assert mass == pytest.approx(np.mean(heads))
        assert heads[0] != heads[1]
    again = eval(explorer.numbers["call"], {"kvviz": __import__("kvviz.widgets"), "trace": trace})
    assert (again.union, again.slice) == ("layer", explorer.slice)
    words = explorer.snapshot().alternative
    assert "union of all KV heads" in words
    assert "mean mass (all heads of the layer, all steps)" in words
    place = {"budget": 96, "layer": 3, "head": 1, "union": "none", "settings": {}}
    explorer._heard(explorer, {"kind": "show", "place": place}, [])
    assert explorer.slice == BudgetExplorer(trace, layer=3, head=1, budget=96, **fields).slice


def test_the_explorer_joins_query_heads_and_refuses_other_unions():
    trace = made_trace(200)
    explorer = BudgetExplorer(trace, method="quest", budget=96, group="each", head=3, union="kv_head")
    made = replay(trace, "quest", queries=8, budget=96, group="each")
    assert (explorer.page["unions"], explorer.page["per_kv_head"]) == (["layer", "kv_head"], 2)
    assert next(frames(load(explorer.slice))) == by_hand(made, 7, 3, [2, 3])
    with pytest.raises(UnknownNameError, match="union of a BudgetExplorer"):
        BudgetExplorer(trace, method="quest", budget=96, union="kv_head")
    with pytest.raises(UnknownNameError, match="union of a BudgetExplorer"):
        explorer.union = "heads"
    assert explorer.union == "kv_head"


def test_a_page_without_all_heads_has_no_unions():
    made = recording()
    data, slices = embedded(DecodeStepper(made, union="layer").to_html(heads=[1]))
    assert (data["union"], data["page"]["unions"], set(slices)) == ("none", [], {"2/1", "3/1"})
    data, _ = embedded(DecodeStepper(made, union="layer").to_html())
    assert (data["union"], data["page"]["unions"]) == ("layer", ["layer"])
    data, slices = embedded(DecodeStepper(of_query_heads(made), head=3, union="kv_head").to_html(layers=[2]))
    assert (data["head"], data["union"]) == (2, "kv_head")
    assert {"2/layer/0", "2/kv_head/0", "2/kv_head/2"} < set(slices)


@pytest.mark.browser
@browser_test
def test_the_map_picks_all_heads_and_the_text_says_how_many_attend(browser, tmp_path):
    made = recording(heads=3)
    DecodeStepper(made).to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        pick_head(page, 3, ALL)
        expect(page.locator(".kv-sheet code")).to_contain_text('layer=3, head=0, union="layer")')
        indices = made.indices(0, 3)
        assert attended(page) == sorted(set(indices[indices >= 0].tolist()))
        shown = by_hand(made, 0, 3, range(3))
        for position in [next(place for place, found in shown.items() if found[0] == kind) for kind in (0, 1, 3)]:
            page.locator(f"[data-position='{position}']").dispatch_event("pointerover", {"bubbles": True})
            tip = page.get_by_role("tooltip")
            verdict, heads, wanting, missed, wasted = shown[position]
            expect(tip).to_contain_text(f"attended by{heads} of 3 headsoracle of{wanting} of 3 heads")
            expect(tip).to_contain_text(f"missed by{missed} of 3 headswasted by{wasted} of 3 heads")
            expect(tip).to_contain_text({0: "agreed: a head", 1: "wasted: a head", 3: "missed: no head"}[int(verdict)])
        expect(page.locator(".kv-stats")).to_contain_text(f"mean recall{made.recall(0, 3).mean():.2f}")
        expect(page.locator(".kv-stats")).to_contain_text(f"mean mass{made.attention_mass(0, 3).mean():.2f}")
        expect(page.locator(".kv-recalled")).to_contain_text("clusters belong to one head")
        picked = page.locator(".kv-headcell[data-picked]")
        picked.press("ArrowUp")
        expect(page.locator(".kv-sheet code")).to_contain_text("layer=3, head=2)")
        expect_head(page, 3, 2)
        assert attended(page) == sorted(indices[2][indices[2] >= 0].tolist())
        pick_head(page, 3, 2)  # again: nothing is asked for
        assert page.locator("[data-busy]").count() == 0


@pytest.mark.browser
@browser_test
def test_the_comparer_joins_query_heads_of_a_kv_head(browser, tmp_path):
    made = recording()
    by_query = of_query_heads(made)
    MethodComparer({"kv": made, "query": by_query}).to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        pick_head(page, 2, "union of the query heads of KV head 1")
        expect(page.locator(".kv-sheet code")).to_contain_text('layer=2, head=1, union="kv_head")')
        for number, (run, rows) in enumerate([(made, [1]), (by_query, [2, 3])]):
            column = page.locator(".kv-column").nth(number)
            expect(column.locator(".kv-name-cell")).to_contain_text("union of 2 heads" if number else "one head")
            wanted = run.indices(0, 2)[rows]
            marked = column.locator(".kv-prompt .kv-attended").evaluate_all(
                "spans => spans.map(span => Number(span.dataset.position))"
            )
            assert marked == sorted({int(place) for place in wanted[wanted >= 0] if place < run.prompt_length})
        recall = page.locator(".kv-column").nth(1).locator(".kv-numbers").first
        assert recall.get_attribute("data-meaning").startswith("mean over the 2 heads of recall")
        pick_head(page, 2, ALL)
        expect(page.locator(".kv-column").nth(1).locator(".kv-name-cell")).to_contain_text("union of 4 heads")


@pytest.mark.browser
@browser_test
def test_the_explorer_picks_a_union_in_the_map(browser, tmp_path):
    explorer = BudgetExplorer(made_trace(200), method="quest", budget=96, layer=3)
    answers, positions = [], {}
    for union in ("none", "layer"):
        explorer.union = union
        positions[union] = explorer.highlighted().tolist()
        then = {"numbers": explorer.numbers, "slice": blob(explorer.slice, union), "curve": explorer.curve}
        answers.append(({"union": union}, then))
    shown = {"budget": 96, "layer": 3, "head": 0, "union": "none", "settings": {}, "page": explorer.page}
    self_contained("two answers", [Embedded("explorer", shown, answers)], tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        pick_head(page, 3, ALL)
        expect(page.locator(".kv-sheet code")).to_contain_text("head=0, union='layer'")
        expect_head(page, 3, ALL)
        assert attended(page) == positions["layer"] != positions["none"]
        numbers, figures = explorer.numbers, page.locator(".kv-explorer-numbers")
        expect(figures).to_contain_text(f"all heads of the layer, all stepsmean recall{numbers['recall']:.3f}")
        expect(figures).to_contain_text(f"mean mass{numbers['mass']:.3f}")
        expect(figures).to_contain_text(f"attended{len(positions['layer'])}")
        expect(page.locator(".kv-explorer-curve h3")).to_have_text(
            "mean attention mass, by budget all heads of the layer, all steps"
        )
        expect(page.locator(".kv-explorer-ledger h3")).to_contain_text("all heads of the layer, last step")
        expect(page.locator(".kv-legend").last).to_contain_text("union of 2 heads · strength: share of the heads")
        page.locator(f"[data-position='{positions['layer'][30]}']").dispatch_event("pointerover", {"bubbles": True})
        counts = next(frames(load(explorer.slice)))[positions["layer"][30]]
        expect(page.get_by_role("tooltip")).to_contain_text(
            f"attended by{counts[1]} of 2 headsoracle of{counts[2]} of 2"
        )
        pick_head(page, 3, 0)
        expect(figures).not_to_contain_text("mean recall")
        assert attended(page) == positions["none"]


@pytest.mark.browser
@browser_test
def test_a_page_of_a_union_offers_this_one_alone(browser, tmp_path):
    explorer = BudgetExplorer(made_trace(200), method="quest", budget=96, group="each", head=3, union="kv_head")
    page = explorer.to_html(tmp_path / "page.html")
    assert "for layer 3, union of the query heads of KV head 1." in page
    with opened(browser, tmp_path / "page.html") as page:
        expect_head(page, 3, "union of the query heads of KV head 1")
        assert page.locator(".kv-headcell:not([aria-disabled])").count() == 1
        page.get_by_role("slider", name="budget").press("ArrowRight")
        expect(page.locator(".kv-title")).to_contain_text("budget 128")
        expect(page.locator(".kv-explorer-numbers")).to_contain_text("this KV head, all stepsmean recall")


@pytest.mark.browser
@browser_test
def test_a_page_maps_all_layers_and_says_which_it_has(browser, tmp_path):
    made = recording(layers=(2, 3, 5))
    other = replace(made, method="quest")
    MethodComparer([made, other], layer=3).to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        assert page.locator(".kv-headcell").count() == 3 * (2 + 1)
        away = page.locator(".kv-headcell[aria-disabled=true]")
        assert away.count() == 2 * 3
        expect(page.locator(".kv-headnote")).to_contain_text("dashed: not in this page")
        said, line = page.locator(".kv-headsaid"), page.locator(".kv-sheet code")
        before = line.text_content()
        cell(page, 5, "KV head 1").click(force=True)  # it says that it is disabled
        elsewhere = "not in this page; to_html(layers=[…], heads=[…]) embeds it"
        expect(said).to_contain_text(re.compile(f"layer 5, KV head 1: .*{re.escape(elsewhere)}"))
        expect(page.get_by_role("tooltip")).to_contain_text(elsewhere)
        page.keyboard.press("ArrowLeft")  # the keys go on, to the head that has data
        expect_head(page, 3, 1)
        expect(line).to_contain_text("layer=3, head=1")
        page.keyboard.press("ArrowLeft")
        expect(said).to_contain_text("layer 2, KV head 1: ")
        expect(said).to_contain_text(elsewhere)
        expect_head(page, 3, 1)
        assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("layer 2, KV head 1")
        page.keyboard.press("Tab")
        expect(said).to_contain_text("layer 3, KV head 1: ")
        assert before != line.text_content()
        assert page.locator("[data-busy]").count() == 0
