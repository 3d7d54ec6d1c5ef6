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
from . import content, explorer_budgets, explorer_data, explorer_page
from .exploration import Exploration, Place
from .live import LiveWidget

if TYPE_CHECKING:
    from ..generation.explore import Explored

DEFAULT_SHARE = 8  # of the prompt, where no budget is given
ANY_BUDGET = 1 << 40
LONGEST = 8_192  # tokens explored where `tokens` does not say: a change takes about a second


class BudgetExplorer(LiveWidget):
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

    _kvviz_view = traitlets.Unicode("explorer").tag(sync=True)
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
        self.method = method
        call = {} if tokens is None else {"tokens": int(tokens)}
        self._exploration = Exploration(self.explorer, method, dict(fields), call)
        self._serial = 0
        self._published: Place | None = None
        self._left: list[int] = []
        if not isinstance(method, str):
            raise InvalidInputError("BudgetExplorer: method", type(method).__name__, "its name, and its fields by name")
        self.explorer.layers(method, **{"budget": ANY_BUDGET, **fields})  # raises for a field that no budget makes good
        stops = self.explorer.budgets(method, explorer_budgets.budgets(self.explorer.prompt_length), **fields)
        asked = self._default_budget(stops) if budget is None else budget
        layers = self.explorer.layers(method, **{**fields, "budget": asked})
        if layer is None:  # without a layer where the method chooses, `explored` says what to do
            layer = layers[len(layers) // 2] if layers else trace.layers[-1]
        explored = self._exploration.explored(Place(asked, layer, head, {}))
        budget = explored.recording.budget  # in tokens, where a share was asked for
        stops = sorted({*stops, budget})
        sliders = self.explorer.sliders(explored.method)
        settings = {slider.name: explored.method.config[slider.name] for slider in sliders}
        self._exploration.fixed = {name: value for name, value in fields.items() if name not in settings}
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
        return self._exploration.explored(self._place())

    def highlighted(self) -> NDArray[np.int64]:
        """The positions attended at the last step in the head now shown, int64, ascending."""
        indices = self.explored.indices[self.head]
        return np.asarray(indices[indices >= 0])

    def show(
        self, *, budget: int | None = None, layer: int | None = None, head: int | None = None, **fields: Any
    ) -> None:
        """Change several of budget, layer, head and fields at once; raises as the constructor and changes nothing."""
        asked = {"budget": budget, "layer": layer, "head": head, "settings": self.settings | fields if fields else None}
        changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        self._exploration.explored(self._place()._replace(**changes))
        with self.hold_sync(), self.hold_trait_notifications():
            for name, value in changes.items():
                setattr(self, name, value)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """One HTML page of the layer and head now shown, without a kernel or a network; also written to `path`.

        It holds a grid of selections: budgets × the values of the method's main field (the first slider), and says
        which. The file appears whole or not at all.
        """
        return explorer_page.to_html(self._exploration, self._place(), self.page, path)

    @traitlets.validate("budget", "layer", "head", "settings")
    def _check(self, proposal: Any) -> Any:
        self._exploration.explored(self._place()._replace(**{proposal["trait"].name: proposal["value"]}))
        return proposal["value"] if proposal["trait"].name == "settings" else int(proposal["value"])

    @traitlets.default("curve")
    def _no_curve(self) -> dict[str, Any]:
        return {"points": [], "oracle": [], "done": False}

    def _place(self) -> Place:
        return Place(self.budget, self.layer, self.head, self.settings)

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
            self.numbers = self._exploration.numbers(place) | {"serial": self._serial, "refusal": ""}
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
                own, best = self._exploration.curve(self._place()._replace(budget=self._left.pop(0)))
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
