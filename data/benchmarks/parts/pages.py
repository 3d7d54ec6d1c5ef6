"""The widgets' latency in a browser."""

from __future__ import annotations

import sys
from typing import Any

from .inputs import ROOT


def widget() -> dict[str, Any]:
    """Milliseconds from a key press to each widget's new frame, on pages and in JupyterLab, in headless Chromium."""
    sys.path.insert(0, str(ROOT))  # the tests are not an installed package
    from tests.browser import latency

    left_out = ("ms", "pictures")
    rows = [{name: value for name, value in row.items() if name not in left_out} for row in latency.measure_all()]
    return {"rows": rows}
