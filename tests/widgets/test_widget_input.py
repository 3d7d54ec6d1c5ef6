"""Wrong, hostile and long input of the four widgets. No browser."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.trace import Trace
from kvviz.trace.geometry import Geometry
from kvviz.widgets import BudgetExplorer, ClusterInspector, DecodeStepper, MethodComparer
from tests.synthetic import recording
from tests.widgets.test_stepper_page import Scripts, embedded

LONG = 100_000
HOSTILE = [
    "<img src=x onerror='window.hacked=1'>",
    "</script><script>window.hacked=2</script>",
    "\u202e",  # text after it runs from right to left, if not isolated
    " שלום",
    " مرحبا",
    "👩\u200d👩\u200d👧",
    "\ufffd",
    "\ud83d",  # half of an emoji, as from incompletely decoded bytes
    "\u2069\u202e",
    "\x00",
    "&amp;",
    " word",
    "\n",
]


def made_trace(length=200, *, kv_heads=2, group=2, width=16, tokens=None, layers=(2, 3)):
    """A trace with float16 keys around 12 directions."""
    rng = np.random.default_rng(0)
    centre = rng.normal(size=(12, width)).astype(np.float32) * 1.5

    def tensors(rows):
        near = centre[rng.integers(12, size=(rows, length))]
        return (near + rng.normal(size=near.shape).astype(np.float32) * 0.6).astype(np.float16)

    return Trace(
        "synthetic", Geometry(4, group * kv_heads, kv_heads, width, 1 << 18),
        tokens or [f" word{place}" for place in range(length)], np.arange(length, dtype=np.int64),
        {layer: tensors(group * kv_heads) for layer in layers}, {layer: tensors(kv_heads) for layer in layers},
        {layer: tensors(kv_heads) for layer in layers},
    )  # fmt: skip


def hostile_tokens(length):
    return [HOSTILE[place % len(HOSTILE)] for place in range(length)]


def widgets(tokens, *, prompt=None):
    """The four widgets with these tokens, by name."""
    length = len(tokens)
    made = recording(prompt_length=length - 6, tokens=tokens, layers=(2,))
    trace = made_trace(length, tokens=tokens, kv_heads=1)
    return {
        "DecodeStepper": DecodeStepper(made),
        "MethodComparer": MethodComparer({"one": made, "two": made}),
        "ClusterInspector": ClusterInspector(trace, n_clusters=4),
        "BudgetExplorer": BudgetExplorer(trace, method="streaming_llm", budget=64),
    }


def page_of(widget):
    return widget.to_html(n_clusters=[]) if isinstance(widget, ClusterInspector) else widget.to_html()


def test_hostile_tokens_are_data_and_lone_surrogates_become_the_replacement_character():
    tokens = hostile_tokens(200)
    shown = [token.replace("\ud83d", "\ufffd") for token in tokens]
    for name, widget in widgets(tokens).items():
        widget.get_state()["page"].__repr__().encode("utf-8")  # the state in a notebook
        page = page_of(widget)
        page.encode("utf-8")
        assert not {tag for tag, _ in Scripts(page).tags} & {"img", "b", "link"}, name
        data, _ = embedded(page)
        texts = data["page"].get("tokens") or data["page"]["prompt"]
        assert texts == shown[: len(texts)], name
        assert len(texts) >= 160, name


@pytest.mark.parametrize("widget", ["ClusterInspector", "BudgetExplorer"])
@pytest.mark.parametrize(
    "shape", [{"kv_heads": 4, "group": 1}, {"kv_heads": 1, "group": 8}, {"width": 32}, {"width": 80}]
)
def test_traces_of_any_geometry_are_shown(widget, shape):
    trace = made_trace(**shape)
    made = ClusterInspector(trace) if widget == "ClusterInspector" else BudgetExplorer(trace, method="quest")
    assert made.page["heads"] == list(range(shape.get("kv_heads", 2)))
    made.head = made.page["heads"][-1]
    assert len(made.members() if widget == "ClusterInspector" else made.highlighted()) > 0


@pytest.mark.parametrize("name", ["queries", "keys", "values"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_trace_that_is_not_finite_is_refused(name, value):
    trace = made_trace(layers=(3,))
    getattr(trace, name)[3][0, 150, 3] = value
    message = rf"NaN or infinity in the {name} of layer 3, first at \[0, 150, 3\]; wanted finite numbers"
    for widget in (ClusterInspector, BudgetExplorer):
        with pytest.raises(InvalidInputError, match=message):
            widget(trace)


def test_a_recording_whose_attention_is_not_finite_is_refused():
    made = recording()
    made.events[2].attention[0, 1, 5] = np.nan  # in a head that is not shown first
    for widget in (DecodeStepper, lambda run: MethodComparer([run])):
        with pytest.raises(InvalidInputError, match="NaN or infinity in the attention of layer 2"):
            widget(made)


def test_recordings_that_are_empty_or_of_another_model_are_refused():
    trace = made_trace(300)
    run_of_trace = kvviz.replay(trace, "quest", queries=8, budget=64, dense_layers=0)
    empty = run_of_trace.replace(events={})
    for open_it in (
        lambda: DecodeStepper(empty), lambda: MethodComparer([run_of_trace, empty]),
        lambda: ClusterInspector(trace, recording=empty),
    ):  # fmt: skip
        with pytest.raises(InvalidInputError, match="a recording without layers"):
            open_it()
    for other in (made_trace(300, kv_heads=4), made_trace(300, width=32), replace(trace, model="other")):
        run = kvviz.replay(other, "quest", queries=8, budget=64, dense_layers=0)
        with pytest.raises(InvalidInputError, match=r"got one of (synthetic|other) .*wanted one of the trace's model"):
            ClusterInspector(trace, recording=run)
        with pytest.raises(InvalidInputError, match="wanted recordings of one model"):
            MethodComparer([run_of_trace, run])


@pytest.mark.parametrize("value", ["a", 1.5, None, True, -7, 10**6])
def test_invalid_positions_are_refused(value):
    made, trace = recording(), made_trace()
    openings = [
        lambda: DecodeStepper(made, step=value), lambda: MethodComparer([made], step=value),
        lambda: DecodeStepper(made).to_html(heads=[value]), lambda: MethodComparer([made]).to_html(heads=[value]),
        lambda: DecodeStepper(made).to_html(layers=value if value is not None else 3),
        lambda: MethodComparer([made]).to_html(layers=value if value is not None else 3),
    ]  # fmt: skip
    if value is not None:  # None means the default
        openings += [lambda: ClusterInspector(trace, head=value), lambda: BudgetExplorer(trace, head=value)]
        openings += [lambda: DecodeStepper(made, head=value), lambda: MethodComparer([made], head=value)]
        openings += [lambda: MethodComparer([made], token=value), lambda: ClusterInspector(trace, token=value)]
        openings += [lambda: BudgetExplorer(trace, tokens=value)]
    for opening in openings:
        with pytest.raises(InvalidInputError, match=re.escape(f"got {value!r}" if value is not None else "; wanted ")):
            opening()


def test_numpy_integers_are_accepted():
    made, trace, one = recording(), made_trace(), np.int64(1)
    DecodeStepper(made, step=one, layer=np.int64(3), head=one).to_html(layers=[np.int64(3)], heads=[one])
    MethodComparer([made], step=one, head=one, token=np.int64(40)).to_html(heads=[one])
    inspector = ClusterInspector(trace, head=one, token=np.int64(40))
    inspector.token = inspector.members()[0]
    inspector.to_html(n_clusters=[np.int64(3)])
    BudgetExplorer(trace, method="streaming_llm", layer=np.int64(3), head=one).to_html()


def test_only_the_start_of_a_long_trace_is_explored_and_the_page_says_so():
    trace = made_trace(9000, kv_heads=1, layers=(3,))
    explorer = BudgetExplorer(trace, method="quest", budget=512)
    assert explorer.page["tokens"] == trace.tokens[:8192]
    assert "Only the first 8,192 of the trace's 9,000 tokens are explored." in explorer.page["notes"][0]
    assert "tokens" not in explorer.numbers["call"]
    start = Trace(
        trace.model, trace.geometry, trace.tokens[:500], trace.token_ids[:500],
        *({3: each[3][:, :500].copy()} for each in (trace.queries, trace.keys, trace.values)),
    )  # fmt: skip
    short, alone = (BudgetExplorer(part, method="quest", budget=96, **options)
                    for part, options in ((trace, {"tokens": 500}), (start, {})))  # fmt: skip
    assert short.highlighted().tolist() == alone.highlighted().tolist()
    assert ", head=0, tokens=500, " in short.numbers["call"]
    data, _ = embedded(short.to_html())
    assert "first 500 of the trace's 9,000" in data["page"]["notes"][0]
    uncut = BudgetExplorer(trace, method="quest", budget=512, tokens=9000)
    assert (len(uncut.page["tokens"]), uncut.page["notes"]) == (9000, [])


def test_the_inspector_of_a_long_prompt_has_a_shorter_slider_and_says_so():
    trace = made_trace(LONG, kv_heads=1, group=1, width=4, layers=(3,))
    inspector = ClusterInspector(trace, n_clusters=3)
    assert inspector.page["default"] == 1250
    reach = inspector.page["counts"][-1]
    assert reach * 99_968 <= 200_000_000 < (reach + 1) * 99_968
    assert f"the slider stops at {reach:,} clusters" in inspector.page["notes"][0]
    assert "clusters 99,968 tokens again" in inspector.page["notes"][0]
    assert ClusterInspector(made_trace(), n_clusters=3).page["notes"] == []
