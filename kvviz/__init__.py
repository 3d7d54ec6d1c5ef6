"""See, understand, compare and use KV-cache retrieval and compression for long-context language models.

All names load on first use: `import kvviz` alone loads neither torch, transformers, plotly nor ipywidgets.
`__init__.pyi` lists the public names and their rooms, also for editors and type checkers.
"""

from __future__ import annotations

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
