"""The comparer's data against brute force over the recordings, their common parts, its page and its errors."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load

from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.metrics import Verdict
from kvviz.widgets import MethodComparer, view
from tests.browser.recordings import hostile_recording
from tests.synthetic import recording
from tests.widgets.test_stepper_page import Scripts, embedded

PROMPT = 120


def other(method="quest", **shape):
    """Another method on the same prompt: the tokens of `recording` depend on the length only."""
    return recording(seed=1, **shape).replace(method=method)


def of_query_heads(made):
    """A recording of the same model with selections per query head: twice the rows."""
    doubled = recording(heads=2 * made.geometry.n_kv_heads, seed=3)
    events = {layer: replace(event, merged=event.merged[:, :2]) for layer, event in doubled.events.items()}
    return doubled.replace(geometry=made.geometry, events=events, method="ctkvr")


def verdict(made, step, layer, row, position):
    """AGREED, WASTED, KEPT, MISSED or None, by the definitions."""
    attended, oracle = made.indices(step, layer)[row].tolist(), made.oracle(step, layer)[row].tolist()
    if position not in attended:
        return Verdict.MISSED if position in oracle else None
    if position in oracle:
        return Verdict.AGREED
    chosen = made.groups(step, layer)[row][attended.index(position)] >= 0
    return Verdict.WASTED if chosen else Verdict.KEPT


def test_every_column_shows_its_recording():
    runs = [recording(), other(steps=9, budget=20)]
    comparer = MethodComparer(runs, layer=3, head=1)
    assert comparer.common.steps == 6
    for made, packed in zip(runs, comparer.slices, strict=True):
        arrays = load(packed)
        assert len(arrays["offsets"]) == 7
        for step in range(6):
            at = slice(arrays["offsets"][step], arrays["offsets"][step + 1])
            shown = dict(zip(arrays["positions"][at], view.verdicts(arrays["marks"][at]), strict=True))
            expected = {p: verdict(made, step, 3, 1, p) for p in range(made.visible(step))}
            assert shown == {position: kind for position, kind in expected.items() if kind is not None}
            weights = made.attention(step, 3)[1]
            assert arrays["weights"][at].tolist() == weights[arrays["positions"][at]].tolist()
            assert arrays["recall"][step] == made.recall(step, 3)[1]
            assert arrays["mass"][step] == made.attention_mass(step, 3)[1]
            assert arrays["attended"][step] == (made.indices(step, 3)[1] >= 0).sum()
            assert arrays["read"][step] == made.events[3].read_bytes[step]
            assert arrays["error"][step] == made.events[3].output_error[step]


def test_the_map_draws_the_heaviest_marked_token_of_each_column():
    made = recording(prompt_length=1000, budget=100)
    arrays = load(MethodComparer([made]).slices[0])
    columns = arrays["map_looks"].shape[1]
    edges = np.linspace(0, 1006, columns + 1).astype(int)
    assert columns == view.MAP_COLUMNS
    for step in (0, 5):
        weights = made.attention(step, 2)[0]
        kinds = {p: verdict(made, step, 2, 0, p) for p in range(made.visible(step))}
        for column, look in enumerate(arrays["map_looks"][step]):
            marked = [p for p in range(edges[column], edges[column + 1]) if kinds.get(p) is not None]
            if not marked:
                assert look == view.NOTHING
                continue
            heaviest = max(marked, key=lambda position: weights[position])
            assert arrays["map_positions"][step, column] == heaviest
            assert look == kinds[heaviest] * view.LEVELS + view.level(weights[heaviest])


def test_selections_per_query_head_show_the_first_of_the_kv_head():
    made = recording()
    by_query = of_query_heads(made)
    comparer = MethodComparer([made, by_query], head=1)
    assert comparer.common.heads == 2
    arrays = [load(packed) for packed in comparer.slices]
    assert arrays[1]["recall"][0] == by_query.recall(0, 2)[2] != by_query.recall(0, 2)[1]
    assert [method["rows_a_head"] for method in comparer.page["methods"]] == [1, 2]
    assert any(
        note.startswith("ctkvr selects per query head: the first query head stands for its KV head.")
        for note in comparer.page["notes"]
    )
    alone = MethodComparer([by_query], head=3)
    assert alone.page["head_name"] == "query head"
    assert load(alone.slices[0])["recall"][0] == by_query.recall(0, 2)[3]


def test_notes_list_the_differences():
    assert MethodComparer([recording(), other()]).page["notes"] == []
    longer = other(steps=9)
    fed = longer.token_ids.copy()
    fed[PROMPT + 4 :] += 50
    notes = MethodComparer({"a": recording(), "b": longer.replace(token_ids=fed)}).page["notes"]
    assert notes == [
        "Compared over the first 6 steps, which every recording has; b has 9.",
        "From step 4 on, the recordings feed different tokens: each continues its own answer.",
    ]
    partial = other().replace(events={3: other().events[3]})
    comparer = MethodComparer([recording(), partial])
    assert (comparer.common.layers, comparer.layer) == ((3,), 3)
    assert comparer.page["notes"] == ["Left out: layer 2, which not every recording has."]


def test_labels_of_recordings_of_one_method_differ():
    made = recording()
    runs = [made, recording(budget=20), made.replace(config=made.config | {"n": 5}), other(), made]
    assert MethodComparer(runs).common.labels == (
        "clusterkv · budget 32 · n None · #1",
        "clusterkv · budget 20 · n None",
        "clusterkv · budget 32 · n 5",
        "quest",
        "clusterkv · budget 32 · n None · #2",
    )
    assert MethodComparer({"mine": made, "theirs": made}).common.labels == ("mine", "theirs")


@pytest.mark.parametrize(
    ("recordings", "message"),
    [
        ([], "got no recording"),
        ({}, "got no recording"),
        (recording(), "wanted a list of kvviz.Recording"),
        ("recording.safetensors", "wanted a list of kvviz.Recording"),
        ([recording(), "quest"], "recording 1: got str"),
        ({1: recording()}, "label: got 1; wanted text"),
        ([recording(), recording().replace(events={})], "recording 1: got a recording without layers"),
        ([recording(), other().replace(model="other")], "got clusterkv of synthetic and quest of other"),
        ([recording(), recording(heads=4)], "with different geometries"),
        ([recording(), other(prompt_length=110)], "different prompts: clusterkv (120 tokens) and quest (110 tokens)"),
        ([recording(), other().replace(token_ids=np.arange(126) + 1)], "different prompts: clusterkv"),
        (
            [recording().replace(events={2: recording().events[2]}), other().replace(events={3: other().events[3]})],
            "got clusterkv: layers 2; quest: layers 3",
        ),
    ],
)
def test_recordings_that_cannot_be_compared_are_refused(recordings, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        MethodComparer(recordings)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("step", 6, InvalidInputError, "0 to 5"),
        ("step", -1, InvalidInputError, "0 to 5"),
        ("layer", 0, InvalidInputError, "a layer of every recording: 2, 3"),
        ("head", 2, InvalidInputError, "0 to 1"),
        ("token", 126, InvalidInputError, "-1 to 125"),
        ("token", -2, InvalidInputError, "-1 to 125"),
        ("sort", "recal", UnknownNameError, "did you mean 'recall'"),
    ],
)
def test_invalid_settings_are_refused(name, value, error, message):
    comparer = MethodComparer([recording(), other(steps=9)], step=1, layer=3, head=1, sort="mean mass")
    with pytest.raises(error, match=re.escape(message)):
        setattr(comparer, name, value)
    assert (comparer.step, comparer.layer, comparer.head, comparer.sort) == (1, 3, 1, "mean mass")
    with pytest.raises(error, match=re.escape(message)):
        MethodComparer([recording(), other()], **{name: value})


def test_layer_and_head_send_new_arrays_and_a_step_does_not():
    comparer = MethodComparer([recording(), other()])
    before = comparer.slices
    comparer.step, comparer.sort = 3, "read"
    assert comparer.slices is before
    comparer.layer = 3
    comparer.head = 1
    assert comparer.slices == MethodComparer([recording(), other()], layer=3, head=1).slices != before


def test_the_page_holds_the_recordings_and_escapes_their_text(tmp_path):
    made = hostile_recording()
    runs = {"<b>first</b>": made, "</script><img src=x>": made.replace(method="<i>quest</i>", model=made.model)}
    comparer = MethodComparer(runs, step=2, layer=3, head=1, token=100, sort="mean recall")
    page = comparer.to_html(tmp_path / "page.html", layers=[2, 3])
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page == comparer.to_html(layers=[3, 2])
    parsed = Scripts(page)
    places = 2 * 3  # layers × two heads and all of them
    assert [tag for tag, _ in parsed.tags].count("script") == 2 + places * 2  # data, code, and a slice per recording
    assert not {"img", "i", "link"} & {tag for tag, _ in parsed.tags}
    data, slices = embedded(page)
    assert data["page"]["prompt"] + data["page"]["methods"][1]["fed"] == made.tokens
    assert {name: data[name] for name in ("step", "layer", "head", "token", "sort")} == {
        "step": 2, "layer": 3, "head": 1, "token": 100, "sort": "mean recall"
    }  # fmt: skip
    assert [slices[f"3/1/{number}"] for number in range(2)] == comparer.slices
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_the_page_names_the_layers_that_it_leaves_out():
    comparer = MethodComparer([recording(), other()], layer=3, head=1)
    data, slices = embedded(comparer.to_html())
    assert set(slices) == {f"3/{heads}/{number}" for heads in ("0", "1", "layer/0") for number in (0, 1)}
    assert data["page"]["notes"] == [
        "This page holds layer 3 of the 2 compared; to_html(layers=[…], heads=[…]) embeds others."
    ]
    data, slices = embedded(comparer.to_html(layers=[2], heads=[0]))
    assert set(slices) == {"2/0/0", "2/0/1"}
    assert (data["layer"], data["head"]) == (2, 0)
    for wrong in ({"layers": [0]}, {"layers": []}, {"heads": [2]}, {"heads": []}):
        with pytest.raises(InvalidInputError):
            comparer.to_html(**wrong)
