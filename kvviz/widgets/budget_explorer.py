"""Slide a method's budget and fields over a trace: what it keeps, where the tokens went, which they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import traitlets
from numpy.typing import NDArray

from ..errors import InvalidInputError, KVVizError
from ..trace import Trace
from . import assets, content, explorer_budgets, explorer_data
from .live import AnyWidget

if TYPE_CHECKING:
    from ..generation.explore import Explored, Point

DEFAULT_SHARE = 8  # of the prompt, where no budget is given
ANY_BUDGET = 1 << 40
LONGEST = 8_192  # tokens explored where `tokens` does not say: a change takes about a second


class BudgetExplorer(AnyWidget):
    """A widget that runs `method` on one layer of `trace`, anew for each budget and field that its sliders give.

    Three linked pictures: the attention kept against the budget, below the oracle's curve; where the tokens went; and
    which tokens they are. The last eight tokens of the trace play the decode steps; the two lower pictures show the
    last of them. Arrow keys on the page change the budget.

    `budget` (tokens, or a share of the prompt; default: about an eighth of it), `layer` (default: the middle one in
    which the method chooses), `head` (a KV head, or a query head where the method chooses for each) and `settings` (the
    fields that have sliders) are traits: set them from Python, or observe them; `explored` holds all numbers of what is
    shown. Further fields of the method, `preset` among them, go by name. Of a trace longer than 8,192 tokens only as
    many from its start are explored, because a change would take minutes at 100,000; a note on the page says so, and
    `tokens` asks for another number. A trace's beginning is what a capture of that much text would have given.

    Raises InvalidInputError for anything that is no trace, for a layer or head it does not have, a layer that the
    method attends in full, and what the method raises for its fields.
    """

    _esm = assets.script("explorer_widget.js")
    _css = assets.style("explorer.css")

    budget = traitlets.Int(1).tag(sync=True)
    layer = traitlets.Int(0).tag(sync=True)
    head = traitlets.Int(0).tag(sync=True)
    settings = traitlets.Dict().tag(sync=True)
    page = traitlets.Dict().tag(sync=True)
    numbers = traitlets.Dict().tag(sync=True)
    slice = traitlets.Bytes().tag(sync=True)
    curve = traitlets.Dict().tag(sync=True)

    def __init__(
        self, trace: Trace, *, method: str = "clusterkv", budget: float | None = None,
        layer: int | None = None, head: int = 0, tokens: int | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        from ..generation.explore import Explorer

        beginning = _beginning(trace, tokens)
        self.explorer = Explorer(beginning)
        self._asked_tokens: dict[str, int] = {} if tokens is None else {"tokens": int(tokens)}
        self.method = method
        self._serial = 0
        self._published: tuple[int, int, int, dict[str, Any]] | None = None
        self._left: list[int] = []
        self._fixed: dict[str, Any] = dict(fields)
        if not isinstance(method, str):
            raise InvalidInputError("BudgetExplorer: method", type(method).__name__, "its name, and its fields by name")
        self.explorer.layers(method, **{"budget": ANY_BUDGET, **fields})  # raises for a field that no budget makes good
        stops = self.explorer.budgets(method, explorer_budgets.budgets(self.explorer.prompt_length), **fields)
        asked = self._default_budget(stops) if budget is None else budget
        layers = self.explorer.layers(method, **{**fields, "budget": asked})
        if layer is None:  # without a layer where the method chooses, `explored_at` says what to do
            layer = layers[len(layers) // 2] if layers else trace.layers[-1]
        explored = self.explored_at(asked, layer, head, {})
        budget = explored.recording.budget  # in tokens, where a share was asked for
        stops = sorted({*stops, budget})
        sliders = self.explorer.sliders(explored.method)
        settings = {slider.name: explored.method.config[slider.name] for slider in sliders}
        self._fixed = {name: value for name, value in fields.items() if name not in settings}
        self._curve_budgets = explorer_budgets.curve_budgets(stops)
        page = explorer_data.describe(explored, budgets=stops, sliders=sliders, layers=layers)
        page["notes"] = _notes(len(beginning), len(trace))
        super().__init__(budget=budget, layer=int(layer), head=int(head), settings=settings, page=page)
        self._publish()
        self.observe(self._changed, ["budget", "layer", "head", "settings"])
        self.on_msg(self._heard)

    def _default_budget(self, stops: list[int]) -> int:
        wanted = self.explorer.prompt_length // DEFAULT_SHARE
        if not stops:
            got = f"a prompt of {self.explorer.prompt_length} tokens, less than {self.method} may attend"
            raise InvalidInputError("BudgetExplorer", got, "a longer trace, or fewer sinks and recent tokens")
        return min(stops, key=lambda stop: abs(stop - wanted))

    @property
    def explored(self) -> Explored:
        """What is shown, with all its numbers (`kvviz.generation.explore.Explored`)."""
        return self.explored_at(self.budget, self.layer, self.head, self.settings)

    def highlighted(self) -> NDArray[np.int64]:
        """The positions attended at the last step in the head now shown, int64, ascending."""
        indices = self.explored.indices[self.head]
        return np.asarray(indices[indices >= 0])

    def show(
        self, *, budget: int | None = None, layer: int | None = None, head: int | None = None, **fields: Any
    ) -> None:
        """Change several of budget, layer, head and fields at once; raises as the constructor and changes nothing."""
        asked = {"budget": budget, "layer": layer, "head": head, "settings": self.settings | fields if fields else None}
        changes = {name: value for name, value in asked.items() if value is not None}
        now = {name: changes.get(name, getattr(self, name)) for name in asked}
        self.explored_at(now["budget"], now["layer"], now["head"], now["settings"])
        with self.hold_sync(), self.hold_trait_notifications():
            for name, value in changes.items():
                setattr(self, name, value)

    def curve_at(self, budget: int, **settings: Any) -> tuple[Point, Point]:
        """What the method and what the oracle keep with this budget, and with these fields in place of those shown."""
        values = {**self._fixed, **self.settings, **settings, "budget": budget}
        return (self.explorer.point(self.layer, self.method, **values),
                self.explorer.oracle_point(self.layer, self.method, **values))  # fmt: skip

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """One HTML page of the layer and head now shown, without a kernel or a network; also written to `path`.

        It holds a grid of selections: budgets × the values of the method's main field (the first slider), and says
        which. The file appears whole or not at all.
        """
        from .explorer_page import to_html

        return to_html(self, path)

    @traitlets.validate("budget", "layer", "head", "settings")
    def _check(self, proposal: Any) -> Any:
        now = {name: getattr(self, name) for name in ("budget", "layer", "head", "settings")}
        now[proposal["trait"].name] = proposal["value"]
        self.explored_at(now["budget"], now["layer"], now["head"], now["settings"])
        return proposal["value"] if proposal["trait"].name == "settings" else int(proposal["value"])

    @traitlets.default("curve")
    def _no_curve(self) -> dict[str, Any]:
        return {"points": [], "oracle": [], "done": False}

    def explored_at(self, budget: float, layer: int, head: int, settings: Mapping[str, Any]) -> Explored:
        """What the method does there; raises as the constructor."""
        explored = self.explorer.select(layer, self.method, **{**self._fixed, **settings, "budget": budget})
        content.between("head of a BudgetExplorer", head, 0, explored.indices.shape[0] - 1)
        return explored

    def numbers_at(self, budget: int, layer: int, head: int, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The numbers shown there, and the Python line that shows them."""
        given = {"method": self.method, "budget": budget, "layer": layer, "head": head}
        given |= self._asked_tokens | self._fixed | dict(settings)
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
        explored = self.explored_at(budget, layer, head, settings)
        point = self.explorer.point(layer, explored.method)
        oracle = self.explorer.oracle_point(layer, explored.method)
        shown = explorer_data.numbers(explored, point, oracle, head)
        call = f"kvviz.widgets.BudgetExplorer(trace, {arguments})"
        return shown | {"settings": dict(settings), "layer": layer, "head": head, "call": call}

    def _place(self) -> tuple[int, int, int, dict[str, Any]]:
        return self.budget, self.layer, self.head, self.settings

    def _changed(self, change: Any) -> None:
        if self._place() != self._published:  # several traits changed at once tell of it one by one
            self._publish()

    def _publish(self) -> None:
        """Send what is shown now; the serial number makes it news even where nothing changed."""
        place = self._place()
        same_curve = self._published is not None and self._published[1:] == place[1:]
        self._published, self._serial = place, self._serial + 1
        with self.hold_sync():
            self.slice = explorer_data.pack(self.explored, self.head)
            self.numbers = self.numbers_at(*place) | {"serial": self._serial, "refusal": ""}
            if not same_curve:
                self._left = list(self._curve_budgets)
                self.curve = self._no_curve()

    def _heard(self, _: Any, message: Mapping[str, Any], buffers: Any) -> None:
        """Answer the page: it asks for another place, or for more of the curve once it has nothing else to ask."""
        if message["kind"] == "curve":
            self._extend_curve()
            return
        before = self._serial
        try:
            place = dict(message["place"])
            self.show(**place.pop("settings"), **place)
        except KVVizError as error:
            self._serial += 1
            self.numbers = self.numbers | {"serial": self._serial, "refusal": str(error)}
            return
        if self._serial == before:  # nothing changed, but the page waits for an answer
            self._publish()

    def _extend_curve(self) -> None:
        """Compute the curve's next point: one at a time, because a change of the page waits for it."""
        found = {name: list(self.curve[name]) for name in ("points", "oracle")}
        while self._left:
            try:
                own, best = self.curve_at(self._left.pop(0))
            except InvalidInputError:  # a budget that these fields leave nothing of
                continue
            found["points"].append(explorer_data.curve_point(own, self.head))
            found["oracle"].append(explorer_data.curve_point(best, self.head))
            break
        self.curve = found | {"done": not self._left}


def _beginning(trace: Trace, tokens: int | None) -> Trace:
    """The first tokens of a trace; causal attention makes them what they would be without the others."""
    if not isinstance(trace, Trace):  # Explorer says what is wanted
        return trace
    wanted = LONGEST if tokens is None else content.between("tokens of a BudgetExplorer", tokens, 1, len(trace))
    if len(trace) <= wanted:
        return trace
    queries, keys, values = (
        {layer: array[:, :wanted] for layer, array in whole.items()}
        for whole in (trace.queries, trace.keys, trace.values)
    )
    tokens_kept, ids = trace.tokens[:wanted], trace.token_ids[:wanted]
    return replace(trace, tokens=tokens_kept, token_ids=ids, queries=queries, keys=keys, values=values)


def _notes(explored: int, whole: int) -> list[str]:
    if explored == whole:
        return []
    return [
        f"Explored: the first {explored:,} of the trace's {whole:,} tokens. BudgetExplorer(trace, tokens=…) explores "
        "more; the time of a change grows with their number, to minutes at 100,000."
    ]
