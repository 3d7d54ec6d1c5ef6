"""Private folders are deleted when their process ends, however it ends, and folders of other processes stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvviz.offload import folders
from kvviz.offload.folders import LOCK, MARKER, PrivateFolder, sweep

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and owners of a POSIX system")

# The package of folders.py imports torch, but processes that only make folders do not need it.
LIGHT = """
import sys, types
for name in ("kvviz", "kvviz.offload"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path := {root!r} + "/" + name.replace(".", "/")]
import os, time
from pathlib import Path
from kvviz.offload.folders import PrivateFolder
parent = Path({parent!r})
def make():
    folder = PrivateFolder(parent)
    file = folder.new_file()
    file.write_bytes(b"rows")
    return folder, file
"""
STORE = """
import os, sys, time
import torch
from kvviz.offload import KVStore
kept = KVStore("disk", folder={parent!r})
store = kept.layer(lambda length: 50)
store.append(*torch.randn(2, 1, 2, 400, 8))
store.offload(newest=8)
store.wait()
"""
ROOT = str(Path(__file__).parents[2])


def started(code, parent, tail):
    text = code.format(root=ROOT, parent=str(parent)) + tail
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process, code=0):
    out, errors = process.communicate(timeout=600)
    assert process.returncode == code, errors
    return out, errors


def entries(parent):
    return sorted(path.name for path in parent.iterdir())


@pytest.fixture
def fresh(monkeypatch):
    """A state as if this process had not swept yet."""
    monkeypatch.setattr(folders, "_swept", set())


@pytest.mark.slow
def test_the_next_process_removes_folders_of_killed_processes_only(tmp_path):
    """With real stores: one process killed, one alive and one that sweeps."""
    wait = "print('ready', flush=True); time.sleep(60)"
    killed, living = (started(STORE, tmp_path, wait) for _ in range(2))
    for process in (killed, living):
        assert process.stdout.readline() == "ready\n"
    assert len(entries(tmp_path)) == 2
    killed.kill()
    ended(killed, -signal.SIGKILL)
    assert len(entries(tmp_path)) == 2, "a killed process cannot remove its folder"
    out, _ = ended(started(STORE, tmp_path, f"print(*sorted(os.listdir({str(tmp_path)!r})))"))
    listed = out.split()
    assert len(listed) == 2, "those of the living process and of the one that lists"
    (remaining,) = entries(tmp_path)
    assert remaining in listed
    assert {path.suffix for path in (tmp_path / remaining).iterdir()} == {".rows", ""}
    living.terminate()
    ended(living, -signal.SIGTERM)
    assert len(sweep(tmp_path)) == 1
    assert not entries(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tail", "code"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError('no')", 1), ("del kept, store", 0)]
)
def test_a_process_that_ends_itself_leaves_no_folder(tmp_path, tail, code):
    _, errors = ended(started(STORE, tmp_path, tail), code)
    assert "ignored" not in errors, "an exception at interpreter shutdown"
    assert not entries(tmp_path)


@pytest.mark.slow
def test_processes_that_start_at_once_keep_each_others_folders(tmp_path):
    """Eight processes make and remove forty folders while all of them sweep, with abandoned folders present."""
    for _ in range(6):
        ended(started(LIGHT, tmp_path, "kept = make(); os.kill(os.getpid(), 9)"), -signal.SIGKILL)
    assert len(entries(tmp_path)) == 1, "each process sweeps the folder of the previous one"
    tail = f"""
from kvviz.offload import folders
while time.time() < {time.time() + 1.5}: pass
for _ in range(5):
    folders._swept.clear()
    folder, file = make()
    folders.sweep(parent)
    time.sleep(0.01)
    assert file.read_bytes() == b"rows"
    del folder
    assert not file.exists()
"""
    for process in [started(LIGHT, tmp_path, tail) for _ in range(8)]:
        ended(process)
    assert not entries(tmp_path)


def test_a_forked_child_keeps_its_parents_folder(tmp_path):
    tail = """
folder, file = make()
child = os.fork()
if not child:
    own = folder.new_file()
    own.write_bytes(b"child")
    assert own.parent != file.parent
    del folder
    assert file.exists()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert file.read_bytes() == b"rows"
from kvviz.offload.folders import sweep
assert sweep(parent) == [], "the lock is still held"
assert len(list(parent.iterdir())) == 1, "the child's folder was deleted with it"
"""
    ended(started(LIGHT, tmp_path, tail))
    assert not entries(tmp_path)


def abandoned(parent, name="kvviz-abandoned"):
    folder = parent / name
    folder.mkdir(mode=0o700)
    for file in (LOCK, MARKER, "0.rows"):
        (folder / file).write_text("")
    return folder


def test_only_our_folders_are_swept(tmp_path, fresh):
    outside = tmp_path / "outside"
    outside.mkdir()
    target = abandoned(outside)
    (tmp_path / "kvviz-link").symlink_to(target, target_is_directory=True)
    kept = {"kvviz-link", "outside"}
    for missing in (LOCK, MARKER):
        (abandoned(tmp_path, f"kvviz-no-{missing}") / missing).unlink()
        kept.add(f"kvviz-no-{missing}")
    abandoned(tmp_path, "kvviz-open").chmod(0o755)
    linked = abandoned(tmp_path, "kvviz-linked-marker")
    (linked / MARKER).unlink()
    (linked / MARKER).symlink_to(target / MARKER)
    abandoned(tmp_path, "other-name")
    (tmp_path / "kvviz-file").write_text("")
    own_folder = abandoned(tmp_path)
    foreign_file = outside / "precious"
    foreign_file.write_text("data")
    (own_folder / "link").symlink_to(foreign_file)
    kept |= {"kvviz-open", "kvviz-linked-marker", "other-name", "kvviz-file"}
    PrivateFolder(tmp_path).new_file()
    assert set(entries(tmp_path)) == kept
    assert target.exists()
    assert foreign_file.read_text() == "data", "a link in a folder is removed, but not its target"


def test_another_users_folder_is_not_swept(tmp_path, monkeypatch):
    abandoned(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert sweep(tmp_path) == []


def test_a_process_sweeps_once(tmp_path, fresh):
    first = PrivateFolder(tmp_path)
    first.new_file()
    abandoned(tmp_path)
    second = PrivateFolder(tmp_path)
    assert second.new_file().parent != first.new_file().parent
    assert len(entries(tmp_path)) == 3
    names = [first.new_file().name for _ in range(3)]
    assert len(set(names)) == 3
    del first, second
    assert entries(tmp_path) == ["kvviz-abandoned"]
