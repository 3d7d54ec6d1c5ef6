"""Shared fixtures. Uninitialised memory is filled with NaN, so that a kernel that forgets to write is caught."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings

# Machines may be busy: no test fails because it is slow.
settings.register_profile("kvviz", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvviz")
with suppress(ImportError):  # a machine with a GPU may have no browser
    from playwright.sync_api import expect

    expect.set_options(timeout=120_000)

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
if WORKERS > 1:  # before torch is imported: the workers and their subprocesses share the cores
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // WORKERS)))

import torch  # noqa: E402  # reads OMP_NUM_THREADS when it is imported

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton

torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.fixture(scope="session")
def lm():
    """The bundled SmolLM2-135M-Instruct."""
    import kvviz

    return kvviz.load("smollm2-135m", device="cpu")


@pytest.fixture(scope="session")
def long_lm():
    """Gemma-3-270M, which has sliding windows; skips the test if it is not installed."""
    import kvviz

    try:
        return kvviz.load("gemma3-270m", device="cpu")
    except kvviz.MissingDependencyError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def prose() -> str:
    """English reference prose that comes with Python."""
    from notebooks.runs.recipes import manual

    return manual()


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args):
    """Launch arguments of the system's Chromium, which Playwright uses here."""
    from tests.browser.lab import chromium_arguments

    return browser_type_launch_args | chromium_arguments()


def pytest_collection_modifyitems(config, items):
    """Leave out the tests marked gpu if there is no NVIDIA GPU; the summary says so."""
    if not torch.cuda.is_available():
        left_out = [item for item in items if item.get_closest_marker("gpu")]
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter):
    """Say which tests were left out."""
    if not torch.cuda.is_available():
        terminalreporter.write_line("Left out: the tests marked gpu, which need an NVIDIA GPU (make bench-gpu).")
