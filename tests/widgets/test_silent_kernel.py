"""Widgets whose kernel does not answer: they go back to what they show, and say so."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from kvviz.widgets import BudgetExplorer, ClusterInspector, DecodeStepper, MethodComparer, MissInspector, assets
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON, empty_lab, run_cell
from tests.browser.picking import expect_head, pick_head
from tests.generation.test_explore import made_trace
from tests.generation.test_explore_clusters import made_trace as clustered_trace
from tests.synthetic import diagnosis, recording

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]

# A model that takes what the widget says and answers nothing, until `window.answer()` sends the first values again.
SILENT = """async ([script, state, answers]) => {
    const read = (value) => Array.isArray(value) ? value.map(read)
        : value?.base64 === undefined ? value : new DataView(Uint8Array.fromBase64(value.base64).buffer);
    const values = Object.fromEntries(Object.entries(state).map(([name, value]) => [name, read(value)]));
    const events = new EventTarget();
    window.kernel = { status: "unknown" };
    window.sent = [];
    const model = {
        widget_manager: { kernel: window.kernel },
        get: (name) => values[name],
        set: (name, value) => values[name] = value,
        save_changes() {},
        send: (message) => window.sent.push(message),
        on: (event, react) => events.addEventListener(event, react),
        off: (event, react) => events.removeEventListener(event, react),
    };
    window.answer = () => {
        for (const [name, value] of Object.entries(answers)) values[name] = read(value);
        for (const name of Object.keys(answers)) events.dispatchEvent(new Event(`change:${name}`));
    };
    const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    (await import(url)).default.render({ model, el: document.querySelector("main") });
}"""
TWO = """
from kvviz.widgets import BudgetExplorer, DecodeStepper
from tests.generation.test_explore import made_trace
from tests.synthetic import recording
display(DecodeStepper(recording()), BudgetExplorer(made_trace(200), method="quest", budget=96))
"""
BUSY = "The kernel is busy. Its answer is shown as soon as it comes."
STOPPED = "If the kernel has stopped, run the cell again."


def made_misses():
    """A MissInspector as with a language model."""
    made = MissInspector(diagnosis())
    made.page = made.page | {"live": True}
    return made


# The widget, its layer, and the traits that a kernel sets in answer to another head.
WIDGETS = {
    "stepper": (lambda: DecodeStepper(recording()), 2, ["slice"]),
    "comparer": (lambda: MethodComparer([recording(), recording(seed=5)]), 2, ["slices"]),
    "explorer": (
        lambda: BudgetExplorer(made_trace(200), method="quest", budget=96), 3, ["slice", "curve", "numbers"],
    ),
    "inspector": (lambda: ClusterInspector(clustered_trace(400), n_clusters=8), None, ["places", "clusters"]),
}  # fmt: skip


def packed(values):
    def read(value):
        if isinstance(value, bytes | memoryview):
            return {"base64": base64.b64encode(value).decode()}
        return [read(each) for each in value] if isinstance(value, list) else value

    return {name: read(value) for name, value in values.items()}


def opened(browser, widget, answers):
    """A page with the widget, whose clock the test moves; errors fail the test."""
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.clock.install()
    page.set_content(f"<style>{assets.STYLE.read_text()}</style><main></main>")
    state = {name: getattr(widget, name) for name in widget.keys if not name.startswith(("_view", "_model"))}
    state = {name: value for name, value in packed(state).items() if is_plain(value)}
    page.evaluate(SILENT, [assets.SCRIPT.read_text(), state, packed(answers)])
    return page, errors


def is_plain(value):
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def choose(page, layer, head):
    """Pick a KV head on the map, or in the inspector's drop-down."""
    if layer is None:
        picker = page.get_by_label("KV head", exact=True)
        picker.evaluate("node => node.closest('details')?.setAttribute('open', '')")
        picker.select_option(str(head))
    else:
        pick_head(page, layer, head)


def expect_chosen(page, layer, head):
    if layer is None:
        expect(page.get_by_label("KV head", exact=True)).to_have_value(str(head))
    else:
        expect_head(page, layer, head)


@pytest.mark.parametrize("name", WIDGETS)
def test_a_picker_goes_back_and_says_what_to_do(browser, name):
    make, layer, traits = WIDGETS[name]
    widget, answering = make(), make()
    answering.head = 1
    page, errors = opened(browser, widget, {trait: getattr(answering, trait) for trait in traits} | {"head": 1})
    line = page.locator(".kv-sheet code")
    words = page.locator(".kv-silent")
    shown = line.text_content()
    page.clock.run_for(1000)

    choose(page, layer, 1)
    page.clock.run_for(3000)  # longer than an answer takes
    expect_chosen(page, layer, 1)
    expect(words).to_be_hidden()

    page.clock.run_for(7000)
    expect(words).to_be_visible()
    expect(words).to_contain_text(STOPPED)
    expect_chosen(page, layer, 0)
    assert line.text_content() == shown
    assert page.locator("[data-busy]").count() == 0

    choose(page, layer, 1)  # it asks again; this answer comes late, after the words
    page.clock.run_for(10_000)
    expect(words).to_be_visible()
    page.evaluate("() => window.answer()")
    expect(words).to_be_hidden()
    expect_chosen(page, layer, 1)
    assert line.text_content() != shown
    page.clock.run_for(20_000)
    expect(words).to_be_hidden()
    assert errors == []
    page.close()


@pytest.mark.parametrize("name", WIDGETS)
def test_a_widget_waits_for_a_busy_kernel_and_not_for_one_that_dies(browser, name):
    make, layer, traits = WIDGETS[name]
    widget, answering = make(), make()
    answering.head = 1
    page, errors = opened(browser, widget, {trait: getattr(answering, trait) for trait in traits} | {"head": 1})
    words = page.locator(".kv-silent")
    page.clock.run_for(1000)
    for answers in (True, False):
        page.evaluate("() => { window.kernel.status = 'busy'; }")
        choose(page, layer, 1 if answers else 0)
        page.clock.run_for(60_000)
        expect(words).to_have_text(BUSY)
        expect_chosen(page, layer, 1 if answers else 0)
        page.evaluate("() => { window.kernel.status = 'dead'; }")
        if answers:
            page.evaluate("() => window.answer()")
            expect(words).to_be_hidden()
        page.clock.run_for(10_000)
        expect_chosen(page, layer, 1)
    expect(words).to_contain_text(STOPPED)
    assert errors == []
    page.close()


def test_a_change_behind_a_slow_point_of_the_curve_is_not_lost(browser):
    page, _ = opened(browser, WIDGETS["explorer"][0](), {})
    page.clock.run_for(1000)
    pick_head(page, 3, 1)
    assert [message["kind"] for message in page.evaluate("window.sent")] == ["curve"]
    page.clock.run_for(10_000)
    assert [message.get("place", {}).get("head") for message in page.evaluate("window.sent")] == [None, 1]
    page.close()


def test_the_miss_inspector_waits_longer_and_counts_an_unanswered_change_as_not_made(browser):
    result = {"changes": [{"kind": "pin", "position": 10}], "logprob": -2.5, "answered": False, "text": "late"}
    page, errors = opened(browser, made_misses(), {"result": result, "changes": result["changes"]})
    words, said = page.locator(".kv-silent"), page.locator(".kv-answers [role=status]")
    pin = page.get_by_role("button", name="let every head")
    before = said.text_content()
    page.locator("summary").get_by_text("Changes").click()
    pin.click()
    page.clock.run_for(20_000)
    expect(words).to_be_hidden()  # the first change prefills the prompt
    page.clock.run_for(15_000)
    expect(words).to_contain_text(STOPPED)
    assert said.text_content() == before
    assert page.locator("[data-busy]").count() == 0
    page.evaluate("() => window.answer()")
    expect(words).to_be_hidden()
    expect(said).to_contain_text("late")
    assert errors == []
    page.close()


@pytest.mark.slow
def test_a_killed_kernel_in_jupyterlab(browser, tmp_path):
    logged = pytest.raises(AssertionError, match="Cannot send")  # JupyterLab's error, which `empty_lab` collects
    with logged, empty_lab(browser, tmp_path) as lab:
        run_cell(lab, TWO)
        stepper, explorer = lab.locator(".kv-stepper"), lab.locator(".kv-explorer")
        line = stepper.locator(".kv-sheet code")
        pick_head(stepper, 2, 1)
        expect(line).to_contain_text("head=1")
        slider = explorer.get_by_role("slider", name="budget")
        budget = slider.get_attribute("aria-valuetext")

        lab.evaluate("() => window.jupyterapp.serviceManager.sessions.shutdownAll()")
        pick_head(stepper, 2, 0)
        slider.press("ArrowRight")
        for widget in (stepper, explorer):
            expect(widget.locator(".kv-silent")).to_contain_text(STOPPED, timeout=60_000)
        expect_head(stepper, 2, 1)
        expect(line).to_contain_text("head=1")
        assert slider.get_attribute("aria-valuetext") == budget
        if shots := os.environ.get("KVVIZ_SCREENSHOTS"):  # to look at them
            lab.screenshot(path=Path(shots) / "silent_kernel.png")
        stepper.get_by_role("slider", name="decode step").press("ArrowRight")  # needs no kernel
        expect(line).to_contain_text("step=1")


@pytest.mark.slow
def test_a_busy_kernel_in_jupyterlab(browser, tmp_path):
    # In a subshell, which JupyterLab may have asked for in time or not, a widget's message need not wait for the cell.
    one_shell = {"kernels-settings": {"commsOverSubshells": "disabled"}}
    with empty_lab(browser, tmp_path, settings=one_shell) as lab:
        run_cell(lab, TWO)
        explorer = lab.locator(".kv-explorer")
        line, words = explorer.locator(".kv-sheet code"), explorer.locator(".kv-silent")
        busy = "import pathlib, time\nwhile not pathlib.Path('done').exists(): time.sleep(0.1)"
        lab.evaluate(
            "code => { window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute({ code }); }",
            busy,
        )
        explorer.get_by_role("slider", name="budget").press("ArrowRight")
        expect(words).to_have_text(BUSY)
        if shots := os.environ.get("KVVIZ_SCREENSHOTS"):
            explorer.screenshot(path=Path(shots) / "busy_kernel.png")
        expect(line).to_contain_text("budget=96")
        (tmp_path / "work" / "done").touch()
        expect(line).not_to_contain_text("budget=96")
        expect(words).to_be_empty()
