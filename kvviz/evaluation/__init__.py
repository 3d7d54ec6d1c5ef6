"""Grids of tasks, lengths, methods and budgets: run, kept on disk, resumed, read again and reported."""

from .report import markdown, report
from .results import load_results
from .run import evaluate
from .statistics import differences, orderings, perplexity_table, summary, wins

__all__ = [
    "differences", "evaluate", "load_results", "markdown", "orderings", "perplexity_table", "report", "summary", "wins",
]  # fmt: skip
