"""Grids in one process: what is run, what rows say, and what a file is continued with."""

from __future__ import annotations

import io
import json
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import joblib
import pandas as pd
import pytest
import torch
from tqdm import tqdm

import kvviz
from kvviz.evaluation import evaluate, load_results, run, unit
from kvviz.methods import create
from tests.evaluation.evaluation_tasks import (
    BUDGETS,
    FIELDS,
    LENGTHS,
    Deadly,
    Guessing,
    Letters,
    few,
    interrupt_after,
    methods,
    save_model,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def tiny(folder):
    return kvviz.load(folder, device="cpu")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "results.parquet"


def ran(monkeypatch):
    """The (label, budget, sample) of every cell that is run from now on."""
    seen = []

    def run_unit(lm, one, wanted, *args):
        seen.extend((cell.label, cell.budget, one.index) for cell in wanted)
        return own(lm, one, wanted, *args)

    own = unit.run_unit
    monkeypatch.setattr(run, "run_unit", run_unit)
    return seen


def test_a_sample_is_prefilled_once_for_all(tiny, monkeypatch):
    passes, prefills = [], []
    monkeypatch.setattr(run, "run_unit", lambda *args: prefills.append(unit.run_unit(*args)))
    hook = tiny.model.register_forward_pre_hook(
        lambda module, args, named: passes.append(args[0].shape[1]), with_kwargs=True
    )
    try:
        table = evaluate(tiny, [Letters()], methods(), [20, 24, 30, 0.75], [60], samples=1)
    finally:
        hook.remove()
    assert [length for length in passes if length > 1] == [50]
    assert prefills == [1]
    assert len(table) == 8 * 4 * 2


def test_rows_are_what_generate_and_the_task_give(tiny, out):
    """Against generation by hand, token by token through plain `generate`, and likelihood through the whole model."""
    table = evaluate(tiny, [Letters(), Guessing()], few() | {"full": "full"}, BUDGETS, [60], samples=2, seed=5, out=out)
    assert len(table) == 2 * 5 * 3
    for row in table[(table.task == "letters") & (table.turn == 0)].itertuples():
        sample = Letters().sample(tiny, 60, row.sample, 5)
        made = few().get(row.method) or create("full")
        budget = {} if row.method == "full" else {"budget": 20 if row.budget == 20 else 0.75}
        fields = {**made.config, **budget}
        whole = kvviz.generate(tiny, sample.context, row.method, question=" what?", max_new_tokens=3, **fields)
        assert row.text == whole.text
        assert row.score == len(set(whole.text)) / len(whole.text)
        assert (row.depth, row.kind, row.prompt_tokens) == (sample.details["depth"], "letters", 50)
        assert json.loads(row.method_config) == fields
    for row in table[(table.task == "guessing") & (table.method == "full")].itertuples():
        sample = Guessing().sample(tiny, 60, row.sample, 5)
        ids = tiny.encode(sample.context + sample.turns[0].answers[0])
        logits = tiny.model(ids).logits[0, -6:-1].log_softmax(-1)
        assert row.score == pytest.approx(-float(logits.gather(1, ids[0, -5:, None]).mean()), rel=1e-5)
    assert set(table.model_hash) == {kvviz.models.provenance.model_hash(tiny.model)}
    assert list(table[table.method == "full"].budget.isna().unique()) == [True]


def test_nothing_but_the_cells_asked_for_decides_the_rows(tiny, folder, tmp_path):
    """Order of arguments, a grid run in parts, one interrupted: the same bytes."""
    tasks = [Letters(), Guessing(), Letters(placement="last")]
    evaluate(tiny, tasks, few(), BUDGETS, LENGTHS, samples=2, out=tmp_path / "one.parquet")
    whole = (tmp_path / "one.parquet").read_bytes()
    backwards = dict(reversed(few().items()))
    evaluate(folder, tasks[::-1], backwards, BUDGETS[::-1], LENGTHS[::-1], samples=2, out=tmp_path / "two.parquet")
    assert (tmp_path / "two.parquet").read_bytes() == whole
    parts = tmp_path / "parts.parquet"
    for asked in (
        ([tasks[0]], few("snapkv"), BUDGETS[:1], LENGTHS[1:], 1),
        (tasks, few("snapkv"), BUDGETS, LENGTHS[1:], 1),
        (tasks, few(), BUDGETS, LENGTHS, 2),
    ):
        table = evaluate(tiny, *asked[:4], samples=asked[4], out=parts)
    assert parts.read_bytes() == whole
    pd.testing.assert_frame_equal(table, load_results(tmp_path / "one.parquet"), check_exact=True)
    assert not (tmp_path / "parts.parquet.cells").exists()


def test_a_larger_grid_runs_only_what_is_new(tiny, out, monkeypatch):
    seen = ran(monkeypatch)

    def more(labels, budgets, samples):
        seen.clear()
        evaluate(tiny, [Letters()], few(*labels), budgets, [40], samples=samples, out=out)
        return sorted(seen)

    assert more(["snapkv"], [20], 1) == [("snapkv", 20, 0)]
    assert more(["snapkv", "clusterkv"], [20], 1) == [("clusterkv", 20, 0)]
    assert more(["snapkv"], [20, 24], 1) == [("snapkv", 24, 0)]
    assert more(["snapkv"], [20], 2) == [("snapkv", 20, 1)]
    before = out.read_bytes()
    assert more(["snapkv"], [24, 20], 1) == []
    assert out.read_bytes() == before
    assert len(load_results(out)) == 2 * 4


def test_a_prompt_is_no_metadata_of_a_method(tiny):
    asked = few("quest", "streaming_llm") | {"full": "full", "oracle": "oracle"}
    table = evaluate(tiny, [Letters()], asked, [20], [60], samples=1)
    found = table.groupby("method")["metadata_bytes"].max()
    assert found.drop("quest").eq(0).all()
    assert found["quest"] > 0


def test_an_interrupted_grid_can_be_read_and_goes_on(tiny, out, monkeypatch):
    asked = (tiny, [Letters()], few(), BUDGETS, [40])
    whole = evaluate(*asked, samples=2)
    with monkeypatch.context() as patched:
        interrupt_after(patched, 3)
        with pytest.raises(KeyboardInterrupt):
            evaluate(*asked, samples=1, out=out)
    assert not out.exists()
    partly = load_results(out)
    assert len(partly) == 3 * 2
    assert partly.attrs["model_hash"] == kvviz.models.provenance.model_hash(tiny.model)
    seen = ran(monkeypatch)
    evaluate(*asked, samples=1, out=out)
    assert len(seen) == 1
    with monkeypatch.context() as patched:  # the next sample: a file and a journal
        interrupt_after(patched, 2)
        with pytest.raises(KeyboardInterrupt):
            evaluate(*asked, samples=2, out=out)
    assert len(load_results(out)) == (4 + 2) * 2
    pd.testing.assert_frame_equal(evaluate(*asked, samples=2, out=out), whole, check_exact=True)


@pytest.fixture
def ctrl_c():
    """Ctrl-C interrupts, even where tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_while_a_model_computes(tiny, out, tmp_path):
    task = Deadly(mark=str(tmp_path / "mark"), sent=2)
    with pytest.raises(KeyboardInterrupt):
        evaluate(tiny, [task], few(), BUDGETS, [40], samples=2, out=out)
    assert len(load_results(out)) == 3 * 2  # the fourth cell's first answer was the seventh
    assert len(evaluate(tiny, [task], few(), BUDGETS, [40], samples=2, out=out)) == 8 * 2


def test_presets_are_named(tiny):
    given = {"mine": create("clusterkv", budget=20, **FIELDS), "theirs": "clusterkv", "other": create("clusterkv")}
    table = evaluate(tiny, [Letters()], given, [64], [40], samples=1)
    assert dict(zip(table.method, table.preset, strict=True)) == {"mine": "own", "theirs": "paper", "other": "paper"}


def test_one_thread_computes_whatever_the_caller_uses(tiny, monkeypatch):
    seen = []
    monkeypatch.setattr(Letters, "score", lambda *_: seen.append(torch.get_num_threads()) or 1.0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        evaluate(tiny, [Letters()], few(), [20], [40], samples=1)
        with joblib.parallel_config(backend="threading"):
            evaluate(tiny, [Letters()], few(), [20], [40], samples=4, jobs=2)
        assert seen == [1] * 20
        with ThreadPoolExecutor(1) as pool:
            assert (torch.get_num_threads(), pool.submit(torch.get_num_threads).result()) == (2, 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_line_counts_the_cells(tiny, monkeypatch, jobs):
    written = io.StringIO()
    bars = []

    def shown(*args, **named):
        bars.append(tqdm(*args, **{**named, "disable": False, "file": written, "mininterval": 0}))
        return bars[-1]

    monkeypatch.setattr(run, "tqdm", shown)
    with joblib.parallel_config(backend="threading"):
        evaluate(tiny, [Letters()], few(), [20, 24], [40], samples=3, jobs=jobs)
    assert [(bar.n, bar.total) for bar in bars] == [(12, 12)]
    assert written.getvalue().count("\n") == 1
    assert re.search(r"8/12 \[\d+:\d+<\d+:\d+", written.getvalue()), "with the time left"
