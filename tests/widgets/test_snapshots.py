"""The snapshot that a widget leaves in a saved notebook, against the data it was made from."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from ipywidgets import HBox, Label, Output, VBox

from kvviz import metrics, widgets
from kvviz.widgets import (
    BudgetExplorer,
    CanvasMatrix,
    ClusterInspector,
    DecodeStepper,
    MethodComparer,
    MissInspector,
    TokenStrip,
    view,
)
from kvviz.widgets.live import LiveWidget
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.generation.test_explore import made_trace
from tests.generation.test_explore_clusters import made_trace as clustered_trace
from tests.synthetic import diagnosis, recording
from tests.widgets.predictions import prediction
from tests.widgets.test_layout_browser import mechanism
from tests.widgets.test_widget_input import hostile_tokens

SVG = "{http://www.w3.org/2000/svg}"
VIEW = "application/vnd.jupyter.widget-view+json"
MOST_BYTES = 60_000


def strip():
    made = TokenStrip([" a", " <b>b</b>", "\x00\u202e"])
    made.paint(np.array([255, 5, 255], np.uint8), np.array([0, view.ATTENDED, view.ORACLE], np.uint8))
    return made


WIDGETS = {
    "stepper": lambda: DecodeStepper(recording(tokens=hostile_tokens(126))),
    "long stepper": lambda: DecodeStepper(recording(prompt_length=4000, budget=3000, n_clusters=300)),
    "comparer": lambda: MethodComparer({f"{number} <b>": recording(seed=number) for number in range(8)}),
    "explorer": lambda: BudgetExplorer(made_trace(200, tokens=hostile_tokens(200)), method="quest", budget=96),
    "inspector": lambda: ClusterInspector(clustered_trace(2000), n_clusters=90),
    "misses": lambda: MissInspector(diagnosis(hostile_tokens(60))),
    "mechanism": lambda: mechanism(made_trace(200, tokens=hostile_tokens(200))),
    "prediction": prediction,
    "strip": strip,
    "matrix": lambda: CanvasMatrix(np.random.default_rng(0).integers(0, 256, (400, 3000), np.uint8)),
}


def drawn(snapshot):
    """The picture's root, and its texts."""
    root = ElementTree.fromstring(snapshot.picture())
    return root, [node.text for node in root.iter(f"{SVG}text")]


def tinted(root):
    return [int(node.get("data-position")) for node in root.iter(f"{SVG}rect") if node.get("data-position")]


def shown_in_cell(widget):
    """The MIME bundles that a cell shows whose last line is the widget."""
    shell = InteractiveShell.instance()
    publisher, hook = CapturingDisplayPublisher(shell=shell), DisplayHook(shell=shell)
    before, shell.display_pub = shell.display_pub, publisher
    try:
        assert hook.compute_format_data(widget) == ({}, {})  # nothing more than what was published
    finally:
        shell.display_pub = before
    return [output["data"] for output in publisher.outputs]


@pytest.mark.parametrize("name", WIDGETS)
def test_a_cell_shows_the_widget_and_then_a_small_safe_picture_with_words(name):
    widget = WIDGETS[name]()
    live, still = shown_in_cell(widget)
    assert live[VIEW]["model_id"] == widget.model_id
    assert set(live) == {VIEW, "text/plain"}  # the picture is not embedded twice
    assert set(still) == {"text/html", "image/svg+xml", "text/plain"}
    assert len(still["image/svg+xml"].encode()) <= MOST_BYTES
    root, texts = drawn(widget.snapshot())
    assert {node.tag.removeprefix(SVG) for node in root.iter()} <= {"svg", "title", "desc", "rect", "text", "path", "g"}
    assert any(texts)
    words = widget.snapshot().alternative
    assert words
    assert root.find(f"{SVG}desc").text.split() == words.split()
    page = ElementTree.fromstring(still["text/html"].replace('max-width: 100%">', 'max-width: 100%"/>'))
    assert page.find("img").get("alt") == words
    assert "Run the cell again" in page.find("figcaption").text
    key = widget._kvviz_key
    assert page.get("data-kvviz-snapshot") == key
    assert f':root:has([data-kvviz-live="{key}"]) [data-kvviz-snapshot="{key}"]' in page.find("style").text


def test_every_widget_has_a_snapshot_of_its_own():
    made = {type(make()) for make in WIDGETS.values()}
    shown = {name for name in widgets.__all__ if hasattr(getattr(widgets, name), "snapshot")}  # others are questions
    assert {widget.__name__ for widget in made} == shown
    assert LiveWidget.snapshot not in {widget.snapshot for widget in made}


def test_a_subclass_elsewhere_still_shows():
    class Elsewhere(LiveWidget):
        """A widget of another package."""

    live, still = shown_in_cell(Elsewhere())
    assert VIEW in live
    assert "Elsewhere" in still["text/plain"]


def test_a_box_shows_its_widgets_and_then_the_snapshot_of_each():
    InteractiveShell.instance()
    one, two = (DecodeStepper(recording(), step=step) for step in (1, 3))
    box = HBox([one, VBox([Label("beside"), two]), one])
    live, still = shown_in_cell(box)
    assert live[VIEW]["model_id"] == box.model_id
    assert re.findall(r'data-kvviz-snapshot="(\w+)" style', still["text/html"]) == [one._kvviz_key, two._kvviz_key]
    assert [f"step {step} of 5" in still["text/plain"] for step in (1, 3)] == [True, True]
    root = ElementTree.fromstring(still["image/svg+xml"])
    tops, heights = zip(*((int(each.get("y")), int(each.get("height"))) for each in root), strict=True)
    assert tops == (0, heights[0])
    assert int(root.get("height")) == sum(heights)


def test_an_output_is_shown_with_the_snapshots_of_what_it_still_shows():
    InteractiveShell.instance()
    cleared, left = (DecodeStepper(recording(), step=step) for step in (1, 3))
    output = Output()
    output.msg_id = "a cell's"  # as in a `with` block, which needs a kernel
    for widget in (cleared, left):
        shown_in_cell(widget)
    output.msg_id = ""
    shown_in_cell(DecodeStepper(recording(), step=2))  # after the block
    views = [{"data": {VIEW: {"model_id": widget.model_id}}} for widget in (cleared, left)]
    output.outputs = views  # as the page says it
    output.outputs = views[1:]
    for container in (output, VBox([Label("above"), output])):
        live, still = shown_in_cell(container)
        assert live[VIEW]["model_id"] == container.model_id
        assert re.findall(r'data-kvviz-snapshot="(\w+)" style', still["text/html"]) == [left._kvviz_key]


def test_a_box_without_our_widgets_is_shown_as_ever():
    shell = InteractiveShell.instance()
    DecodeStepper(recording())
    for box in (VBox([Label("alone"), Output()]), Output()):
        data, _ = DisplayHook(shell=shell).compute_format_data(box)
        assert data == box._repr_mimebundle_()


def test_two_widgets_have_different_keys():
    assert strip()._kvviz_key != strip()._kvviz_key


def test_the_steppers_snapshot_has_the_numbers_and_tokens_of_its_step():
    made = recording()
    stepper = DecodeStepper(made, step=2, layer=3, head=1)
    stepper.step = 4
    attended = made.indices(4, 3)[1]
    attended = attended[attended >= 0]
    root, texts = drawn(stepper.snapshot())
    assert made.description in texts
    assert "layer 3 · KV head 1 · step 4 of 5" in texts
    head, layer = "(this head, this step)", "(this layer, this step)"
    for number in (f"recall {head} {made.recall(4, 3)[1]:.2f}", f"mass {head} {made.attention_mass(4, 3)[1]:.2f}",
                   f"attended {head} {len(attended)}",
                   f"read {layer} {made.events[3].read_bytes[4]:,} bytes"):  # fmt: skip
        assert any(number in text for text in texts)
        assert number in stepper.snapshot().alternative
    shown = tinted(root)
    first, last = shown[0], shown[-1]
    assert shown == [position for position in attended if first <= position <= last]
    recalled = attended[made.groups(4, 3)[1][: len(attended)] >= 0]
    assert max(recalled, key=lambda position: made.attention(4, 3)[1, position]) in shown


def test_the_comparers_snapshot_has_a_row_for_each_recording():
    runs = {"first": recording(), "second": recording(seed=5)}
    words = MethodComparer(runs, step=3, layer=3, head=1).snapshot().alternative
    for label, run in runs.items():
        recall, mass = run.recall(3, 3)[1], run.attention_mass(3, 3)[1]
        numbers = [f"recall (this head) {recall:.2f}", f"mass (this head) {mass:.2f}"]
        attended = f"attended (this head) {np.sum(run.indices(3, 3)[1] >= 0)}"
        assert f"{label}: {', '.join([*numbers, attended])}, output error (this layer) " in words


def test_the_explorers_snapshot_follows_the_budget():
    explorer = BudgetExplorer(made_trace(200), method="quest", budget=96)
    explorer.show(budget=64, page_size=8, head=1)
    snapshot, explored = explorer.snapshot(), explorer.explored
    assert "budget 64" in snapshot.title
    assert "KV head 1 · page_size 8" in snapshot.place
    assert ("recall (this head, all steps)", f"{explored.recall[1]:.3f}") in snapshot.numbers
    assert ("attended (this head, last step)", str(len(explorer.highlighted()))) in snapshot.numbers
    shown = tinted(drawn(snapshot)[0])
    assert shown
    assert set(shown) <= set(explorer.highlighted().tolist())


def test_the_inspectors_snapshot_has_the_picked_cluster():
    inspector = ClusterInspector(clustered_trace(400), n_clusters=8, token=100)
    inspector.metric = "l2"
    snapshot = inspector.snapshot()
    assert ("size (this head)", f"{len(inspector.members())} tokens") in snapshot.numbers
    assert "l2" in snapshot.place
    assert "in 8 clusters" in snapshot.title
    assert snapshot.panels[2].lined == set(inspector.members().tolist())
    cut = int(inspector.source.clusters(inspector.settings).cut[31])
    assert snapshot.panels[1].filled == [rank < cut for rank in range(8)]


def test_the_miss_inspectors_snapshot_has_the_evidence_and_the_answer():
    found = diagnosis()
    root, texts = drawn(MissInspector(found).snapshot())
    assert tinted(root) == sorted(found.evidence["position"])
    assert any(found.answer in text for text in texts)
    assert any(f"here (all layers, whole answer) {found.method.total:.2f}" in text for text in texts)


def test_a_matrix_keeps_its_spikes():
    matrix, colours = np.zeros((3, 3000), np.uint8), np.zeros((256, 4), np.uint8)
    matrix[1, 1717], colours[200] = 200, (1, 2, 3, 255)
    rows = CanvasMatrix(matrix, colours=colours).snapshot().panels[0].rows
    spike = [[colour == "rgba(1,2,3,1.00)" for colour in row] for _, row in rows]
    assert np.argwhere(spike).tolist() == [[1, int(np.flatnonzero(metrics.pool_argmax(matrix[1], 128) == 1717)[0])]]


def test_a_snapshot_needs_neither_kaleido_nor_a_browser():
    code = """
import sys
from tests.synthetic import recording
from kvviz.widgets import DecodeStepper
DecodeStepper(recording()).snapshot().bundle("key")
assert not {"kaleido", "playwright", "torch"} & set(sys.modules), sorted(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.browser
@pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)
def test_a_snapshot_is_hidden_beside_its_own_drawn_widget_only(browser):
    one, two = (DecodeStepper(recording()) for _ in range(2))
    page = browser.new_page()
    outputs = "".join(widget.snapshot().bundle(widget._kvviz_key)["text/html"] for widget in (one, two))
    page.set_content(f'<div data-kvviz-live="{one._kvviz_key}"></div>{outputs}')
    assert not page.locator(f'[data-kvviz-snapshot="{one._kvviz_key}"]').is_visible()
    assert page.locator(f'[data-kvviz-snapshot="{two._kvviz_key}"]').is_visible()
    page.close()
