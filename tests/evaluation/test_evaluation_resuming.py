"""Grids that are killed or run out of disk space lose and duplicate nothing; and memory does not grow."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import time
from collections import Counter
from pathlib import Path

import joblib
import pandas as pd
import psutil
import pytest

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.evaluation import evaluate, load_results, results
from tests.evaluation.evaluation_tasks import Letters, content, methods, run_grid, save_model, without_times

MOMENTS = ("0", "1", "11", "half a line", "file", "journal")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server():
    """A server of processes that have already imported the modules and have no other threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.evaluation.evaluation_tasks", "transformers.models.llama.modeling_llama"])
    return context


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "results.parquet"
    run_grid(folder, path)
    return path


@pytest.fixture
def out(tmp_path):
    return tmp_path / "results.parquet"


def finished_keys(out):
    """How often each key was written, over the files of all processes."""
    lines = [line for path in Path(f"{out}.cells").glob("*.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]
    return Counter(json.loads(line)["key"] for line in lines)


def die(sent=signal.SIGKILL):
    os.kill(os.getpid(), sent)


def run_and_die(folder, out, moment, sent=signal.SIGKILL):
    """Run a grid that dies after `moment` cells, or at a step of its end; call it in a separate process."""
    append, replace, appended = results._append, os.replace, []

    def fatal_append(path, data):
        if str(len(appended)) == moment:
            die(sent)
        if moment == "half a line" and len(appended) == 6:
            append(path, data[: len(data) // 2])
            die()
        appended.append(path)
        append(path, data)

    def fatal_replace(source, target):
        if moment == "file" and str(target) == str(out):
            die()
        replace(source, target)

    results._append, os.replace = fatal_append, fatal_replace
    if moment == "journal":
        results.shutil.rmtree = lambda *args, **named: die()
    run_grid(folder, out)


def ended(process):
    process.join(60)
    return process.exitcode


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_grid_resumes(folder, undisturbed, server, out, moment):
    process = server.Process(target=run_and_die, args=(folder, out, moment))
    process.start()
    assert ended(process) == -signal.SIGKILL
    before = finished_keys(out)
    assert len(before) == (int(moment) if moment.isdecimal() else 6 if moment == "half a line" else 56)
    assert out.exists() == (moment == "journal")
    if before:
        partly = load_results(out)
        assert set(partly.key) == set(before)
    table = run_grid(folder, out)
    pd.testing.assert_frame_equal(table, load_results(out), check_exact=True)
    assert not table.duplicated(["key", "turn"]).any()
    assert content(out) == content(undisturbed)
    assert os.listdir(out.parent) == [out.name]


def loky_workers(process):
    return [child for child in psutil.Process(process.pid).children() if "LokyProcess" in str(child.cmdline())]


@pytest.mark.slow
def test_processes_of_a_killed_grid_end(folder, undisturbed, server, out):
    """Both the worker that is running, and the one that gets its first sample after the grid has died."""
    process = server.Process(target=run_grid, args=(folder, out, 2))
    process.start()
    workers = []
    try:
        while len(workers) < 2:
            assert process.is_alive()
            time.sleep(0.01)
            workers = loky_workers(process)
        workers[1].suspend()
        while not finished_keys(out):
            assert process.is_alive()
            time.sleep(0.01)
    finally:
        process.kill()
        ended(process)
        for worker in workers[1:]:
            worker.resume()
    assert psutil.wait_procs(workers, timeout=600)[1] == []
    assert load_results(out).key.nunique() < 56
    run_grid(folder, out)
    assert content(out) == content(undisturbed)


@pytest.mark.slow
def test_an_idle_process_of_a_killed_grid_ends(folder, server, out):
    """loky would keep it, with its model, for five minutes."""
    process = server.Process(target=run_and_wait, args=(folder, out))
    process.start()
    try:
        while not out.exists():
            assert process.is_alive()
            time.sleep(0.05)
        workers = loky_workers(process)
    finally:
        process.kill()
        ended(process)
    assert len(workers) == 2
    assert psutil.wait_procs(workers, timeout=600)[1] == []


def run_and_wait(folder, out):
    joblib.Parallel(n_jobs=2)(joblib.delayed(meet)(out.parent) for _ in range(2))  # else one process may run everything
    run_grid(folder, out, 2)
    signal.pause()


def meet(folder):
    """Wait until a second process has called this too."""
    (folder / f"{os.getpid()}.here").touch()
    while len(list(folder.glob("*.here"))) < 2:
        time.sleep(0.01)


@pytest.mark.slow
def test_one_process_at_a_time(folder, undisturbed, server, out):
    process = server.Process(target=run_and_die, args=(folder, out, "9", signal.SIGSTOP))
    process.start()
    try:
        while sum(finished_keys(out).values()) < 9:
            assert process.is_alive()
            time.sleep(0.05)
        with pytest.raises(InvalidInputError, match="which another process is writing; wanted another file"):
            run_grid(folder, out)
        running = load_results(out)
        assert running.key.nunique() == 9
    finally:
        process.kill()
        ended(process)
    run_grid(folder, out)
    assert content(out) == content(undisturbed)


def run_on_a_small_disk(folder, out):
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, resource.RLIM_INFINITY))  # at most 9,000 bytes per file
    try:
        run_grid(folder, out)
    except OSError as error:
        Path(f"{out}.error").write_text(f"{error} {error.__notes__[0]}")


@pytest.mark.slow
def test_a_disk_that_fills_up(folder, undisturbed, server, out):
    process = server.Process(target=run_on_a_small_disk, args=(folder, out))
    process.start()
    assert ended(process) == 0
    message = Path(f"{out}.error").read_text()
    assert "File too large The finished cells are in" in message
    assert all(path.stat().st_size < 9_000 for path in Path(f"{out}.cells").glob("*.jsonl"))
    partly = load_results(out)
    all_rows = load_results(undisturbed)
    assert 0 < len(partly) < len(all_rows)
    expected = all_rows[all_rows.key.isin(partly.key)].reset_index(drop=True)[partly.columns]
    pd.testing.assert_frame_equal(without_times(partly), without_times(expected), check_exact=True)
    run_grid(folder, out)
    assert content(out) == content(undisturbed)


def measure_peak(folder, out):
    """Peak resident memory in KiB after a few cells, and after many."""
    lm = kvviz.load(folder, device="cpu")
    peaks = []
    for samples in (2, 1, 40):  # the first run loads modules and the model
        evaluate(lm, [Letters()], {"snapkv": methods()["snapkv"]}, [20, 24, 28, 30, 32], [400], samples=samples)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    Path(out).write_text(json.dumps(peaks[1:]))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_cells(server, tmp_path):
    """Compares 5 cells with 200. Rows take 8 MB; prefills that stayed would take 34 MB, caches 57 MB."""
    folder = save_model(tmp_path / "four layers", layers=4)
    process = server.Process(target=measure_peak, args=(folder, tmp_path / "peaks.json"))
    process.start()
    assert ended(process) == 0
    few, many = json.loads((tmp_path / "peaks.json").read_text())
    assert many - few < 16 * 1024
