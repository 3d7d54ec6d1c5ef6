"""Refused grids: bad arguments, files of other models, invalid scores; and their messages."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager

import joblib
import pandas as pd
import pytest

import kvviz
from kvviz.errors import IncompatibleFileError, InvalidInputError, MissingDependencyError, UnknownNameError
from kvviz.evaluation import evaluate, load_results, results
from kvviz.tasks import Sample, Task, Turn
from tests.evaluation.evaluation_tasks import Guessing, Letters, Wrong, few, interrupt_after, save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def tiny(folder):
    return kvviz.load(folder, device="cpu")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "results.parquet"


def test_a_refused_budget_has_a_row(tiny):
    refusing = few("quest", "snapkv")
    table = evaluate(tiny, [Letters()], refusing, [12, 0.5, 30], [40], samples=1)
    rows = table[table.refused != ""]
    assert list(zip(rows.method, rows.budget, strict=True)) == [("quest", 0.5), ("quest", 12.0)]
    assert rows.score.isna().all()
    assert all("wanted at least 20 tokens" in words for words in rows.refused)
    assert len(table) == 2 + 4 * 2
    with pytest.raises(InvalidInputError, match="wanted at least 20"):
        evaluate(tiny, [Letters()], few("quest"), [12, 4], [40], samples=1)


@pytest.mark.parametrize("score", [2.0, -0.1, float("nan")])
def test_an_invalid_score_names_its_task(tiny, out, score):
    with pytest.raises(InvalidInputError, match=r"score of task wrong: got .*; wanted a number from 0 to 1") as found:
        evaluate(tiny, [Wrong(result=score)], few(), [20], [40], samples=3, out=out)
    assert found.value.__notes__ == ["By clusterkv at budget 20.", "In sample 1 of wrong at 40 tokens, seed 0."]
    assert len(load_results(out)) == 2 * 2, "the first sample's two cells"


def test_an_invalid_likelihood_names_its_task(folder):
    broken = kvviz.load(folder, device="cpu")
    broken.model.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(InvalidInputError, match="score of task guessing: got nan; wanted a finite number of nats"):
        evaluate(broken, [Guessing()], few(), [20], [40], samples=1)


def written(tiny, out):
    evaluate(tiny, [Letters()], few("snapkv"), [20], [40], samples=1, out=out)
    return out.read_bytes()


def test_other_files_are_refused_and_not_changed(tiny, out, tmp_path, monkeypatch):
    other = kvviz.load(save_model(tmp_path / "tiny", seed=1), device="cpu")
    pd.DataFrame({"key": ["a"]}).to_parquet(tmp_path / "frame.parquet")
    (tmp_path / "text.parquet").write_text("no parquet")
    (tmp_path / "empty.parquet").write_text("")
    written(other, out)
    whole = out.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")  # of the metadata at the end of the file
    (tmp_path / "damaged.parquet").write_bytes(whole[:start] + b"\xff" * 40 + whole[start + 40 :])
    with monkeypatch.context() as patched:
        patched.setattr(results, "VERSION", 0)
        written(tiny, tmp_path / "old.parquet")
    for name, message in (
        ("results", r"model_hash '\w+'; wanted '\w+', or another file"),
        ("old", "version 0; wanted 1, or another file"),
        ("frame", "another kind of file; wanted one that kvviz.evaluate wrote"),
        ("text", "another kind of file"),
        ("empty", "another kind of file"),
        ("damaged", "another kind of file"),
    ):
        path = tmp_path / f"{name}.parquet"
        before = path.read_bytes()
        with pytest.raises(IncompatibleFileError, match=message):
            written(tiny, path)
        assert path.read_bytes() == before
        assert not path.with_suffix(".parquet.cells").exists()
    for name in ("old", "frame", "text", "empty", "damaged"):
        with pytest.raises(IncompatibleFileError, match=f"{name}.parquet"):
            load_results(tmp_path / f"{name}.parquet")


def test_a_journal_of_another_model_is_refused(tiny, out, tmp_path, monkeypatch):
    other = kvviz.load(save_model(tmp_path / "tiny", seed=1), device="cpu")
    with monkeypatch.context() as patched:
        interrupt_after(patched, 1)
        with pytest.raises(KeyboardInterrupt):
            evaluate(tiny, [Letters()], few(), [20], [40], samples=1, out=out)
    with pytest.raises(IncompatibleFileError, match=r"results\.parquet\.cells: got model_hash"):
        written(other, out)
    assert len(load_results(out)) == 2
    line = next(out.with_suffix(".parquet.cells").glob("*.jsonl"))
    line.write_bytes(line.read_bytes() + b'{"key": 1}\n')
    with pytest.raises(IncompatibleFileError, match="line 2, which is not a finished cell"):
        load_results(out)


def test_a_file_that_appears_before_the_lock_is_checked_too(tiny, out, tmp_path, monkeypatch):
    """Another process may finish its grid between the first check and the lock."""
    other = kvviz.load(save_model(tmp_path / "tiny", seed=1), device="cpu")
    written(other, tmp_path / "other.parquet")
    other_bytes = (tmp_path / "other.parquet").read_bytes()
    original = results.Results._locked

    @contextmanager
    def locked(self):
        with original(self):
            out.write_bytes(other_bytes)
            yield

    monkeypatch.setattr(results.Results, "_locked", locked)
    with pytest.raises(IncompatibleFileError, match="model_hash"):
        written(tiny, out)
    assert out.read_bytes() == other_bytes


def test_a_disk_that_is_full_at_the_end(tiny, out, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("pyarrow.parquet.write_table", full)
        with pytest.raises(OSError, match="No space left") as found:
            written(tiny, out)
    assert "make the same call again to go on from there" in found.value.__notes__[0]
    assert len(load_results(out)) == 2
    assert written(tiny, out)
    assert os.listdir(out.parent) == [out.name]


def test_impossible_places_for_results_are_refused(tiny, tmp_path, monkeypatch):
    with pytest.raises(InvalidInputError, match=r"no folder .*missing; wanted an existing folder"):
        written(tiny, tmp_path / "missing" / "results.parquet")
    with pytest.raises(InvalidInputError, match="got the folder"):
        written(tiny, tmp_path)
    with pytest.raises(InvalidInputError, match="no file"):
        load_results(tmp_path / "results.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "kvviz\[evaluate\]"'):
        evaluate("no model", [Letters()], few(), [20], [40], out=tmp_path / "results.parquet")
    assert not list(tmp_path.iterdir())


def test_bad_grids_are_refused_with_a_way_out(tiny):
    class Unscored(Task):
        def sample(self, lm, length, index, seed):
            return Sample("", (Turn("", ()),))

    good = {"tasks": [Letters()], "methods": few(), "budgets": [20], "lengths": [40], "samples": 1}
    for bad, message in (
        ({"tasks": []}, "tasks: got none; wanted at least one"),
        ({"tasks": "letters"}, "tasks: got 'letters'; wanted a list"),
        ({"tasks": [Unscored()]}, r"Unscored, which has no score; wanted a method score\(turn, text\)"),
        ({"tasks": [Letters(), "letters"]}, "'letters' twice with the question 'after'"),
        ({"methods": []}, "methods: got none"),
        ({"methods": [None]}, "methods: got NoneType; wanted a name"),
        ({"methods": ["quest", "quest"]}, "'quest' twice; wanted a mapping of labels to methods"),
        ({"budgets": []}, "budgets: got none for 'clusterkv'"),
        ({"budgets": 20}, "budgets: got 20; wanted a list"),
        ({"budgets": [20, "30"]}, r"budgets: got '30'; wanted tokens, an int >= 1, or a share"),
        ({"budgets": [20, True]}, "budgets: got True"),
        ({"budgets": [20, 1.5]}, "budgets: got 1.5"),
        ({"budgets": [20, float("nan")]}, "budgets: got nan"),
        ({"budgets": [0]}, "budgets: got 0"),
        ({"lengths": [40, 2000]}, "lengths: got 2000; wanted at most the model's 1024 positions"),
        ({"lengths": [1020]}, r"evaluate: length: got \d+ tokens \(10\d\d of the prompt, \d+ of the question, "),
        ({"lengths": [40.0]}, "lengths: got 40.0"),
        ({"samples": 0}, "samples: got 0; wanted an int >= 1"),
        ({"seed": "x"}, "seed: got 'x'"),
        ({"jobs": 0}, "jobs: got 0; wanted an int >= 1, or -1"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            evaluate(tiny, **{**good, **bad})
    for bad, message in (
        ({"tasks": ["leters"]}, "did you mean 'letters'"),
        ({"methods": ["snapk"]}, "did you mean 'snapkv'"),
        ({"methods": ["snapkv:papr"]}, "did you mean 'paper'"),
    ):
        with pytest.raises(UnknownNameError, match=message):
            evaluate(tiny, **{**good, **bad})
    unnamed = kvviz.LanguageModel(tiny.model, tiny.tokenizer)
    with pytest.raises(InvalidInputError, match=r"jobs=2 with a model that kvviz.load did not load"):
        evaluate(unnamed, **good, jobs=2)


def test_a_model_changed_after_loading_is_refused_in_other_processes(folder, out):
    lm = kvviz.load(folder, device="cpu")
    lm.model.model.norm.weight.mul_(2)
    with joblib.parallel_config(backend="threading"), pytest.raises(IncompatibleFileError, match=r"load .* again"):
        evaluate(lm, [Letters()], few(), [20], [40], samples=2, out=out, jobs=2)
    assert len(evaluate(lm, [Letters()], few(), [20], [40], samples=2, out=out)) == 8
