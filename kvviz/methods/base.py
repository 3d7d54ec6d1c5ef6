"""`Method`, the base class of all methods, and the registry of methods."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, get_args

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..offload.arena import StepCache
from ..offload.block_cache import BlockCache
from ..registry import Registry
from ..trace.cards import card
from ..trace.styles import Style, declare
from .fields import check_budget, check_fields, one_of, whole
from .ranking import Ranking
from .selection import GROUPS, Group, Selection, add_sinks_and_recent, take_tokens, to_selection_heads
from .sliders import Slider
from .state import LayerContext, State

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", bound=State, default=Any)  # so that a plain `Method` means one with any state
else:
    from typing import TypeVar

    S = TypeVar("S", bound=State)

__all__ = ["REGISTRY", "Generated", "Kind", "LayerContext", "Method", "S", "State"]

Generated = Literal["within", "on_top"]  # where tokens generated after the prompt count in the budget
Kind = Literal["exact", "retrieval", "eviction", "merging", "prefill"]


class Methods(Registry["Method"]):
    """The registry of methods, which also finds a wrapper over another method, like "twilight(quest)"."""

    def find(self, name: str) -> type[Method]:
        """The class with this name. Raises UnknownNameError, and InvalidInputError for a wrapper that does not fit."""
        outer, opening, inner = name.partition("(")
        found = super().find(outer if opening and inner.endswith(")") else name)
        wrapped = inner[:-1] if opening else getattr(found, "wraps", "")
        if not wrapped:
            return found
        if not hasattr(found, "over"):
            wanted = f"a wrapper before the parenthesis; {outer} wraps no other method"
            raise InvalidInputError("method", repr(name), wanted)
        over: type[Method] = found.over(self.find(wrapped))
        return over


REGISTRY = Methods("method", "kvviz.methods")


@dataclass
class Method(ABC, Generic[S]):
    """A method: one way to choose which cached tokens a decode step attends to. Its fields are its configuration.

    A subclass sets the class variables and is registered under its `name`. It implements `choose` (or `select`), and
    `build` and `extend` if its state holds more than token counts; `ScoringMethod` and `Eviction` need one function
    only. All of them take tensors, so that they run on stored traces as well as inside a model.

    `budget`: the tokens that a KV head attends to in one step, everything included: sinks, recent window, chosen,
    merged and generated tokens. It is an int, or a share of the prompt as a float in (0, 1), and does not grow with
    what is generated. A method's `decode_window` comes on top of it. With group="each" the budget holds per query head,
    so that a KV head may attend to more tokens; the ledger counts them. `generated`: "within", or "on_top" if the
    budget is for the prompt and all generated tokens are attended to in addition, as in papers that evict only at
    prefill. `sinks` and `recent`: the number of first and of most recent tokens that are always attended to.
    `dense_layers`: the number of first layers that attend to all tokens. `group`: how the scores of a KV head's query
    heads are combined: "mean", "max", "sum", or "each" for a separate choice per query head.
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
    least_recent: ClassVar[int] = 0  # 1 if the newest token is always attended to, even with `recent` 0
    builds_for_any_budget: ClassVar[bool] = False  # a state built for one budget serves all others; not inherited
    attends_on_host: ClassVar[bool] = False  # selections may have a `host_part`
    device_cache: ClassVar[StepCache | BlockCache] = StepCache()  # the device's part of an offloaded cache
    group_name: ClassVar[str] = "cluster"  # the name of one group in `Selection.groups`
    score_name: ClassVar[str] = "score"  # what the scores of `ranking` and of selections are, in words
    style: ClassVar[Style] = Style()  # its style in figures and widgets; not inherited by a method with another name
    stages: ClassVar[tuple[str, ...]] = ("kept", "ranking")  # of a selection, in order; names in `stages.VERDICTS`
    sliders: ClassVar[tuple[Slider, ...] | None] = None  # for the budget explorer; None: derived from numeric fields

    budget: int | float = field(default=1024, metadata={"check": check_budget})
    sinks: int = whole(0, 0)
    recent: int = whole(0, 0)
    dense_layers: int = whole(0, 0)
    group: Group = one_of("mean", GROUPS)  # noqa: RUF009  # `one_of` returns a dataclass field, as `whole` does
    generated: Generated = one_of("within", get_args(Generated))  # noqa: RUF009  # as above

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.builds_for_any_budget = cls.__dict__.get("builds_for_any_budget", False)  # a subclass may build differently
        if "name" not in cls.__dict__:
            return
        if "(" not in cls.name:  # a wrapper over another method is found by their two names
            REGISTRY.register(cls)
        cls.style = cls.__dict__.get("style", Style()).completed(cls.name, getattr(cls, "kind", None))
        declare(cls.name, cls.style, getattr(cls, "title", cls.name))

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.budget, int):
            self._check_reserved(self.budget)

    @property
    def config(self) -> dict[str, Any]:
        """The fields and their values as plain data, which JSON can store; `create(name, **config)` is this method."""
        return asdict(self)

    def _repr_html_(self) -> str:
        fields = {name: repr(value) for name, value in self.config.items()}
        return card(type(self).__name__, f"{self.title}, {self.kind}, {self.paper}", fields, [
            ("kvviz.generate(lm, prompt, method, record=True)", "generate with it, and keep what it attends to"),
            ("kvviz.replay(trace, method)", "what it selects on a trace, without a model"),
        ])  # fmt: skip

    def same_except(self, other: Method, *names: str) -> bool:
        """Whether `other` is of the same class, and its fields are equal to these, except perhaps those named."""
        ours, theirs = ({**method.config, **dict.fromkeys(names)} for method in (self, other))
        return type(other) is type(self) and ours == theirs

    def reusable(self, prompt_length: int) -> Self | None:
        """A method whose state of a prompt serves this one and others at any budget (`reuse`); None without any."""
        if not self.builds_for_any_budget:
            return None
        return replace(self, budget=max(prompt_length, self.reserved))

    def reuse(self, built: Method, state: S) -> S | None:
        """The state of a prompt that `built` made, for this method; None if this method has to build its own."""
        return state if self.builds_for_any_budget and self.same_except(built, "budget") else None

    @property
    def reserved(self) -> int:
        """Tokens of the budget that are not chosen by score: at least sinks and recent window."""
        return self.sinks + self.always_recent

    @property
    def always_recent(self) -> int:
        """The number of most recent tokens that are always attended to: the larger of `recent` and `least_recent`."""
        return max(self.recent, self.least_recent)

    def budget_tokens(self, prompt_length: int) -> int:
        """The budget in tokens for a prompt of this length.

        Raises InvalidInputError if the budget is a share and too small for sinks and recent window.
        """
        if isinstance(self.budget, int):
            return self.budget
        tokens = math.floor(self.budget * prompt_length)
        self._check_reserved(tokens, f" ({self.budget} of {prompt_length} tokens)")
        return tokens

    @property
    def decode_window(self) -> int:
        """The most generated tokens that a step attends to on top of the budget, as they wait for the method's index.

        0 for methods that index each token, or count those that wait within the budget.
        """
        return 0

    def extra_tokens(self, prompt_length: int) -> int:
        """The most tokens that a step attends to on top of its budget: by default the decode window."""
        return self.decode_window

    def step_budget(self, state: State) -> int:
        """Budget of this step without the decode window: tokens that a head may attend to."""
        if self.ignores_budget:
            return state.length
        return self.budget_tokens(state.prompt_length) + (state.generated if self.generated == "on_top" else 0)

    def recent_window(self, state: S) -> int:
        """The number of last tokens that this step attends to without ranking them."""
        return self.always_recent

    def local_window(self, state: S) -> int:
        """The number of last tokens that are always attended to and are never offloaded from the device."""
        return self.recent_window(state)

    def is_dense(self, layer: int) -> bool:
        """Whether the method attends to all tokens in this layer."""
        return layer < self.dense_layers

    @property
    def drops_tokens(self) -> bool:
        """Whether tokens are dropped or replaced, so that their keys and values are freed."""
        return self.kind in ("eviction", "merging")

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> S:
        """The state of one layer after the prompt; by default one that only counts tokens.

        queries [B, Q, L, D] ([B, Q, 0, D] if the class does not set `needs_queries`), keys and values [B, H, L, D], all
        after RoPE and finite; they must not be changed. If the class sets `overlaps_build`, this runs in parallel with
        the rest of the prefill, in a worker thread and, on CUDA, on a side stream.
        """
        length = keys.shape[2]
        return State(layer, length, length)  # type: ignore[return-value]  # S is State if a method adds no fields

    def extend(self, state: S, queries: Tensor, keys: Tensor, values: Tensor) -> S:
        """The state with the newly decoded tokens added: queries [B, Q, n, D], keys and values [B, H, n, D]."""
        state.append(keys, values)
        return state

    def select(self, state: S, queries: Tensor) -> Selection:
        """The selection for the queries [B, Q, D] of a step: all tokens if the budget allows, else that of `choose`."""
        dense = self.dense_selection(state, queries)
        return self.choose(state, queries) if dense is None else dense

    def choose(self, state: S, queries: Tensor) -> Selection:
        """The selection of a step with more tokens than its budget, sinks and recent window included."""
        raise NotImplementedError(f"{type(self).__name__} has neither choose nor select")

    def ranking(self, state: S, queries: Tensor, keys: Tensor) -> Ranking | None:
        """How a step with queries [B, Q, D] ranks all tokens, for a diagnosis; None if the method does not tell.

        keys [B, H, L, D] are those of all tokens, exact. Called after `select`; it must not change the state.
        """
        return None

    def group_tokens(self, state: S, head: int, number: int) -> Tensor | None:
        """Positions of the tokens in a group of a KV head, ascending, of the first sequence; None without groups.

        An unknown number gives no positions.
        """
        return None

    def keeps(self, state: S) -> Tensor | None:
        """Positions [B, H, K] that later steps may still attend to, ascending, padded with -1; None means all.

        The layer frees all other keys and values. Called only for methods that drop tokens.
        """
        return None

    def continue_prompt(self, state: S, queries: Tensor, keys: Tensor, values: Tensor) -> S | None:
        """The state after a later prompt of the same session, whose tokens are already cached.

        queries [B, Q, n, D], keys and values [B, H, n, D] are the n > 1 tokens of the later prompt. None, the default,
        requests a new `build` over all tokens so far; a method that drops tokens must return a state.
        """
        return None

    def dense_selection(self, state: S, queries: Tensor) -> Selection | None:
        """A selection of all tokens if the step's budget covers them; otherwise None."""
        if state.length > self.step_budget(state):
            return None
        return add_sinks_and_recent(self.no_tokens(state, queries), recent=(0, state.length))

    def no_tokens(self, state: S, queries: Tensor) -> Selection:
        """An empty selection."""
        shape = (queries.shape[0], state.layer.selection_heads(self.group), 0)
        indices = torch.empty(shape, dtype=torch.int64, device=queries.device)
        if not state.layer.details:
            return Selection(indices)
        return Selection(indices, indices.to(torch.int32), indices.float())

    def recent_start(self, state: S) -> int:
        """The first position of the recent window, after all tokens that can be chosen."""
        return state.length - self.recent_window(state)

    def attended_start(self, state: S) -> int:
        """The first position from which on this step attends to all tokens: as much of the window as the budget holds.

        Only if all generated tokens belong to the window can it outgrow the budget.
        """
        most = self.step_budget(state) + self.decode_window - self.sinks
        return max(self.recent_start(state), state.length - most)

    def free_budget(self, state: S) -> int:
        """Tokens of the step's budget that remain after sinks and recent window, at least 0."""
        window = state.length - self.recent_start(state)
        counted = max(window - self.decode_window, min(window, self.always_recent))
        return max(self.step_budget(state) - self.sinks - counted, 0)

    def best_tokens(self, state: S, scores: Tensor) -> Selection:
        """The best tokens between sinks and recent window, as many as the budget leaves.

        scores [B, R, n], or [B, H, n] shared by the query heads of a KV head, of all tokens or of those between only.
        """
        layer, end = state.layer, self.recent_start(state)
        if scores.shape[-1] == state.length:
            scores = scores[..., self.sinks : end]
        if scores.shape[-1] != end - self.sinks:
            wanted = f"{state.length} per head, or {end - self.sinks} without sinks and recent window"
            raise InvalidInputError(f"{self.name}: scores", f"{scores.shape[-1]} per head", wanted)
        scores = to_selection_heads(scores, layer.selection_heads(self.group))
        return take_tokens(scores, self.free_budget(state), start=self.sinks, details=layer.details)

    def with_sinks_and_recent(self, state: S, chosen: Selection) -> Selection:
        """The chosen tokens with sinks and recent window added."""
        return add_sinks_and_recent(chosen, self.sinks, (self.attended_start(state), state.length))

    def _check_reserved(self, tokens: int, origin: str = "") -> None:
        if tokens < max(self.reserved, 1):
            raise InvalidInputError(
                f"{self.name}: budget",
                f"{tokens} tokens{origin}",
                f"at least {max(self.reserved, 1)} tokens ({self.sinks} sinks and {self.recent} recent among them)",
            )
