"""Grids of tasks, lengths, methods and budgets: run, kept on disk, resumed, read again and reported.

It imports tasks, generation and what lies below them, and loads on first use, so that `kvviz --help` answers at once.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
