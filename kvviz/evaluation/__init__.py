"""Grids of tasks, lengths, methods and budgets: run, kept on disk, resumed, and read again."""

from .results import load_results
from .run import evaluate

__all__ = ["evaluate", "load_results"]
