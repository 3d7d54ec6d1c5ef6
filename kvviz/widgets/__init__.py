"""Interactive widgets over recordings and traces: stepper, comparer, inspector, explorer; and predictions by readers.

They load on first use.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
