"""Evaluation of methods: grids of tasks, lengths and budgets, their results on disk, statistics and reports.

It imports tasks, generation and the rooms below them. It loads on first use, so that `kvviz --help` is fast.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
