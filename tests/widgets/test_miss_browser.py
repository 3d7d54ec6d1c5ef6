"""The miss inspector in a real Chromium, as a page without a kernel, and its checks without a browser."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from playwright.sync_api import expect

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.trace.diagnosis import Diagnosis
from kvviz.trace.outcomes import OUTCOMES
from kvviz.widgets import DecodeStepper, MethodComparer, MissInspector
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON, ROOT
from tests.browser.recordings import HOSTILE
from tests.synthetic import diagnosis, recording
from tests.tiny_models import letters_tokenizer, make, prompt
from tests.widgets.test_browser import ATTENDED, brightness, opened

browser_test = pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)
MARKS = dict(zip(OUTCOMES, "●·∅GSTC", strict=True))


@pytest.fixture
def page_of(browser, tmp_path):
    """A function that opens the page of an inspector."""

    def of(widget, *, beside=None, **options):
        path = tmp_path / "misses.html"
        widget.to_html(path, beside=beside)
        return opened(browser, path, **options)

    return of


def rows(d, **where):
    table = d.losses
    for name, value in where.items():
        table = table[table[name] == value]
    return table


@pytest.mark.browser
@browser_test
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_text_the_heads_and_the_journey_are_those_of_the_diagnosis(page_of, scheme):
    d = diagnosis()
    with page_of(MissInspector(d, layer=2, head=1, position=11, step=3), scheme=scheme) as page:
        assert page.locator(".kv-attended[data-position]").evaluate_all(ATTENDED) == [10, 11, 40]
        assert page.locator("[data-lit]").evaluate_all(ATTENDED) == [11]
        cells = page.locator(".kv-headcell")
        assert cells.count() == 6
        assert page.locator(".kv-headcell[data-smallest]").evaluate_all(
            "cells => cells.map(cell => cell.getAttribute('aria-label').split(':')[0])"
        ) == ["layer 3, KV head 0", "layer 2, KV head 1"]
        (row,) = rows(d, layer=2, head=1, position=11, step=3).itertuples()
        expect(page.locator(".kv-verdict strong")).to_contain_text(row.stage)
        expect(page.locator(".kv-stage").first).to_contain_text(f"rank {row.exact_rank}")
        marks = page.locator(".kv-steprow button").all_inner_texts()
        assert marks == [MARKS[stage] for stage in rows(d, layer=2, head=1, position=11)["stage"]]
        expect(page.locator(".kv-causes")).to_contain_text("badly grouped−1.60")
        answers = page.locator(".kv-answers").inner_text()
        assert "2 heads restored" in answers
        assert "1 of 2 give the answer · −8.50, −7.50" in answers
        expect(page.locator("h2")).to_contain_text("full attention −1.00, here −9.00")
        background, text = brightness(page, ".kvviz", "backgroundColor"), brightness(page, ".kvviz", "color")
        assert (background > 200 > 100 > text) if scheme == "light" else (background < 60 < 180 < text)


@pytest.mark.browser
@browser_test
def test_keys_and_clicks_pick_steps_heads_and_tokens(page_of):
    d = diagnosis()
    with page_of(MissInspector(d, layer=2, head=1, position=11, step=3)) as page:
        line = page.locator(".kv-sheet code")
        page.locator(".kv-prompt .kv-panel").press("ArrowRight")
        expect(line).to_have_text("kvviz.widgets.MissInspector(diagnosis, layer=2, head=1, position=11, step=4)")
        page.locator(".kv-headcell[data-picked]").press("ArrowLeft")
        expect(line).to_contain_text("layer=1, head=1, position=11, step=4")
        page.locator(".kv-headcell[data-picked]").press("ArrowUp")
        page.locator(".kv-headcell[data-picked]").press("ArrowUp")  # there is no head above
        expect(line).to_contain_text("layer=1, head=0")
        page.locator("[data-position='40']").click()
        expect(line).to_contain_text("position=40")
        page.locator("[data-position='20']").click()  # no evidence
        expect(line).to_contain_text("position=40")
        page.locator(".kv-headcell").nth(2).click()
        expect(line).to_contain_text("layer=3, head=0")
        page.locator(".kv-steprow button").nth(0).click()
        expect(line).to_contain_text("step=0")
        (row,) = rows(d, layer=3, head=0, position=40, step=0).itertuples()
        expect(page.locator(".kv-verdict strong")).to_contain_text(row.stage)
        expect(page.locator(".kv-headsaid")).to_contain_text("grouping exact")


@pytest.mark.browser
@browser_test
def test_without_a_kernel_the_buttons_show_what_the_diagnosis_knows(page_of):
    d = diagnosis()
    with page_of(MissInspector(d, layer=2, head=1, position=11, step=3)) as page:
        said = page.locator(".kv-answers [role=status]")
        gained = d.restored.query("layer == 2 and head == 1 and stage == 'all'")["logprob"].item()
        page.get_by_role("button", name="let the picked head").click()
        expect(said).to_contain_text("layer 2, head 1 restored")
        expect(said).to_contain_text(f"{-9 + gained:.2f}".replace("-", "−"))
        expect(page.locator(".kv-headcell[data-restored]")).to_have_count(1)
        settings = page.locator("summary").get_by_text("Changes")
        settings.click()
        page.get_by_role("button", name="let every head").click()
        expect(said).to_contain_text(" at 11 pinned: −7.00")
        expect(page.get_by_role("button", name="let no head")).to_be_hidden()  # the sheet does not cover the answer
        settings.press("Enter")
        page.get_by_role("button", name="let no head").click()
        expect(said).to_contain_text("dropped: −5.00 · with full attention")
        settings.press("Enter")
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        expect(said).to_contain_text("none yet")
        controls = "button:visible, input:visible, select:visible, summary:visible"
        of_pictures = page.locator(".kv-headcell, .kv-steprow button").count()
        assert page.locator(".kvviz").locator(controls).count() - of_pictures == 7


@pytest.mark.browser
@browser_test
def test_tokens_are_not_markup_and_rows_of_query_heads_are_told_apart(page_of):
    words = [HOSTILE[at % len(HOSTILE)] for at in range(60)]
    d = diagnosis(words, per_query_head=True)
    with page_of(MissInspector(d, layer=1, head=1, position=40, step=2)) as page:
        assert page.locator(".kvviz img, .kvviz script, .kvviz b").count() == 0
        assert page.locator("[data-position]").evaluate_all("spans => spans.map(s => s.textContent)") == words[:53]
        verdicts = page.locator(".kv-verdict strong").all_inner_texts()
        stages = rows(d, layer=1, head=1, position=40, step=2)["stage"].tolist()
        assert [verdict.split(":")[0] for verdict in verdicts] == [f"query head {at}" for at in (3, 4, 5)]
        assert all(stage in verdict for stage, verdict in zip(stages, verdicts, strict=True))
        page.set_viewport_size({"width": 500, "height": 900})
        prompt_box, heads = (page.locator(name).bounding_box() for name in (".kv-prompt", ".kv-heads"))
        assert heads["y"] >= prompt_box["y"] + prompt_box["height"]


def test_it_opens_at_a_lost_token_of_the_head_that_brings_back_most():
    d = diagnosis()
    widget = MissInspector(d)
    heads = d.restored.query("stage == 'all' and layer >= 0").sort_values("logprob")
    assert (widget.layer, widget.head) == tuple(heads.iloc[-1][["layer", "head"]])
    row = rows(d, layer=widget.layer, head=widget.head, position=widget.position, step=widget.step)
    assert row["stage"].item() not in ("attended", "not wanted")


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"layer": 0}, "layer of a MissInspector: got 0; wanted one of 1, 2, 3"),
        ({"head": 2}, "a whole number from 0 to 1"), ({"step": 6}, "a whole number from 0 to 5"),
        ({"position": 12}, "wanted one of 10, 11, 40"),
    ],
)  # fmt: skip
def test_places_outside_the_diagnosis_are_refused(values, wanted):
    with pytest.raises(InvalidInputError, match=wanted):
        MissInspector(diagnosis(), **values)
    widget = MissInspector(diagnosis())
    (name,) = values
    with pytest.raises(InvalidInputError, match=wanted):
        setattr(widget, name, values[name])


def test_other_input_is_refused():
    with pytest.raises(InvalidInputError, match=r"got list; wanted a kvviz\.Diagnosis"):
        MissInspector([])
    d = diagnosis()
    with pytest.raises(InvalidInputError, match="a diagnosis without losses"):
        MissInspector(dataclasses.replace(d, losses=d.losses[:0]))
    with pytest.raises(InvalidInputError, match="wanted the diagnosed one, synthetic"):
        MissInspector(d, kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="another"))
    with pytest.raises(InvalidInputError, match="changes of a MissInspector"):
        MissInspector(d).changes = [{"kind": "restore", "layer": 1}]


def test_it_follows_a_stepper_and_a_comparer_of_the_same_prompt():
    d = diagnosis()
    prompt_tokens = d.tokens[: d.prompt_length]
    made = recording(prompt_length=53, steps=6, layers=(2, 3), tokens=d.tokens[:59])
    inspector = MissInspector(d, layer=1, head=0, position=10, step=0)
    stepper = DecodeStepper(made, layer=3, head=1, step=2)
    assert stepper.recording.tokens[:53] == prompt_tokens
    inspector.follow(stepper)
    assert (inspector.layer, inspector.head, inspector.step, inspector.position) == (3, 1, 2, 10)
    stepper.token, stepper.step = 40, 5
    assert (inspector.position, inspector.step) == (40, 5)
    stepper.token = 12  # no evidence
    assert inspector.position == 40
    comparer = MethodComparer([made, made.replace(method="snapkv")], layer=2, head=0, token=11)
    inspector.follow(comparer)
    assert (inspector.layer, inspector.head, inspector.position) == (2, 0, 11)
    per_query_head = recording(prompt_length=53, steps=6, layers=(2,), heads=6, tokens=d.tokens[:59])
    events = dataclasses.replace(per_query_head.events[2], merged=np.zeros((6, 2), np.int32))
    per_query_head = per_query_head.replace(geometry=d.geometry, events={2: events})
    inspector.follow(DecodeStepper(per_query_head, head=5))
    assert inspector.head == 1
    with pytest.raises(InvalidInputError, match=r"MissInspector\.follow: got a widget of another prompt"):
        inspector.follow(DecodeStepper(recording(prompt_length=53, tokens=["x"] * 59)))


@pytest.mark.browser
@browser_test
@pytest.mark.parametrize("columns", [1, 2])
def test_in_a_page_without_a_kernel_it_follows_the_widget_above(page_of, columns):
    d = diagnosis()
    made = recording(prompt_length=55, steps=4, layers=(2, 3), tokens=d.tokens[:59])  # without the first two steps
    inspector = MissInspector(d, layer=1, head=0, position=10, step=0)
    if columns == 1:
        beside = DecodeStepper(made, layer=3, head=1, step=1)
    else:
        beside = MethodComparer([made, made.replace(method="snapkv")], layer=3, head=1, step=1)
    with page_of(inspector, beside=beside) as page:
        line = page.locator(".kv-misses .kv-sheet code")
        token = "layer=3, head=1, position={}, step={})"
        expect(line).to_contain_text(token.format(10, 3))
        above = page.locator(".kv-stepper, .kv-comparer")
        above.locator("[data-position='40']").first.click()
        expect(line).to_contain_text(token.format(40, 3))
        above.locator("[data-position='12']").first.click()  # no evidence
        above.locator("[data-position='12']").first.press("ArrowRight")
        expect(line).to_contain_text(token.format(40, 4))
        page.locator(".kv-misses .kv-headcell[data-picked]").press("ArrowLeft")  # it can be led elsewhere by itself
        expect(line).to_contain_text("layer=2, head=1, position=40, step=4")
        above.locator("[data-position='11']").first.click()
        expect(line).to_contain_text("layer=2, head=1, position=11, step=4")
    with pytest.raises(InvalidInputError, match=r"MissInspector\.to_html: got a widget of another prompt"):
        inspector.to_html(beside=DecodeStepper(recording(prompt_length=53, tokens=["x"] * 59)))


def test_changes_are_decoded_again_with_the_model():
    """The numbers are those of `kvviz.score` with the same edit."""
    tiny = kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")
    answer = kvviz.generate(tiny, prompt(150), "full", question=" what? ", max_new_tokens=4).text
    method = kvviz.methods.create("clusterkv", budget=60, dense_layers=0)
    d = kvviz.diagnose(tiny, prompt(150), answer, method, question=" what? ", evidence=[40, 77], controls=0)
    widget = MissInspector(d, tiny)
    widget.changes = [{"kind": "restore", "layer": 3, "head": 1}, {"kind": "pin", "position": 40}]
    edit = kvviz.exact([3], [1]) | kvviz.pin(40, budget="extra")
    score = kvviz.score(tiny, prompt(150), answer, method, question=" what? ", edit=edit)
    assert widget.result["logprob"] == pytest.approx(score.total, abs=1e-5)
    assert widget.result["answered"] == score.answered
    out = kvviz.generate(tiny, prompt(150), method, question=" what? ", edit=edit, max_new_tokens=8)
    assert widget.result["text"] == out.text
    other = dataclasses.replace(d, full=dataclasses.replace(d.full, logprobs=d.full.logprobs - 1))
    refused = MissInspector(other, tiny)
    refused.changes = [{"kind": "pin", "position": 40}]
    assert "full attention gives the answer log-probability" in refused.result["refusal"]
    widget.changes = []
    assert widget.result["logprob"] == pytest.approx(d.method.total, abs=1e-5)
    widget.changes = [{"kind": "pin", "position": 40}, {"kind": "drop", "position": 40}]
    assert "pinned and dropped" in widget.result["refusal"]


def test_a_narrow_page_shows_the_picked_step(browser, tmp_path):
    found = Diagnosis.load(ROOT / "data" / "diagnoses" / "misses-quest.safetensors")
    MissInspector(found).to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html", width=390) as page:
        slider, picked = page.get_by_role("slider", name="decode step"), page.locator(".kv-steprow [data-picked]")
        assert page.locator(".kv-steprow").evaluate("row => row.scrollWidth > row.clientWidth")
        for key in (None, "Home", "End"):
            if key:
                slider.press(key)
            expect(picked).to_be_in_viewport(ratio=1)
