"""The protocol that every method follows, its registry and what all methods share."""

from __future__ import annotations

import math
import warnings
from abc import ABC
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..offload.arena import StepCache
from ..offload.block_cache import BlockCache
from ..registry import Registry
from ..trace.styles import Style, declare
from .fields import check_fields, one_of, whole
from .selection import GROUPS, Group, Selection, add_sinks_and_recent, take_tokens, to_selection_heads
from .sliders import Slider
from .state import LayerContext, State

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", bound=State, default=Any)  # so that a plain `Method` stands for one of any state
else:
    from typing import TypeVar

    S = TypeVar("S", bound=State)

__all__ = ["REGISTRY", "Kind", "LayerContext", "Method", "S", "State"]

Kind = Literal["exact", "retrieval", "eviction", "merging", "prefill"]

REGISTRY: Registry[Method] = Registry("method", "kvviz.methods")


@dataclass
class Method(ABC, Generic[S]):
    """One way to choose which cached tokens a decode step attends to. Its dataclass fields are its configuration.

    A subclass sets the class variables and is registered under its `name`. It implements `build`, `extend` and `choose`
    where counting tokens is not enough, or `select` in place of `choose`; `ScoringMethod` and `Eviction` ask for one
    function alone. All take tensors only, so that they run on stored traces as well as inside a model. The budget
    counts attended tokens per KV head, sinks and recent window included; tokens generated after the prompt come on top.
    With group="each" every query head has the budget to itself, so that a KV head may attend to more: the ledger says
    how many.

    `budget`: an int, or a share of the prompt as a float in (0, 1). `sinks`, `recent`: how many of the first and of the
    most recent tokens are always attended to. `dense_layers`: how many of the first layers attend to all tokens.
    `group`: how the query heads of a KV head agree: mean, max or sum of their scores, or each for itself.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    kind: ClassVar[Kind]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}
    expected_failures: ClassVar[Mapping[str, str]] = {}
    needs_queries: ClassVar[bool] = True
    overlaps_build: ClassVar[bool] = False
    ignores_budget: ClassVar[bool] = False  # decode steps attend to all tokens, whatever the budget
    least_recent: ClassVar[int] = 0  # 1 where the newest token is always attended to, whatever `recent` says
    builds_for_any_budget: ClassVar[bool] = False  # a state built under one budget serves every other; not inherited
    device_cache: ClassVar[StepCache | BlockCache] = StepCache()  # what stays on the device, where a store offloads
    group_name: ClassVar[str] = "cluster"  # what `Selection.groups` are called: one of them
    style: ClassVar[Style] = Style()  # how figures and widgets draw it; not inherited by a method of another name
    sliders: ClassVar[tuple[Slider, ...] | None] = None  # of the budget explorer; None: made from the numeric fields

    budget: int | float = 1024
    sinks: int = whole(0, 0)
    recent: int = whole(0, 0)
    dense_layers: int = whole(0, 0)
    group: Group = one_of("mean", GROUPS)  # noqa: RUF009  # a dataclass field, as `whole` and dataclasses.field make

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.builds_for_any_budget = cls.__dict__.get("builds_for_any_budget", False)  # a subclass may build otherwise
        if "name" not in cls.__dict__:
            return
        REGISTRY.register(cls)
        cls.style = cls.__dict__.get("style", Style()).completed(cls.name, getattr(cls, "kind", None))
        declare(cls.name, cls.style)

    def __post_init__(self) -> None:
        self._check_budget()
        check_fields(self)
        if isinstance(self.budget, int):
            self._check_reserved(self.budget)

    @property
    def config(self) -> dict[str, Any]:
        """The fields and their values."""
        return asdict(self)

    @property
    def reserved(self) -> int:
        """Tokens of the budget that no choice is left for: at least sinks and recent window."""
        return self.sinks + self.always_recent

    @property
    def always_recent(self) -> int:
        """How many of the most recent tokens are always attended to: `recent` of them, or `least_recent`."""
        return max(self.recent, self.least_recent)

    def budget_tokens(self, prompt_length: int) -> int:
        """The budget in tokens for a prompt of this length.

        Raises InvalidInputError where a share of it is smaller than sinks and recent window together.
        """
        if isinstance(self.budget, int):
            return self.budget
        tokens = math.floor(self.budget * prompt_length)
        self._check_reserved(tokens, f" ({self.budget} of {prompt_length} tokens)")
        return tokens

    def step_budget(self, state: State) -> int:
        """Tokens that a head may attend to at this step: the budget, and one more for each generated token."""
        return self.budget_tokens(state.prompt_length) + state.generated

    def recent_window(self, state: S) -> int:
        """Tokens at the end that this step attends to without choosing."""
        return self.always_recent

    def local_window(self, state: S) -> int:
        """Tokens at the end that this step attends to whatever it chooses, and that are kept on the device alone."""
        return self.recent_window(state)

    def is_dense(self, layer: int) -> bool:
        """Whether this layer attends to all tokens by the method's choice."""
        return layer < self.dense_layers

    @property
    def drops_tokens(self) -> bool:
        """Whether tokens are dropped or replaced, so that their keys and values are freed."""
        return self.kind in ("eviction", "merging")

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> S:
        """The state of one layer after the prompt; by default one that only counts tokens.

        queries [B, Q, L, D] (none of them, [B, Q, 0, D], unless the class `needs_queries`), keys and values
        [B, H, L, D], all after RoPE, finite, and not to be changed. Where the class `overlaps_build`, this runs beside
        the rest of the prefill, in a worker thread and, on CUDA, on a side stream.
        """
        length = keys.shape[2]
        return State(layer, length, length)  # type: ignore[return-value]  # S is State where a method keeps no more

    def extend(self, state: S, queries: Tensor, keys: Tensor, values: Tensor) -> S:
        """The state with the tokens decoded since: queries [B, Q, n, D], keys and values [B, H, n, D]."""
        state.append(keys, values)
        return state

    def select(self, state: S, queries: Tensor) -> Selection:
        """What the step with these queries [B, Q, D] attends to: all tokens within the budget, or what it chooses."""
        dense = self.dense_selection(state, queries)
        return self.choose(state, queries) if dense is None else dense

    def choose(self, state: S, queries: Tensor) -> Selection:
        """What a step whose tokens exceed the budget attends to, sinks and recent window included."""
        raise NotImplementedError(f"{type(self).__name__} has neither choose nor select")

    def keeps(self, state: S) -> Tensor | None:
        """Positions [B, H, K] that a later step may still attend to, ascending, -1 pads; None: every one.

        The layer frees the keys and values of all others. Asked only of methods that drop tokens.
        """
        return None

    def continue_prompt(self, state: S, queries: Tensor, keys: Tensor, values: Tensor) -> S | None:
        """The state after a later prompt of the same session, whose tokens are cached already.

        queries [B, Q, n, D], keys and values [B, H, n, D] are the later prompt's own n > 1 tokens. None, the default,
        asks for a new `build` over all tokens so far; a method that drops tokens has to do better.
        """
        return None

    def dense_selection(self, state: S, queries: Tensor) -> Selection | None:
        """All tokens, where the step's budget covers them; otherwise None."""
        if state.length > self.step_budget(state):
            return None
        return add_sinks_and_recent(self.no_tokens(state, queries), recent=(0, state.length))

    def no_tokens(self, state: S, queries: Tensor) -> Selection:
        """A selection of no token."""
        shape = (queries.shape[0], state.layer.selection_heads(self.group), 0)
        nothing = torch.empty(shape, dtype=torch.int64, device=queries.device)
        if not state.layer.details:
            return Selection(nothing)
        return Selection(nothing, nothing.to(torch.int32), nothing.float())

    def recent_start(self, state: S) -> int:
        """The position from which on this step attends to every token without choosing."""
        return state.length - self.recent_window(state)

    def free_budget(self, state: S) -> int:
        """Tokens of the step's budget that are left to choose beside the sinks and the tokens at the end."""
        return self.step_budget(state) - self.sinks - (state.length - self.recent_start(state))

    def best_tokens(self, state: S, scores: Tensor) -> Selection:
        """The best tokens between sinks and recent window that the budget leaves room for.

        scores [B, R, n], or [B, H, n] for all query heads of a KV head: of all tokens, or of those between alone.
        """
        layer, end = state.layer, self.recent_start(state)
        if scores.shape[-1] == state.length:
            scores = scores[..., self.sinks : end]
        if scores.shape[-1] != end - self.sinks:
            wanted = f"one for each of {state.length} tokens, or of the {end - self.sinks} that can be chosen"
            raise InvalidInputError(f"{self.name}: scores", f"{scores.shape[-1]} for each head", wanted)
        scores = to_selection_heads(scores, layer.selection_heads(self.group))
        return take_tokens(scores, self.free_budget(state), start=self.sinks, details=layer.details)

    def with_sinks_and_recent(self, state: S, chosen: Selection) -> Selection:
        """The chosen tokens, and with them the sinks and the tokens at the end."""
        return add_sinks_and_recent(chosen, self.sinks, (self.recent_start(state), state.length))

    def everything(self, state: S, queries: Tensor) -> Selection | None:
        """`dense_selection` by its old name, for methods that were written with it."""
        warnings.warn("Method.everything is called dense_selection now", DeprecationWarning, stacklevel=2)
        return self.dense_selection(state, queries)

    def allowance(self, state: S) -> int:
        """`step_budget` by its old name, for methods that were written with it."""
        warnings.warn("Method.allowance is called step_budget now", DeprecationWarning, stacklevel=2)
        return self.step_budget(state)

    def _check_budget(self) -> None:
        budget = self.budget
        if isinstance(budget, bool) or not isinstance(budget, int | float):
            raise InvalidInputError(f"{self.name}: budget", repr(budget), "an int, or a float in (0, 1)")
        fits = 0 < budget < 1 if isinstance(budget, float) else budget > 0
        if not fits:
            raise InvalidInputError(f"{self.name}: budget", budget, "an int >= 1, or a share of the prompt in (0, 1)")

    def _check_reserved(self, tokens: int, origin: str = "") -> None:
        if tokens < max(self.reserved, 1):
            raise InvalidInputError(
                f"{self.name}: budget",
                f"{tokens} tokens{origin}",
                f"at least {max(self.reserved, 1)} tokens ({self.sinks} sinks and {self.recent} recent among them)",
            )
