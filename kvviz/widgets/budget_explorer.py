"""BudgetExplorer: sliders for a method's budget and fields, over a trace."""

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
from ..trace.edit_parts import Named
from . import content, explorer_budgets, explorer_data, explorer_page, head_maps, snapshot_content, unions
from .exploration import Exploration, Place
from .live import LiveWidget
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..generation.explore import Explored

DEFAULT_SHARE = 8  # the default budget is an eighth of the prompt
ANY_BUDGET = 1 << 40
LONGEST = 8_192  # tokens explored by default: a change then takes about a second


class BudgetExplorer(LiveWidget):
    """A widget that runs `method` on one layer of `trace`, again for every change of the budget or a field.

    The map of layers × heads, above, shows how much the last token attends to the best tokens, as many as the budget
    with which the widget opens, and picks a head. `span` names tokens of the text, as for `kvviz.pin`: they are marked,
    the map shows how much each head attends to them, and the widget opens at the head that does most, unless `layer` or
    `head` say otherwise.

    Three linked panels show the attention mass against the budget, with the oracle's curve above; where the tokens
    went; and which tokens they are. The last eight tokens of the trace act as the decode steps; the two lower panels
    show the last step. On the page, arrow keys change the budget.

    `union` "layer" shows all heads of the layer as one: a token is tinted by the share of the heads that attended to
    it, its verdict is that of `Recording.union`, and recall and mass, also the oracle's and those of the curve, are
    means over the heads. The budget is still that of each head, so a union may have more tokens. "kv_head" joins the
    query heads of the KV head of `head`, if the method selects per query head. The last rows of the map pick them.

    `budget` (tokens, or a share of the prompt; default: about an eighth of it), `layer` (default: the middle one of
    those in which the method selects), `head` (a KV head, or a query head if the method selects per query head) and
    `settings` (the fields that have sliders) are traits: set them from Python, or observe them. `explored` has all
    numbers shown. Pass other fields of the method, such as `preset`, as keyword arguments. Only the first 8,192 tokens
    of a longer trace are explored, since a change would take minutes at 100,000; a note on the page says so, and
    `tokens` sets another number. The start of a trace equals a capture of that much text.

    Raises InvalidInputError if `trace` is not a Trace, for a layer or head that it does not have, for a layer in which
    the method attends to all tokens, and what the method raises for its fields; UnknownNameError for a union that it
    does not have.
    """

    _kvviz_view = traitlets.Unicode("explorer").tag(sync=True)
    budget = traitlets.Int(1).tag(sync=True)
    layer = traitlets.Int(0).tag(sync=True)
    head = traitlets.Int(0).tag(sync=True)
    union = traitlets.Unicode(unions.NONE).tag(sync=True)
    settings = traitlets.Dict().tag(sync=True)
    page = traitlets.Dict().tag(sync=True)
    numbers = traitlets.Dict().tag(sync=True)
    slice = traitlets.Bytes().tag(sync=True)
    curve = traitlets.Dict().tag(sync=True)

    def __init__(
        self, trace: Trace, *, method: str = "clusterkv", budget: float | None = None,
        layer: int | None = None, head: int | None = None, tokens: int | None = None, span: Named | None = None,
        union: str = unions.NONE, **fields: Any,
    ) -> None:  # fmt: skip
        from ..generation.explore import Explorer

        explored_trace = _beginning(trace, tokens)
        self.explorer = Explorer(explored_trace)
        self.method = method
        call = {} if tokens is None else {"tokens": int(tokens)}
        self._exploration = Exploration(self.explorer, method, dict(fields), call)
        self._serial = 0
        self._published: Place | None = None
        self._pending_budgets: list[int] = []
        if not isinstance(method, str):
            raise InvalidInputError("BudgetExplorer: method", type(method).__name__, "its name, and fields as keywords")
        self.explorer.layers(method, **{"budget": ANY_BUDGET, **fields})  # raises for fields invalid at any budget
        stops = self.explorer.budgets(method, explorer_budgets.budgets(self.explorer.prompt_length), **fields)
        requested = self._default_budget(stops) if budget is None else budget
        layers = self.explorer.layers(method, **{**fields, "budget": requested})
        positions = head_maps.span_positions("BudgetExplorer", span, explored_trace.tokens)
        asked = layer
        if layer is None:  # if the method selects in no layer, `explored` raises the error that says what to do
            layer = layers[len(layers) // 2] if layers else (trace.full_layers or trace.layers)[-1]
        explored = self._exploration.explored(Place(requested, layer, head or 0, {}, union))
        maps = head_maps.of_trace(explored_trace, layers, len(explored.indices), positions, explored.recording.budget)
        if positions and (asked is None or head is None):
            first = head_maps.strongest(maps[0], asked)
            layer, head = first[0], first[1] if head is None else head
            explored = self._exploration.explored(Place(requested, layer, head, {}, union))
        budget = explored.recording.budget  # in tokens, even if a share was requested
        stops = sorted({*stops, budget})
        sliders = self.explorer.sliders(explored.method)
        settings = {slider.name: explored.method.config[slider.name] for slider in sliders}
        self._exploration.fixed = {name: value for name, value in fields.items() if name not in settings}
        self._curve_budgets = explorer_budgets.curve_budgets(stops)
        page = explorer_data.describe(explored, budgets=stops, sliders=sliders, layers=layers)
        notes = [*page["notes"], *_notes(len(explored_trace), len(trace)), *head_maps.notes(maps)]
        page |= {"notes": notes, "head_maps": maps, "span": list(positions)}
        super().__init__(
            budget=budget, layer=int(layer), head=int(head or 0), union=union, settings=settings, page=page
        )
        self._publish()
        self.observe(self._changed, ["budget", "layer", "head", "union", "settings"])
        self.on_msg(self._heard)

    def _default_budget(self, stops: list[int]) -> int:
        target = self.explorer.prompt_length // DEFAULT_SHARE
        if not stops:
            got = f"a prompt of {self.explorer.prompt_length} tokens, shorter than any budget of {self.method}"
            raise InvalidInputError("BudgetExplorer", got, "a longer trace, or fewer sinks and recent tokens")
        return min(stops, key=lambda stop: abs(stop - target))

    @property
    def explored(self) -> Explored:
        """The selection now shown, with all its numbers (`kvviz.generation.explore.Explored`)."""
        return self._exploration.explored(self._place())

    def highlighted(self) -> NDArray[np.int64]:
        """The positions attended at the last step in the head, or union of heads, now shown, int64, ascending."""
        indices = self.explored.indices[self._exploration.rows(self._place())]
        return np.unique(indices[indices >= 0]).astype(np.int64)

    def show(
        self, *, budget: int | None = None, layer: int | None = None, head: int | None = None,
        union: str | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        """Change budget, layer, head, union and fields together; raises like the constructor, then changing nothing."""
        settings = self.settings | fields if fields else None
        values = {"budget": budget, "layer": layer, "head": head, "union": union, "settings": settings}
        changes: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
        self._exploration.explored(self._place()._replace(**changes))
        with self.hold_sync(), self.hold_trait_notifications():
            for name, value in changes.items():
                setattr(self, name, value)

    def snapshot(self) -> Snapshot:
        """The selection now shown, as a picture and words."""
        place, exploration = self._place(), self._exploration
        numbers = exploration.numbers(place)
        return snapshot_content.explorer(self.explored, exploration.arrays(place), numbers, self.page)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """A self-contained HTML page of the layer and head, or union, now shown; also written to `path`, atomically.

        The page needs no kernel. It embeds the selections for a grid of budgets × values of the method's main field
        (the first slider), and says which.
        """
        return explorer_page.to_html(self._exploration, self._place(), self.page, path)

    @traitlets.validate("budget", "layer", "head", "union", "settings")
    def _check(self, proposal: Any) -> Any:
        self._exploration.explored(self._place()._replace(**{proposal["trait"].name: proposal["value"]}))
        return proposal["value"] if proposal["trait"].name in ("settings", "union") else int(proposal["value"])

    @traitlets.default("curve")
    def _no_curve(self) -> dict[str, Any]:
        return {"points": [], "oracle": [], "done": False}

    def _place(self) -> Place:
        return Place(self.budget, self.layer, self.head, self.settings, self.union)

    def _changed(self, change: Any) -> None:
        if self._place() != self._published:  # traits that change together notify one by one
            self._publish()

    def _publish(self) -> None:
        """Send what is now shown; the serial number makes it a new message even if nothing changed."""
        place = self._place()
        same_curve = self._published is not None and self._published[1:] == place[1:]
        self._published, self._serial = place, self._serial + 1
        with self.hold_sync():
            self.slice = self._exploration.packed(place)
            self.numbers = self._exploration.numbers(place) | {"serial": self._serial, "refusal": ""}
            if not same_curve:
                self._pending_budgets = list(self._curve_budgets)
                self.curve = self._no_curve()

    def _heard(self, _: Any, message: Mapping[str, Any], buffers: Any) -> None:
        """Answer the page, which asks for another place or, when it is idle, for the next point of the curve."""
        if message["kind"] == "curve":
            self._extend_curve()
        if message["kind"] != "show":
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
        """Compute the curve's next point: one at a time, because changes of the page wait for it."""
        curves = {name: list(self.curve[name]) for name in ("points", "oracle")}
        while self._pending_budgets:
            try:
                point, oracle = self._exploration.curve(self._place()._replace(budget=self._pending_budgets.pop(0)))
            except InvalidInputError:  # the budget is too small for these fields
                continue
            curves["points"].append(point)
            curves["oracle"].append(oracle)
            break
        self.curve = curves | {"done": not self._pending_budgets}


def _beginning(trace: Trace, tokens: int | None) -> Trace:
    """The first tokens of a trace; since attention is causal, they do not depend on the later ones."""
    if not isinstance(trace, Trace):  # Explorer raises the error
        return trace
    length = LONGEST if tokens is None else content.between("tokens of a BudgetExplorer", tokens, 1, len(trace))
    if len(trace) <= length:
        return trace
    queries, keys, values = (
        {layer: array[:, :length] for layer, array in whole.items()}
        for whole in (trace.queries, trace.keys, trace.values)
    )
    first_tokens, ids = trace.tokens[:length], trace.token_ids[:length]
    return replace(trace, tokens=first_tokens, token_ids=ids, queries=queries, keys=keys, values=values)


def _notes(explored: int, whole: int) -> list[str]:
    if explored == whole:
        return []
    return [
        f"Only the first {explored:,} of the trace's {whole:,} tokens are explored. BudgetExplorer(trace, tokens=…) "
        "explores more, but every change then takes longer: minutes at 100,000 tokens."
    ]
