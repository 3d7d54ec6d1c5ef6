"""LayerEdit: an edit in one layer, applied to the selection of each decode step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from torch import Tensor

from ..errors import InvalidInputError
from ..methods.base import LayerContext, Method
from ..methods.selection import Selection, member_mask
from ..offload.layer_store import LayerStore
from ..trace.edit_parts import Drop, Exact, Only, Part, Pin, Replace
from ..trace.edits import Edit
from .edited_choice import EditedChoice, positions_in, positions_of
from .exact_stages import exact_at
from .rows import Run


@dataclass(frozen=True)
class LayerEdit:
    """The parts of an edit that may change one layer's selections."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, edit: Edit | None, method: Method, layer: int) -> LayerEdit | None:
        """The edit of a layer, or None if it changes nothing there: in a dense layer only drops do.

        Raises InvalidInputError for tokens given as text.
        """
        if edit is None:
            return None
        if not edit.resolved:
            wanted = "positions: edit.on(lm.tokens(ids), lm.geometry); generate, compare and replay do this themselves"
            raise InvalidInputError("SelectiveCache: edit", "tokens given as text or a group", wanted)
        parts = edit.of_layer(layer)
        if method.is_dense(layer):
            parts = tuple(part for part in parts if isinstance(part, Drop))
        return cls(parts) if parts else None

    @property
    def keeps_all(self) -> bool:
        """Whether steps may attend to any token, so that the layer frees none."""
        return any(
            isinstance(part, Exact | Only) or (isinstance(part, Replace) and part.stage == "kept")
            for part in self.parts
        )

    @property
    def pinned(self) -> list[int]:
        """All positions that are pinned in some head, step and row: there the layer does not free them."""
        return sorted({position for part in self.parts if isinstance(part, Pin) for position in positions_of(part)})

    def check(self, method: Method, context: LayerContext, prompt_length: int, batch: int) -> None:
        """Raise InvalidInputError for more pins than a head's budget, a stage that the method lacks, or no such row."""
        for part in self.parts:
            if part.rows is not None and part.rows[-1] >= batch:
                wanted = f"0 to {batch - 1}: the batch has {batch} sequences"
                raise InvalidInputError(f"{part.kind}: rows", part.rows[-1], wanted)
            if isinstance(part, Replace) and part.stage not in method.stages:
                wanted = f"one of {', '.join(method.stages)}, the stages of {method.name}"
                raise InvalidInputError("replace: stage", repr(part.stage), wanted)
        room = method.budget_tokens(prompt_length) - method.sinks - 1
        within = [part for part in self.parts if isinstance(part, Pin) and part.budget == "same"]
        rows = {row for part in within for row in part.rows or ()} or {0}
        for row, head in product(sorted(rows), range(context.n_kv_heads)):
            here = [part for part in within if part.heads is None or head in part.heads]
            here = [part for part in here if part.rows is None or row in part.rows]
            pinned = {token for part in here for token in positions_of(part)}
            count = sum(token >= method.sinks for token in pinned)
            if count > room:
                of_row = f", row {row}" if batch > 1 else ""
                got = f"{count} tokens in layer {context.index}, head {head}{of_row}"
                wanted = f"at most {room} of a budget of {room + method.sinks + 1}, or budget='extra'"
                raise InvalidInputError("pin", got, wanted)

    def kept(self, tokens: Tensor, length: int, rows: slice) -> Tensor:
        """The positions [B, H, K] that a method keeps in these rows of the batch, with the pinned ones, -1 pads."""
        kept = member_mask(tokens, length)
        for part in self.parts:
            if isinstance(part, Pin):
                positions = [position for position in positions_of(part) if position < length]
                for row in range(rows.start, rows.stop):
                    if part.rows is None or row in part.rows:
                        kept[row - rows.start, :, positions] = True
        return positions_in(kept)

    def apply(
        self,
        selection: Selection,
        queries: Tensor,
        step: int,
        starts: Sequence[int],
        runs: Sequence[Run],
        method: Method,
        context: LayerContext,
        history: LayerStore,
    ) -> Selection:
        """The selection of this step, changed; `starts` [B] is each row's left padding, `history` has all tokens."""
        parts = [part for part in self.parts if part.steps is None or step in part.steps]
        if not parts:
            return selection
        choice = EditedChoice(selection, history, context, starts)
        for part in parts:
            if isinstance(part, Replace):
                choice.set_heads(part, exact_at(part.stage, runs, queries, selection, context, history))
        choice.make_exact(parts, queries, method)
        choice.pin_and_drop(parts, method)
        return choice.selection()
