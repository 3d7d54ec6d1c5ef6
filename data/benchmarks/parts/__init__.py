"""One file for each part of what `run.py` measures; `run()` of each returns its results as JSON."""
