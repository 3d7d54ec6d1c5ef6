"""Kernels of the papers that kvviz does not use itself. Modules here import Triton, and are imported when needed."""
