"""Language models: loading, the shape of their attention, and the provenance of measurements on them.

It imports only the errors and the trace's geometry, and loads on first use: provenance needs neither torch nor
transformers.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
