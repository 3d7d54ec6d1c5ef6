"""The widgets' latency in a browser."""

from __future__ import annotations

import sys
from itertools import chain
from typing import Any

from .inputs import ROOT


def widget() -> dict[str, Any]:
    """Milliseconds from a key press to each widget's new frame, on pages and in JupyterLab, in headless Chromium."""
    sys.path.insert(0, str(ROOT))  # the tests are not an installed package
    from tests.browser import latency
    from tests.browser.scenes import LONG, WIDGETS

    of_tokens = [name for name in WIDGETS if name != "canvas"]
    measured = chain(latency.measure_all(), latency.measure_all(of_tokens, tokens=LONG, trace_tokens=LONG))
    left_out = ("ms", "pictures")
    return {"rows": [{name: value for name, value in row.items() if name not in left_out} for row in measured]}
