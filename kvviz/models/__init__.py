"""Language models: loading them, the shape of their attention, and where numbers measured on them come from.

It imports the errors and the trace's geometry alone, and loads on first use: provenance needs neither torch nor
transformers.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
