"""Mechanism: the scenes of a method at the decode steps of a trace, which the mechanism stepper plays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ...errors import InvalidInputError
from ...methods import resolve
from ...methods.base import Method
from ...methods.scenes import Moment, scene_of
from ...trace import Trace
from ...trace.scene import Scene
from .group_views import one_head, prompt_length

__all__ = ["Mechanism"]


class Mechanism:
    """A method on a trace, whose last `queries` positions play the decode steps, as in `kvviz.replay`.

    `prompt` is the number of tokens before them, `layers` are the captured layers in which the method chooses, and
    `heads` is the number of heads that choose: KV heads, or query heads with group="each".

    Raises InvalidInputError for `queries` that leave no prompt, and for a method that attends to all tokens in all
    captured layers; the method's errors for its fields.
    """

    def __init__(self, trace: Trace, method: str | Method, queries: int = 32, **values: Any) -> None:
        self.trace, self.queries, self.method = trace, queries, resolve(method, **values)
        self.prompt = prompt_length(trace, queries)
        self.each = self.method.group == "each"
        self.heads = trace.geometry.n_heads if self.each else trace.geometry.n_kv_heads
        chooses = not self.method.ignores_budget
        self.layers = [layer for layer in trace.full_layers if chooses and not self.method.is_dense(layer)]
        if not self.layers:
            got = f"{self.method.name}, which attends to all tokens in the captured layers {list(trace.layers)}"
            raise InvalidInputError("mechanism: method", got, "a method that chooses tokens in one of them")

    def kv_head(self, head: int) -> int:
        """The KV head of a head that chooses."""
        return head // self.trace.geometry.group_size if self.each else head

    @torch.no_grad()
    def scene(self, layer: int, head: int, step: int, token: int | None = None) -> tuple[Scene, int]:
        """The Scene of a decode step of one head, and the position of the token that it follows.

        `step` counts from 0. A `token` of None is the one of the prompt with the most attention at this step, sinks and
        recent window left out.

        Raises InvalidInputError for a layer, head, step or token that there is not, and for a budget that covers all
        tokens.
        """
        self._check(layer, head, step, token)
        method, prompt = self.method, self.prompt
        context, q, k, v = one_head(self.trace, layer, head, self.each)
        state = method.build(context, q[:, :, :prompt], k[:, :, :prompt], v[:, :, :prompt])
        selections = []
        for end in range(prompt + 1, prompt + step + 2):
            new = slice(end - 1, end)
            state = method.extend(state, q[:, :, new], k[:, :, new], v[:, :, new])
            if method.dense_selection(state, q[:, :, end - 1]) is not None:
                wanted = f"fewer than {end} tokens, so that there is something to choose"
                raise InvalidInputError(f"mechanism of {method.name}: budget", method.step_budget(state), wanted)
            selections.append(method.select(state, q[:, :, end - 1]))
        moment = Moment(
            state, q[:, :, end - 1], k[:, :, :end], v[:, :, :end], q[:, :, :end], prompt, self.trace.tokens[:end],
            -1 if token is None else token, selections[-1], selections[:-1],
        )  # fmt: skip
        if token is None:
            moment = replace(moment, token=self._strongest(moment))
        return scene_of(method, moment), moment.token

    def _strongest(self, moment: Moment) -> int:
        """The token of the prompt with the most attention, sinks and recent window left out if anything remains."""
        first, last = self.method.sinks, min(self.method.recent_start(moment.state), self.prompt)
        return first + int(moment.weights[first:last].argmax()) if first < last else 0

    def _check(self, layer: int, head: int, step: int, token: int | None) -> None:
        if layer not in self.layers:
            wanted = f"one of {self.layers}, the captured layers in which {self.method.name} chooses"
            raise InvalidInputError("mechanism: layer", layer, wanted)
        limits = {"head": (head, self.heads), "step": (step, self.queries), "token": (token or 0, self.prompt)}
        for name, (value, count) in limits.items():
            if not 0 <= value < count:
                raise InvalidInputError(f"mechanism: {name}", value, f"0 to {count - 1}")
