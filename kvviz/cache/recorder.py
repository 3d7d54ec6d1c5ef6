"""The recorder: collects the selection and attention of each layer and decode step into a Recording."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import metrics
from ..clustering.merged import Merged
from ..errors import InvalidInputError
from ..methods.attention import attention_weights, centroid_weights, weighted_values
from ..methods.base import Method
from ..methods.selection import Selection, to_selection_heads
from ..trace import Geometry, LayerEvents, Ledger, Recording
from ..trace.edits import Edit
from .layer_cache import LayerCache


class Recorder:
    """Observes layers and stores the selection and the exact attention weights of every decode step.

    `layers` limits the recording to these layers. `spent_s` is the time that recording took, so that timings can
    exclude it. Batches of more than one prompt are refused.
    """

    def __init__(self, layers: Collection[int] | None = None) -> None:
        self.layers = layers
        self.spent_s = 0.0
        self._moved_bytes: dict[int, int] = defaultdict(int)
        self._steps: dict[int, list[dict[str, Any]]] = defaultdict(list)

    def watch(self, layers: Sequence[LayerCache]) -> None:
        """Observe these layers. Raises InvalidInputError if a layer to record is not among them."""
        for index in self.layers or ():
            if index not in {layer.context.index for layer in layers}:
                raise InvalidInputError("record: layer", index, f"one of {[layer.context.index for layer in layers]}")
        for layer in layers:
            if self.layers is None or layer.context.index in self.layers:
                layer.observer = self

    def __call__(
        self, layer: LayerCache, queries: Tensor, selection: Selection, output: Tensor, select_s: float
    ) -> None:
        """Record one decode step of one layer."""
        if queries.shape[0] != 1:
            raise InvalidInputError("record", f"a batch of {queries.shape[0]}", "one prompt")
        started = time.perf_counter()
        context, store, history = layer.context, layer.store, layer.history
        weights = attention_weights(queries, history.keys, context.scale, context.softcap)  # [1, Q, L]
        exact = weighted_values(weights, history.values)
        rows = selection.indices.shape[1]
        errors = metrics.output_error(_array(output, torch.float32), _array(exact, torch.float32))  # [1, Q]
        merged = torch.zeros(context.n_kv_heads)
        if selection.merged is not None:
            merged = (selection.merged.degree[0] > 0).sum(-1)  # [H or Q]
        count = int((selection.indices >= 0).sum()) + int(merged.sum())
        assert selection.groups is not None
        assert selection.scores is not None
        self._steps[context.index].append(
            {
                "indices": _array(selection.indices[0], torch.int32),
                "groups": _array(selection.groups[0], torch.int32),
                "scores": _array(selection.scores[0], torch.float32),
                "attention": _array(weights.unflatten(1, (rows, -1)).mean(2)[0], torch.float32),
                "merged": _array(merged, torch.int32),
                "members": self._members(context.index, selection.merged),
                "merged_share": merged_share_of(layer, queries, selection, weights),
                "output_error": np.float32(errors.mean()),
                "read_bytes": np.int64(count * store.token_bytes),
                "moved_bytes": np.int64(store.moved_bytes - self._moved_bytes[context.index]),
                "select_s": np.float32(select_s),
            }
        )
        self._moved_bytes[context.index] = store.moved_bytes
        self.spent_s += time.perf_counter() - started

    def _members(self, layer: int, merged: Merged | None) -> np.ndarray | None:
        """Members int32 [H or Q, n] up to the last merged token: the same array object as before if they are the same.

        None if no token is merged, or the method does not report the members.
        """
        if merged is None or merged.members is None:
            return None
        members = _array(merged.members[0], torch.int32)
        joined = np.flatnonzero((members >= 0).any(0))
        members = members[:, : joined[-1] + 1 if joined.size else 0]
        previous = self._steps[layer][-1]["members"] if self._steps[layer] else None
        return previous if previous is not None and np.array_equal(previous, members) else members.copy()

    def keep_steps(self, count: int) -> None:
        """Keep the first `count` steps and drop the rest: an interrupted step that some layers did not reach."""
        for layer, steps in list(self._steps.items()):
            del steps[count:]
            if not steps:
                del self._steps[layer]

    def events(self, length: int) -> dict[int, LayerEvents]:
        """The events of each layer, padded to a common number of slots and to `length` tokens."""
        return {layer: _stack(steps, length) for layer, steps in sorted(self._steps.items())}

    def recording(
        self,
        method: Method,
        *,
        model: str,
        geometry: Geometry,
        tokens: list[str],
        token_ids: Sequence[int],
        next_tokens: list[str],
        prompt_length: int,
        question_length: int = 0,
        exact_layers: tuple[int, ...] = (),
        answer: str = "",
        ledgers: Mapping[int, Ledger],
        edit: Edit | None = None,
    ) -> Recording:
        """The Recording of all steps so far."""
        return Recording(
            method=method.name,
            title=method.title,
            group_name=method.group_name,
            style=method.style.completed(method.name, method.kind),
            config=method.config,
            budget=method.budget_tokens(prompt_length),
            model=model,
            geometry=geometry,
            tokens=tokens,
            token_ids=np.asarray(token_ids, dtype=np.int64),
            next_tokens=next_tokens,
            prompt_length=prompt_length,
            events=self.events(len(tokens)),
            question_length=question_length,
            answer=answer,
            ledgers=ledgers,
            edit=edit,
            exact_layers=exact_layers,
            dense_layers=tuple(
                layer
                for layer in range(geometry.n_layers)
                if method.is_dense(layer) and layer not in exact_layers and layer not in self._steps
            ),
        )


def _array(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    return tensor.to("cpu", dtype).numpy()


def _stack(steps: list[dict[str, Any]], length: int) -> LayerEvents:
    slots = max(step["indices"].shape[-1] for step in steps)
    widths = {"indices": (slots, -1), "groups": (slots, -1), "scores": (slots, np.nan), "attention": (length, 0)}

    def column(name: str) -> np.ndarray:
        if name not in widths:
            return np.array([step[name] for step in steps])
        width, fill = widths[name]
        padded = [
            np.pad(step[name], ((0, 0), (0, width - step[name].shape[-1])), constant_values=fill) for step in steps
        ]
        return np.stack(padded)

    return LayerEvents(**{name: column(name) for name in LayerEvents.FIELDS}, **_memberships(steps, length))


def merged_share_of(layer: LayerCache, queries: Tensor, selection: Selection, weights: Tensor) -> np.ndarray | None:
    """`metrics.merged_share` of each token, float16 [R, L], from the exact weights [1, Q, L]; None as for members."""
    merged, context, rows = selection.merged, layer.context, selection.indices.shape[1]
    if merged is None or merged.members is None:
        return None
    fetched = layer.store.fetch(selection.indices, padded=selection.padded)
    given = centroid_weights(queries, *fetched, selection, context.scale, context.softcap)
    exact, given = (tensor[0].unflatten(0, (rows, -1)) for tensor in (weights, given))  # [R, G, L] and [R, G, C]
    members = to_selection_heads(merged.members, rows)[0]
    numbers = _array(exact, torch.float32), _array(given, torch.float32)
    return metrics.merged_share(*numbers, _array(members, torch.int32)).astype(np.float16)


def _memberships(steps: list[dict[str, Any]], length: int) -> dict[str, np.ndarray]:
    """LayerEvents' arrays of merged tokens; {} if no token was merged, or a step lacks the members."""
    all_members: list[np.ndarray | None] = [step["members"] for step in steps]
    if any(members is None and step["merged"].any() for members, step in zip(all_members, steps, strict=True)):
        return {}
    distinct: list[np.ndarray] = []
    of_step = []
    for members in all_members:
        if members is not None and not (distinct and members is distinct[-1]):
            distinct.append(members)
        of_step.append(-1 if members is None else len(distinct) - 1)
    if not distinct:
        return {}
    padded = [np.pad(members, ((0, 0), (0, length - members.shape[-1])), constant_values=-1) for members in distinct]
    shares = np.zeros((len(steps), steps[0]["attention"].shape[0], length), np.float16)
    for share, step in zip(shares, steps, strict=True):
        if step["merged_share"] is not None:
            share[:, : step["merged_share"].shape[-1]] = step["merged_share"]
    return {"members": np.stack(padded), "members_of_step": np.array(of_step, np.int32), "merged_share": shares}
