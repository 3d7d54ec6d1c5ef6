"""Grids in several processes, threads, and on a cluster give the same bytes, even if a worker dies."""

from __future__ import annotations

from pathlib import Path

import joblib
import pandas as pd
import pytest
from joblib._parallel_backends import ThreadingBackend

from kvviz.errors import InvalidInputError
from kvviz.evaluation import evaluate, load_results
from tests.evaluation.evaluation_tasks import BUDGETS, LENGTHS, Deadly, Wrong, content, few, run_grid, save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "results.parquet"
    run_grid(folder, path)
    return path


@pytest.fixture
def out(tmp_path):
    return tmp_path / "results.parquet"


def deadly_grid(folder, out, mark, jobs):
    return evaluate(folder, [Deadly(mark=str(mark))], few(), BUDGETS, LENGTHS, samples=3, out=out, jobs=jobs)


def answers_scored(mark):
    return len(Path(f"{mark}.scored").read_text().splitlines())


@pytest.mark.slow
def test_two_processes_write_the_same_rows(folder, undisturbed, out):
    table = run_grid(folder, out, jobs=2)
    pd.testing.assert_frame_equal(table, load_results(out), check_exact=True)
    assert content(out) == content(undisturbed)


@pytest.mark.slow
def test_an_error_in_a_process_reaches_the_caller(folder, out):
    """Sample 4 fails; when a process starts it, at least three of the four samples before it are finished."""
    with pytest.raises(InvalidInputError, match=r"score of task wrong: got 2\.0; wanted a number from 0 to 1") as found:
        evaluate(folder, [Wrong(first=4)], few(), [20], [40], samples=6, out=out, jobs=2)
    assert "By clusterkv at budget 20." in found.value.__notes__
    before = evaluate(folder, [Wrong(first=4)], few(), [20], [40], samples=4)
    finished = before.key.isin(load_results(out).key).groupby(before["sample"]).all()  # a process may be at any of them
    assert finished.sum() >= 3


class NoGenerator(ThreadingBackend):
    """Like the backend "multiprocessing": results arrive when all of them are ready."""

    supports_return_generator = False


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["threading", NoGenerator()])
def test_threads_write_the_same_bytes(folder, undisturbed, out, backend):
    with joblib.parallel_config(backend=backend):
        run_grid(folder, out, jobs=2)
    assert content(out) == content(undisturbed)


@pytest.mark.slow
def test_a_process_that_dies_keeps_the_finished_cells(folder, out, tmp_path):
    """loky abandons the rest; the same call continues."""
    mark = tmp_path / "mark"
    with pytest.raises(RuntimeError, match="unexpectedly terminated"):
        deadly_grid(folder, out, mark, 2)
    assert mark.exists()
    before = load_results(out)
    scored = answers_scored(mark)
    assert 3 * 2 <= len(before) < 24 * 2
    table = deadly_grid(folder, out, mark, 1)
    assert set(before.key) < set(table.key)
    assert answers_scored(mark) - scored == len(table) - len(before), "nothing is computed twice"
    deadly_grid(folder, tmp_path / "undisturbed.parquet", mark, 1)
    assert content(out) == content(tmp_path / "undisturbed.parquet")


@pytest.mark.slow
def test_a_cluster_whose_worker_is_killed(folder, tmp_path):
    """Two processes of dask; one dies with three cells of a sample on disk, and the other runs the rest."""
    distributed = pytest.importorskip("distributed")
    mark, remote, local_out = tmp_path / "mark", tmp_path / "remote.parquet", tmp_path / "local.parquet"
    local = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, local_directory=str(tmp_path)
    )
    with local as cluster, distributed.Client(cluster), joblib.parallel_config(backend="dask"):
        table = deadly_grid(folder, remote, mark, 2)
        with pytest.raises(InvalidInputError, match=r"score of task wrong: got 2\.0; wanted") as found:
            evaluate(folder, [Wrong(first=0)], {"full": "full"}, [], [40], samples=2, jobs=2)
    assert mark.exists()
    assert table.key.nunique() == 24
    assert not table.duplicated(["key", "turn"]).any()
    assert answers_scored(mark) == 48 + 1, "only the first answer of the cell in which the worker died is scored twice"
    assert "of wrong at 40 tokens, seed 0." in found.value.__notes__[-1]
    deadly_grid(folder, local_out, mark, 1)
    assert content(remote) == content(local_out)


@pytest.mark.slow
def test_ray_whose_worker_is_killed(folder, tmp_path, monkeypatch):
    """Ray abandons the rest, like loky; the same call on Ray continues and writes the same bytes."""
    ray = pytest.importorskip("ray")
    register = pytest.importorskip("ray.util.joblib").register_ray
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else it writes a token to the home folder
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")  # else it reports the run to its makers
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else its workers, at 15, wait minutes on a busy machine
    mark, remote, local_out = tmp_path / "mark", tmp_path / "remote.parquet", tmp_path / "local.parquet"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        register()
        with joblib.parallel_config(backend="ray"):
            with pytest.raises(ray.exceptions.ActorDiedError):
                deadly_grid(folder, remote, mark, 2)
            finished, scored = load_results(remote).key.nunique(), answers_scored(mark)
            table = deadly_grid(folder, remote, mark, 2)
    finally:
        ray.shutdown()
    assert 3 <= finished < 24
    again = answers_scored(mark) - scored - 2 * (24 - finished)
    assert abs(again) <= 1, "nothing is computed twice, except in the cell where Ray stopped the other worker"
    assert table.key.nunique() == 24
    deadly_grid(folder, local_out, mark, 1)
    assert content(remote) == content(local_out)
