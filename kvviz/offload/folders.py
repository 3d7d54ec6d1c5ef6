"""Private temporary folders, removed when their process ends or, after a crash, when the next process makes one."""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import tempfile
import threading
import weakref
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX = "kvviz-"
LOCK = "lock"  # held while the process lives
MARKER = "kvviz-offload"  # written once the lock is held: a folder with it and a free lock is abandoned
MARK = "Keys and values that kvviz has offloaded. Removed once the process that made it has ended.\n"

_sweeping = threading.Lock()
_swept: set[Path] = set()


class PrivateFolder:
    """A folder under `parent` (the system's temporary folder by default) that only this user may enter.

    It is made when first needed, and removed when nothing refers to this object any more, at the latest when the
    interpreter ends. A killed process leaves its folder behind; the next process that makes a folder under the same
    parent removes it (`sweep`). A forked child makes its own folder and leaves its parent's alone.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent
        self._path: Path | None = None
        self._process = 0
        self._names = itertools.count()
        self._lock = threading.Lock()

    @property
    def parent(self) -> Path:
        """The folder in which the private one is made."""
        return self._parent or Path(tempfile.gettempdir())

    def new_file(self) -> Path:
        """The path for a new file. Raises OSError if the folder cannot be made."""
        with self._lock:
            if self._path is None or self._process != os.getpid():
                self._path, self._process = self._made(), os.getpid()
            return self._path / f"{next(self._names)}.rows"

    def _made(self) -> Path:
        parent = self.parent.resolve()
        with _sweeping:
            if parent not in _swept:
                _swept.add(parent)
                sweep(parent)
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = FileLock(path / LOCK, thread_local=False)  # the last reference may end in another thread
        weakref.finalize(self, _end, path, lock, os.getpid())
        lock.acquire(timeout=0)
        (path / MARKER).write_text(MARK)
        return path


def sweep(parent: Path) -> list[Path]:
    """Remove the folders under `parent` that kvviz made for this user and whose process has ended; returns them.

    Links stay, as do folders of other users, open to others, without our marker, or whose lock is held. A process that
    is killed between making its folder and marking it leaves an empty folder, which stays too.
    """
    removed = []
    for path in sorted(parent.glob(f"{PREFIX}*")):
        with suppress(OSError, Timeout, RuntimeError):  # held, or removed by another process meanwhile
            if not _is_ours(path):
                continue
            lock = FileLock(path / LOCK, thread_local=False)
            lock.acquire(timeout=0)
            _remove(path, lock)
            removed.append(path)
    return removed


def _is_ours(path: Path) -> bool:
    kinds = (path, stat.S_ISDIR), (path / MARKER, stat.S_ISREG), (path / LOCK, stat.S_ISREG)
    for entry, is_kind in kinds:
        status = entry.lstat()
        if not is_kind(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
            return False
    return os.name == "nt" or not path.lstat().st_mode & 0o077


def _end(path: Path, lock: FileLock, process: int) -> None:
    if process == os.getpid():  # a forked child must not remove its parent's folder
        _remove(path, lock)


def _remove(path: Path, lock: FileLock) -> None:
    """Remove a folder whose lock is held; the marker goes last, so that a sweep can finish an interrupted removal."""
    with suppress(OSError):
        for entry in path.iterdir():
            if entry.name not in (LOCK, MARKER):
                remove_file(entry)
        if {entry.name for entry in path.iterdir()} <= {LOCK, MARKER}:
            (path / MARKER).unlink(missing_ok=True)
    lock.release()
    if not (path / MARKER).exists():  # Windows keeps files that are still mapped, until the next sweep
        shutil.rmtree(path, ignore_errors=True)


def remove_file(path: Path, process: int | None = None) -> None:
    """Remove a file if it exists and can be removed; with a process id, only in that process."""
    if process in (None, os.getpid()):
        with suppress(OSError):
            path.unlink()
