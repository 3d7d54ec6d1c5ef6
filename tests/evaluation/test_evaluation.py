"""Grids in one process: which cells run, the contents of rows, and how a file is continued."""

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
from pyarrow import parquet
from tqdm import tqdm

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.evaluation import evaluate, example_cells, load_results, run
from kvviz.evaluation.example_cells import TIMES
from kvviz.methods import create
from kvviz.tasks.prompts import render
from tests.evaluation.evaluation_tasks import (
    BUDGETS,
    FIELDS,
    LENGTHS,
    Deadly,
    Guessing,
    Letters,
    content,
    few,
    interrupt_after,
    methods,
    save_model,
    without_times,
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
    """A list that collects (label, budget, sample) of every cell that runs from now on."""
    ran_cells = []

    def run_example(lm, example, cells, *args):
        ran_cells.extend((cell.label, cell.budget, example.index) for cell in cells)
        return original(lm, example, cells, *args)

    original = example_cells.run_example
    monkeypatch.setattr(run, "run_example", run_example)
    return ran_cells


@pytest.mark.slow
def test_a_sample_is_prefilled_once_for_all_cells(tiny, monkeypatch):
    passes, prefills = [], []
    monkeypatch.setattr(run, "run_example", lambda *args: prefills.append(example_cells.run_example(*args)))
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


def test_rows_equal_generate_and_the_tasks_score(tiny, out):
    """Answers are compared with `generate`, likelihoods with one pass through the model."""
    table = evaluate(tiny, [Letters(), Guessing()], few() | {"full": "full"}, BUDGETS, [60], samples=2, seed=5, out=out)
    assert len(table) == 2 * 5 * 3
    for row in table[(table.task == "letters") & (table.turn == 0)].itertuples():
        sample = Letters().sample(tiny, 60, row.sample, 5)
        method = few().get(row.method) or create("full")
        budget = {} if row.method == "full" else {"budget": 20 if row.budget == 20 else 0.75}
        fields = {**method.config, **budget}
        answer = kvviz.generate(tiny, sample.context, row.method, question=" what?", max_new_tokens=3, **fields)
        assert row.text == answer.text
        assert row.score == len(set(answer.text)) / len(answer.text)
        assert (row.depth, row.kind, row.prompt_tokens) == (sample.details["depth"], "letters", 50)
        assert json.loads(row.method_config) == fields
    for row in table[(table.task == "guessing") & (table.method == "full")].itertuples():
        sample = Guessing().sample(tiny, 60, row.sample, 5)
        ids = tiny.encode(sample.context + sample.turns[0].answers[0])
        logits = tiny.model(ids).logits[0, -6:-1].log_softmax(-1)
        assert row.score == pytest.approx(-float(logits.gather(1, ids[0, -5:, None]).mean()), rel=1e-5)
    assert set(table.model_hash) == {kvviz.models.provenance.model_hash(tiny.model)}
    assert list(table[table.method == "full"].budget.isna().unique()) == [True]


@pytest.mark.slow
def test_only_the_requested_cells_decide_the_rows(tiny, folder, tmp_path):
    """The order of arguments does not change the bytes, nor does running a grid in parts."""
    tasks = [Letters(), Guessing(), Letters(placement="last")]
    evaluate(tiny, tasks, few(), BUDGETS, LENGTHS, samples=2, out=tmp_path / "one.parquet")
    whole = content(tmp_path / "one.parquet")
    backwards = dict(reversed(few().items()))
    evaluate(folder, tasks[::-1], backwards, BUDGETS[::-1], LENGTHS[::-1], samples=2, out=tmp_path / "two.parquet")
    assert content(tmp_path / "two.parquet") == whole
    parts = tmp_path / "parts.parquet"
    for grid in (
        ([tasks[0]], few("snapkv"), BUDGETS[:1], LENGTHS[1:], 1),
        (tasks, few("snapkv"), BUDGETS, LENGTHS[1:], 1),
        (tasks, few(), BUDGETS, LENGTHS, 2),
    ):
        table = evaluate(tiny, *grid[:4], samples=grid[4], out=parts)
    assert content(parts) == whole
    pd.testing.assert_frame_equal(
        without_times(table), without_times(load_results(tmp_path / "one.parquet")), check_exact=True
    )
    assert not (tmp_path / "parts.parquet.cells").exists()


def test_a_larger_grid_runs_only_the_new_cells(tiny, out, monkeypatch):
    ran_cells = ran(monkeypatch)

    def more(labels, budgets, samples):
        ran_cells.clear()
        evaluate(tiny, [Letters()], few(*labels), budgets, [40], samples=samples, out=out)
        return sorted(ran_cells)

    assert more(["snapkv"], [20], 1) == [("snapkv", 20, 0)]
    assert more(["snapkv", "clusterkv"], [20], 1) == [("clusterkv", 20, 0)]
    assert more(["snapkv"], [20, 24], 1) == [("snapkv", 24, 0)]
    assert more(["snapkv"], [20], 2) == [("snapkv", 20, 1)]
    before = out.read_bytes()
    assert more(["snapkv"], [24, 20], 1) == []
    assert out.read_bytes() == before
    assert len(load_results(out)) == 2 * 4


def test_the_prompt_does_not_count_as_metadata(tiny):
    chosen = few("quest", "streaming_llm") | {"full": "full", "oracle": "oracle"}
    table = evaluate(tiny, [Letters()], chosen, [20], [60], samples=1)
    metadata = table.groupby("method")["metadata_bytes"].max()
    assert metadata.drop("quest").eq(0).all()
    assert metadata["quest"] > 0


def test_an_interrupted_grid_can_be_read_and_resumed(tiny, out, monkeypatch):
    grid = (tiny, [Letters()], few(), BUDGETS, [40])
    whole = evaluate(*grid, samples=2)
    with monkeypatch.context() as patched:
        interrupt_after(patched, 3)
        with pytest.raises(KeyboardInterrupt):
            evaluate(*grid, samples=1, out=out)
    assert not out.exists()
    partly = load_results(out)
    assert len(partly) == 3 * 2
    assert partly.attrs["model_hash"] == kvviz.models.provenance.model_hash(tiny.model)
    ran_cells = ran(monkeypatch)
    evaluate(*grid, samples=1, out=out)
    assert len(ran_cells) == 1
    with monkeypatch.context() as patched:  # the next sample: a file and a journal
        interrupt_after(patched, 2)
        with pytest.raises(KeyboardInterrupt):
            evaluate(*grid, samples=2, out=out)
    assert len(load_results(out)) == (4 + 2) * 2
    again = evaluate(*grid, samples=2, out=out)
    pd.testing.assert_frame_equal(without_times(again), without_times(whole), check_exact=True)


@pytest.fixture
def ctrl_c():
    """Make Ctrl-C interrupt, even if the tests run in the background of a shell, which ignores it."""
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
    chosen = {"mine": create("clusterkv", budget=20, **FIELDS), "theirs": "clusterkv", "other": create("clusterkv")}
    table = evaluate(tiny, [Letters()], chosen, [64], [40], samples=1)
    assert dict(zip(table.method, table.preset, strict=True)) == {"mine": "own", "theirs": "paper", "other": "paper"}


def test_cells_run_on_one_thread_whatever_the_caller_uses(tiny, monkeypatch):
    thread_counts = []
    monkeypatch.setattr(Letters, "score", lambda *_: thread_counts.append(torch.get_num_threads()) or 1.0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        evaluate(tiny, [Letters()], few(), [20], [40], samples=1)
        with joblib.parallel_config(backend="threading"):
            evaluate(tiny, [Letters()], few(), [20], [40], samples=4, jobs=2)
        assert thread_counts == [1] * 20
        with ThreadPoolExecutor(1) as pool:
            assert (torch.get_num_threads(), pool.submit(torch.get_num_threads).result()) == (2, 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_progress_bar_counts_the_cells(tiny, monkeypatch, jobs):
    output = io.StringIO()
    bars = []

    def shown(*args, **named):
        bars.append(tqdm(*args, **{**named, "disable": False, "file": output, "mininterval": 0}))
        return bars[-1]

    monkeypatch.setattr(run, "tqdm", shown)
    with joblib.parallel_config(backend="threading"):
        evaluate(tiny, [Letters()], few(), [20, 24], [40], samples=3, jobs=jobs)
    assert [(bar.n, bar.total) for bar in bars] == [(12, 12)]
    assert output.getvalue().count("\n") == 1
    assert re.search(r"8/12 \[\d+:\d+<\d+:\d+", output.getvalue()), "with the time left"


def test_a_file_of_an_earlier_release_has_no_times_and_is_continued(tiny, tmp_path):
    out = tmp_path / "one.parquet"
    evaluate(tiny, [Letters()], few("snapkv"), [20], [40], samples=1, out=out)
    later = [*TIMES, "attended_tokens", "peak_bytes"]
    parquet.write_table(parquet.read_table(out).drop_columns(later), out)
    assert load_results(out)[later].isna().all(axis=None)
    table = evaluate(tiny, [Letters()], few("snapkv"), [24], [40], samples=1, out=out)
    assert table["ttft_s"].notna().tolist() == (table["budget"] == 24).tolist()


def test_edits_are_cells_of_their_own(tiny, out, monkeypatch):
    """All heads exact by "full" is full attention, and a call with an edit more adds only its cells."""
    chosen = {"full": create("full"), "quest": create("quest", budget=BUDGETS[0], page_size=4, dense_layers=0)}
    arguments = (tiny, [Letters()], chosen, BUDGETS[:1], LENGTHS[:1])
    plain = evaluate(*arguments, samples=2, out=out)
    ran_cells = ran(monkeypatch)
    table = evaluate(*arguments, samples=2, out=out, edits={"exact": kvviz.exact(by="full")})
    assert {label for label, _, _ in ran_cells} == {"full, exact", "quest, exact"}
    assert len(table) == 2 * len(plain)
    texts = table.groupby("method")["text"].apply(list)
    assert texts["quest, exact"] == texts["full"] == texts["full, exact"]
    assert texts["quest"] == plain.groupby("method")["text"].apply(list)["quest"]
    config = json.loads(table.loc[table["method"] == "quest, exact", "method_config"].iloc[0])
    assert "Exact" in config["edit"]
    with pytest.raises(InvalidInputError, match=r"edits\['x'\]: got str; wanted an Edit"):
        evaluate(*arguments, edits={"x": "exact"})


def test_the_answers_log_probability_is_that_of_score(tiny):
    task = Letters()
    chosen = {"quest": create("quest", budget=BUDGETS[0], page_size=4, dense_layers=0), "full": create("full")}
    table = evaluate(tiny, [task], chosen, BUDGETS[:1], LENGTHS[:1], samples=1, logprobs=True)
    sample = task.sample(tiny, LENGTHS[0], 0, 0)
    prompt = render(tiny, sample, task.placement)
    for row in table[table["turn"] == 0].itertuples():
        score = kvviz.score(
            tiny, prompt.text, f" {sample.turns[0].answers[0]}", chosen[row.method], question=prompt.turns[0] or None
        )
        assert row.logprob == pytest.approx(score.total, abs=1e-4)
    assert table.loc[table["turn"] == 1, "logprob"].isna().all()
    without = evaluate(tiny, [task], chosen, BUDGETS[:1], LENGTHS[:1], samples=1)
    assert without["logprob"].isna().all()
    assert without["text"].tolist() == table["text"].tolist()
