"""The parts of `run.py`, one file each; `run()` of each part returns its results as JSON."""
