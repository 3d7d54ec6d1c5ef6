"""A real JupyterLab in a real Chromium, for tests of widgets and notebooks."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[2]
NO_BROWSER = os.environ.get("KVVIZ_NO_BROWSER") == "1"
NO_BROWSER_REASON = "KVVIZ_NO_BROWSER=1: real-browser tests switched off"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip
PLACES = {
    "HOME": "home",
    "IPYTHONDIR": "ipython",
    "JUPYTER_CONFIG_DIR": "config",
    "JUPYTER_DATA_DIR": "data",
    "JUPYTERLAB_SETTINGS_DIR": "settings",
    "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
}
READY = """() => {
    const session = window.jupyterapp?.shell?.currentWidget?.sessionContext;
    return session?.isReady && session.session?.kernel?.status === "idle";
}"""
SET_CODE = """code => {
    window.jupyterapp.shell.currentWidget.content.model.cells.get(0).sharedModel.setSource(code);
}"""
START_S = 300  # generous: machines may be busy


def chromium_arguments() -> dict[str, Any]:
    """Launch arguments of the system's Chromium. Raises RuntimeError, with what to install, if there is none."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise RuntimeError(
            "real-browser tests: no chromium on the PATH; install it (Debian: apt-get install chromium), or set "
            "KVVIZ_NO_BROWSER=1 to leave them out"
        )
    return {"executable_path": chromium, "args": list(FLAGS)}


@contextmanager
def jupyterlab(
    folder: Path, private: Path, env: Mapping[str, str], settings: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[str]:  # fmt: skip
    """The address, with its token, of a JupyterLab in `folder`, with settings and caches under `private`.

    `settings` are those of JupyterLab's apputils-extension, by the name of their file.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    stored = private / "settings/@jupyterlab/apputils-extension"
    stored.mkdir(parents=True)
    for name, values in ({"notification": {"fetchNews": "false"}} | dict(settings or {})).items():
        (stored / f"{name}.jupyterlab-settings").write_text(json.dumps(values))
    for name in PLACES.values():
        (private / name).mkdir(exist_ok=True)
    # Kernels get sockets in a folder, with short paths, since another process may take a port before they open it.
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--LabApp.expose_app_in_browser=True"),
        *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"),
        *(f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={token}", "--KernelManager.transport=ipc"),
    ]
    log = private / "lab.log"
    with log.open("w") as output, tempfile.TemporaryDirectory(prefix="lab-") as runtime:
        environment = os.environ | {key: str(private / name) for key, name in PLACES.items()}
        environment |= {"JUPYTER_RUNTIME_DIR": runtime, **env}
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_until_up(f"http://127.0.0.1:{port}/api?token={token}", server, log)
            yield f"http://127.0.0.1:{port}/lab/tree/{{name}}?token={token}&reset"
        finally:
            server.terminate()
            server.wait(30)


@contextmanager
def lab_page(
    notebook: Path, browser: Browser, private: Path, env: Mapping[str, str] | None = None,
    settings: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[Page]:  # fmt: skip
    """The page of `notebook`, open in a new JupyterLab with its kernel ready. The file may be written to.

    Raises AssertionError at the end if a script failed or the browser's console logged an error.
    """
    with jupyterlab(notebook.parent, private, {"PYTHONPATH": str(ROOT), **(env or {})}, settings) as address:
        context = browser.new_context(viewport={"width": 1400, "height": 1000})
        page = context.new_page()
        page.set_default_timeout(START_S * 1000)
        page.goto(address.format(name=notebook.name))
        page.wait_for_function(READY)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(error.stack or str(error)))
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        try:
            yield page
            assert not errors, "\n".join(errors)
        finally:
            context.close()


def run_all(page: Page) -> None:
    """Run all cells and wait for the last; AssertionError with the traceback if a cell failed."""
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")  # resolves after the last cell
    errors = page.evaluate("""() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells
        .flatMap(cell => cell.outputs ?? []).filter(output => output.output_type === "error")
        .map(output => output.traceback.join("\\n"))""")
    assert not errors, "\n".join(errors)


@contextmanager
def empty_lab(
    browser: Browser, folder: Path, env: Mapping[str, str] | None = None,
    settings: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[Page]:  # fmt: skip
    """The page of a notebook for `run_cell`, in a new JupyterLab with its files in `folder`."""
    for name in ("work", "private"):
        (folder / name).mkdir()
    notebook = write_notebook(folder / "work" / "live.ipynb", "")
    with lab_page(notebook, browser, folder / "private", env, settings) as page:
        yield page


def run_cell(page: Page, code: str) -> None:
    """Replace the first cell and its output by `code`, and run it; raises like `run_all`."""
    page.evaluate(SET_CODE, code)
    run_all(page)


def set_theme(page: Page, theme: str) -> None:
    """Change JupyterLab's theme, like its settings menu."""
    page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", theme)
    page.wait_for_function("theme => document.body.dataset.jpThemeName === theme", arg=theme)
    # JupyterLab removes its splash screen once per change, and fails if two changes share one.
    page.wait_for_selector("#jupyterlab-splash", state="detached")


def write_notebook(path: Path, *cells: str) -> Path:
    """Write a notebook with these code cells; returns its path."""
    empty = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    code_cells = [empty | {"id": f"cell-{number}", "source": cell} for number, cell in enumerate(cells)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path.write_text(json.dumps({"cells": code_cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))
    return path


def _wait_until_up(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start within {START_S} s:\n{log.read_text()}")
