"""See, understand, compare and use KV-cache retrieval and compression for long-context language models.

Everything here loads on first use: `import kvviz` itself loads neither torch, transformers, plotly nor ipywidgets.
What there is, and in which room it lives, stands in `__init__.pyi`, which editors and type checkers read too.
"""

from __future__ import annotations

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
