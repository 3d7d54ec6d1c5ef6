"""What all widgets share: anywidget's base class, or an error that says how to install it, and the bundle."""

from __future__ import annotations

import traitlets

from ..errors import MissingDependencyError
from . import assets

try:
    from anywidget import AnyWidget
except ImportError as error:
    raise MissingDependencyError("kvviz.widgets", "anywidget") from error


class LiveWidget(AnyWidget):
    """A widget that one of the views in js/kvviz.js draws.

    With ANYWIDGET_HMR=1 it is drawn anew whenever the bundle changes (`make js-watch`).
    """

    _esm = assets.SCRIPT
    _css = assets.STYLE
    _kvviz_view = traitlets.Unicode().tag(sync=True)
