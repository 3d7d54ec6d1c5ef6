"""Base class of all widgets, with the bundle; raises an error that says how to install anywidget if it is missing."""

from __future__ import annotations

import traitlets

from ..errors import MissingDependencyError
from . import assets

try:
    from anywidget import AnyWidget
except ImportError as error:
    raise MissingDependencyError("kvviz.widgets", "anywidget") from error


class LiveWidget(AnyWidget):
    """A widget that is drawn by one of the views in js/kvviz.js.

    With ANYWIDGET_HMR=1 it is drawn again whenever the bundle changes (`make js-watch`).
    """

    _esm = assets.SCRIPT
    _css = assets.STYLE
    _kvviz_view = traitlets.Unicode().tag(sync=True)
