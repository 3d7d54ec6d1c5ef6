"""Widgets in a real JupyterLab, where page and kernel follow each other."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON, empty_lab, run_cell, set_theme
from tests.browser.picking import pick_head
from tests.generation.test_explore import made_trace as explored_trace
from tests.generation.test_explore_clusters import made_trace as clustered_trace
from tests.synthetic import recording
from tests.widgets.test_browser import ATTENDED, attended, brightness, recorded
from tests.widgets.test_comparer_browser import attended as in_column
from tests.widgets.test_comparer_browser import in_prompt
from tests.widgets.test_explorer_browser import replayed, waited
from tests.widgets.test_inspector_browser import SLIDER, chosen, members
from tests.widgets.test_widget_input import hostile_tokens
from tests.widgets.test_widget_input_browser import TEXT, TURNED

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]

STEPPER = """
import ipywidgets
from kvviz.widgets import DecodeStepper
from tests.synthetic import recording
stepper, said = DecodeStepper(recording()), ipywidgets.Label("nothing yet")
def heard(change):
    said.value = f"{change['name']} {change['new']}: {stepper.highlighted().tolist()}"
    if stepper.step == 3: stepper.layer = 3
stepper.observe(heard, ["step", "layer", "head", "union", "token"])
ipywidgets.VBox([stepper, said])
"""
STRIP_AND_MATRIX = """
import ipywidgets, numpy as np
from kvviz.widgets import CanvasMatrix, TokenStrip, view
strip, matrix = TokenStrip(["a", " <b>b</b>", " c"]), CanvasMatrix(np.arange(200, dtype=np.uint8).reshape(10, 20))
strip.paint(np.array([255, 5, 255], np.uint8), np.array([0, view.ATTENDED, view.ORACLE], np.uint8))
said = ipywidgets.Label("nothing yet")
def heard(change):
    said.value = f"{strip.clicked} {matrix.clicked}"
    strip.paint(np.full(3, 9, np.uint8), np.full(3, view.ATTENDED, np.uint8))
strip.observe(heard, "clicked"); matrix.observe(heard, "clicked")
ipywidgets.VBox([strip, matrix, said])
"""
COMPARER = """
import ipywidgets
from kvviz.widgets import MethodComparer
from tests.synthetic import recording
comparer = MethodComparer([recording(), recording(seed=5).replace(method="quest")])
said = ipywidgets.Label("nothing yet")
def heard(change):
    said.value = f"{change['name']} {change['new']}"
    if comparer.step == 3 and comparer.token < 0: comparer.layer, comparer.token = 3, 100
    if comparer.sort == "recall": comparer.step = 5
comparer.observe(heard, ["step", "layer", "head", "token", "sort"])
ipywidgets.VBox([comparer, said])
"""
EXPLORER = """
import ipywidgets
from kvviz.widgets import BudgetExplorer
from tests.generation.test_explore import made_trace
explorer, said = BudgetExplorer(made_trace(200), method="quest", budget=96), ipywidgets.Label("nothing yet")
def heard(change):
    said.value = f"heard {change['name']} {change['new']}"
explorer.observe(heard, ["budget", "settings"])
again = ipywidgets.Button(description="set it from Python")
again.on_click(lambda _: explorer.show(budget=64, page_size=8, head=1))
ipywidgets.VBox([explorer, said, again])
"""
INSPECTOR = """
import ipywidgets
from kvviz.widgets import ClusterInspector
from tests.generation.test_explore_clusters import made_trace
inspector, said = ClusterInspector(made_trace(400), n_clusters=8, token=100), ipywidgets.Label("nothing yet")
def heard(change):
    said.value = f"{change['name']} {change['new']}: {len(inspector.members())}"
    if inspector.n_clusters == 9 and inspector.metric == "cosine": inspector.metric = "l2"
inspector.observe(heard, ["n_clusters", "metric", "head", "seed", "token"])
ipywidgets.VBox([inspector, said])
"""
MISSES = """
import ipywidgets, kvviz
from kvviz.widgets import MissInspector
from tests.tiny_models import letters_tokenizer, make, prompt
tiny = kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")
answer = kvviz.generate(tiny, prompt(150), "full", question=" what? ", max_new_tokens=4).text
method = kvviz.methods.create("clusterkv", budget=60, dense_layers=0)
found = kvviz.diagnose(tiny, prompt(150), answer, method, question=" what? ", evidence=[40, 77], controls=0)
misses, said = MissInspector(found, tiny, layer=3, head=0, position=40), ipywidgets.Label("nothing yet")
def heard(change):
    said.value = f"{change['name']} {change['new']}"
    if misses.step == 3: misses.layer = 2
misses.observe(heard, ["step", "layer", "head", "position", "changes"])
ipywidgets.VBox([misses, said])
"""
HOSTILE_WIDGETS = """
from IPython.display import display
from tests.widgets.test_widget_input import hostile_tokens, widgets
for widget in widgets(hostile_tokens(200)).values():
    display(widget)
"""


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """A notebook for `run_cell`; all tests share its server, page and kernel, which take seconds to start."""
    one_thread = {"OMP_NUM_THREADS": "1"}  # on a busy machine, torch's threads wait seconds for each other
    with empty_lab(browser, tmp_path_factory.mktemp("lab"), one_thread) as page:
        yield page


def check_themes(lab, widget):
    """The widget follows JupyterLab's theme, which is light again at the end."""
    for theme, is_dark in (("JupyterLab Dark", True), ("JupyterLab Light", False)):
        set_theme(lab, theme)
        expect(lab.locator(widget)).to_have_attribute("data-theme", "dark" if is_dark else "light")
        assert (brightness(lab, widget, "backgroundColor") < 100) == is_dark
        assert (brightness(lab, widget, "color") > 150) == is_dark


def test_the_stepper_works_in_jupyterlab(lab):
    made = recording()
    run_cell(lab, STEPPER)
    stepper = lab.locator(".kv-stepper")
    expect(stepper.locator(".kv-attended[data-position]").first).to_be_visible()
    assert attended(stepper) == recorded(made, 0)

    slider = stepper.get_by_role("slider", name="decode step")
    slider.press("ArrowRight")
    assert attended(stepper) == recorded(made, 1) != recorded(made, 0)
    expect(lab.get_by_text(f"step 1: {recorded(made, 1)}")).to_be_visible()  # the kernel follows the page
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    expect(stepper.locator(".kv-sheet code")).to_contain_text("step=3, layer=3, head=0")  # and the page follows it
    assert attended(stepper) == recorded(made, 3, layer=3)
    pick_head(stepper, 3, 1)
    expect(stepper.locator(".kv-sheet code")).to_contain_text("layer=3, head=1")
    assert attended(stepper) == recorded(made, 3, layer=3, head=1)

    slider.press("/")
    lab.keyboard.type("word31")  # "o" and "1" are shortcuts of JupyterLab
    expect(stepper.locator(".kv-found")).to_have_text("match 1 of 1, position 31")
    pick_head(stepper, 3, "union of all KV heads")
    expect(stepper.locator(".kv-sheet code")).to_contain_text('layer=3, head=1, union="layer")')
    expect(lab.get_by_text(re.compile("^union layer: "))).to_be_visible()  # the kernel follows this too
    both = made.indices(3, 3)
    assert attended(stepper) == sorted(set(both[both >= 0].tolist()))

    stepper.locator(".kv-prompt [data-position='7']").click()
    expect(lab.get_by_text(re.compile("^token 7: "))).to_be_visible()
    check_themes(lab, ".kv-stepper")


def test_the_strip_and_the_matrix_work_in_jupyterlab(lab):
    run_cell(lab, STRIP_AND_MATRIX)
    strip = lab.locator(".kv-alone .kv-strip")
    expect(strip.locator("[data-position]")).to_have_count(3)
    assert strip.locator("[data-position]").all_text_contents() == ["a", " <b>b</b>", " c"]
    assert strip.locator(".kv-attended").all_text_contents() == [" <b>b</b>"]
    strip.locator("[data-position='2']").click()
    expect(lab.get_by_text("2 [-1, -1]")).to_be_visible()
    expect(strip.locator(".kv-attended")).to_have_count(3)
    canvas = lab.locator(".kv-alone canvas")
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] * 5.5 / 20, "y": box["height"] * 2.5 / 10})
    expect(lab.get_by_text("2 [2, 5]")).to_be_visible()


def test_the_comparer_works_in_jupyterlab(lab):
    runs = [recording(), recording(seed=5)]
    run_cell(lab, COMPARER)
    expect(lab.locator(".kv-comparer .kv-agreed[data-position]").first).to_be_visible()
    assert [in_column(lab, 0), in_column(lab, 1)] == [in_prompt(made, 0) for made in runs]
    slider = lab.get_by_role("slider", name="decode step")
    slider.press("ArrowRight")
    expect(lab.get_by_text("step 1", exact=True)).to_be_visible()  # the kernel follows the page
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    code = lab.locator(".kv-sheet code")
    expect(code).to_contain_text("step=3, layer=3, head=0, token=100")  # and the page follows the kernel
    assert lab.locator("[data-lit]").evaluate_all(ATTENDED) == [100, 100]
    canvas = lab.locator(".kv-map canvas").first
    canvas.click(position={"x": 40, "y": canvas.bounding_box()["height"] * 3.5 / 6})
    expect(code).not_to_contain_text("token=100")
    clicked = lab.locator("[data-lit]").evaluate_all(ATTENDED)[0]
    expect(lab.get_by_text(f"token {clicked}", exact=True)).to_be_visible()  # the kernel follows this too
    pick_head(lab, 3, 1)
    expect(code).to_contain_text("layer=3, head=1")
    assert [in_column(lab, 0), in_column(lab, 1)] == [in_prompt(made, 3, 3, 1) for made in runs]
    lab.get_by_label("sort by").select_option("recall")
    expect(code).to_contain_text(re.compile(r'step=5, layer=3, head=1, token=\d+, sort="recall"\)'))
    check_themes(lab, ".kv-comparer")


def test_the_explorer_works_in_jupyterlab(lab):
    trace = explored_trace(200)
    run_cell(lab, EXPLORER)
    explorer = lab.locator(".kv-explorer")
    waited(explorer, replayed(trace, 96)[0])
    expect(explorer.locator(".kv-curve-dot")).to_have_count(5)  # the curve comes without a request
    explorer.get_by_role("slider", name="budget").press("ArrowRight")
    expect(lab.get_by_text("heard budget 112")).to_be_visible()
    waited(explorer, replayed(trace, 112)[0])
    explorer.get_by_role("slider", name="page size").press("End")
    expect(explorer.locator(".kv-explorer-refusal")).to_contain_text("at least 384 tokens")
    explorer.get_by_role("slider", name="page size").press("Home")
    waited(explorer, replayed(trace, 112, page_size=4)[0])
    explorer.locator(".kv-headcell[data-picked]").press("ArrowDown")  # a shortcut in JupyterLab
    waited(explorer, replayed(trace, 112, page_size=4, head=1)[0])
    lab.get_by_role("button", name="set it from Python").click()
    waited(explorer, replayed(trace, 64, page_size=8, head=1)[0])
    expect(explorer.get_by_role("slider", name="budget")).to_have_attribute("aria-valuetext", "64")
    check_themes(lab, ".kv-explorer")


def test_the_inspector_works_in_jupyterlab(lab):
    trace = clustered_trace(400)
    run_cell(lab, INSPECTOR)
    inspector = lab.locator(".kv-inspector")
    title, slider = inspector.locator("h2"), inspector.get_by_role("slider", name=SLIDER)
    expect(title).to_contain_text("in 8 clusters")
    assert chosen(inspector) == members(trace, 100, n_clusters=8)
    slider.press("ArrowRight")  # the kernel follows the lab, and the page the kernel
    expect(title).to_contain_text("in 9 clusters · l2 · seed 0")
    assert chosen(inspector) == members(trace, 100, n_clusters=9, metric="l2")
    inspector.locator('.kv-headcell[aria-label^="layer 2, KV head 1:"]').click()
    expect(inspector.get_by_label("KV head", exact=True)).to_have_value("1")
    inspector.get_by_text("Settings", exact=True).click()
    inspector.get_by_label("seed").fill("7")
    inspector.get_by_label("seed").press("Enter")
    expect(title).to_contain_text("in 9 clusters · l2 · seed 7 · layer 2, KV head 1")
    expected = members(trace, 100, n_clusters=9, metric="l2", head=1, seed=7)
    assert chosen(inspector) == expected
    for _ in range(6):
        slider.press("ArrowRight")  # faster than the clustering: only the last one counts
    expect(title).to_contain_text("in 15 clusters")
    assert chosen(inspector) == members(trace, 100, n_clusters=15, metric="l2", head=1, seed=7)
    keys = inspector.get_by_role("application")
    keys.press("ArrowLeft")
    keys.press("Enter")
    expect(lab.get_by_text(re.compile(rf"^token \d+: {len(chosen(inspector))}$"))).to_be_visible()
    assert chosen(inspector) != members(trace, 100, n_clusters=15, metric="l2", head=1, seed=7)
    inspector.get_by_label("map", exact=True).select_option("query")
    expect(inspector.locator(".kv-keys .kv-axis").first).to_contain_text("direction of the query at step 31")
    keys.press("Escape")
    inspector.locator(".kv-prompt .kv-panel").press("ArrowLeft")  # the kernel sends the map of the step
    expect(inspector.locator(".kv-keys .kv-axis").first).to_contain_text("direction of the query at step 30")
    inspector.get_by_label("groups", exact=True).select_option("pages")
    expect(title).to_contain_text("in 23 pages · layer 2, KV head 1")
    inspector.get_by_label("page size", exact=True).select_option("32")
    expect(title).to_contain_text("in 11 pages")
    inspector.get_by_label("groups", exact=True).select_option("clusters")
    expect(title).to_contain_text("in 15 clusters")
    inspector.locator(".kv-rankbar").first.click()  # which closes the settings
    controls = "button:visible, input:visible, select:visible, summary:visible"
    assert inspector.locator(".kv-head, .kv-controls, .kv-facts").locator(controls).count() == 7
    check_themes(lab, ".kv-inspector")


def test_the_inspector_lays_out_its_keys_by_tsne_in_jupyterlab(lab):
    run_cell(lab, INSPECTOR)
    inspector = lab.locator(".kv-inspector")
    keys, words = inspector.locator(".kv-keymap canvas").first, inspector.locator(".kv-keys")
    inspector.locator("summary").get_by_text("Settings").click()
    picker = inspector.get_by_label("map", exact=True)
    expect(words).to_contain_text("principal component 1")
    by_pca = keys.evaluate("canvas => canvas.toDataURL()")
    picker.select_option("tsne")
    expect(words).to_contain_text("t-SNE of 368 keys (no unit)")
    expect(words).to_contain_text("Distances between groups, their sizes and the axes mean nothing.")
    expect(inspector.locator(".kv-silent")).to_be_empty()
    by_tsne = keys.evaluate("canvas => canvas.toDataURL()")
    assert by_tsne != by_pca
    inspector.get_by_label("seed").fill("7")  # the layout's too
    inspector.get_by_label("seed").press("Enter")
    expect(inspector.locator("h2")).to_contain_text("seed 7")
    assert keys.evaluate("canvas => canvas.toDataURL()") not in (by_pca, by_tsne)
    picker.select_option("pca")
    expect(words).to_contain_text("principal component 1")
    expect(words).not_to_contain_text("t-SNE")


def test_the_miss_inspector_decodes_again_in_jupyterlab(lab):
    run_cell(lab, MISSES)
    misses = lab.locator(".kv-misses")
    expect(misses.locator("[data-lit]")).to_have_attribute("data-position", "40")
    slider, line = misses.get_by_role("slider", name="decode step"), misses.locator(".kv-sheet code")
    slider.press("Home")
    for _ in range(3):
        slider.press("ArrowRight")
    expect(line).to_contain_text("layer=2, head=0, position=40, step=3")  # the kernel followed, and the page the kernel
    changed = misses.locator(".kv-answers [role=status]")
    misses.get_by_role("button", name="let the picked head").click()
    expect(changed).to_contain_text("layer 2, head 0 restored: “")
    settings = misses.locator("summary").get_by_text("Changes")
    settings.click()
    misses.get_by_role("button", name="let every head").click()
    expect(changed).to_contain_text("restored, “")
    expect(changed).to_contain_text("pinned: “")
    expect(misses.locator(".kv-headcell[data-restored]")).to_have_count(1)
    settings.click()
    misses.get_by_role("button", name="take all").click()
    expect(changed).to_contain_text("none yet")
    check_themes(lab, ".kv-misses")


def test_hostile_tokens_stay_text_in_jupyterlab(lab):
    trouble = []
    lab.on("dialog", lambda dialog: (trouble.append(dialog.message), dialog.dismiss()))
    run_cell(lab, HOSTILE_WIDGETS)
    expect(lab.locator(".kvviz")).to_have_count(4)
    shown = [token.replace("\ud83d", "\ufffd") for token in hostile_tokens(200)]
    for strip in lab.locator(TEXT).all():
        spans = strip.locator("[data-position]")
        assert spans.evaluate_all("spans => spans.map(span => span.textContent)") == shown[: spans.count()]
        assert strip.evaluate(TURNED) == [0, True]
    assert lab.evaluate("window.hacked") is None
    assert trouble == []
