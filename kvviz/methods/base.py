"""The protocol that every method follows, its registry and what all methods share."""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from ..clustering.merged import Merged
from ..errors import InvalidInputError, UnknownNameError
from ..offload.arena import StepCache
from ..offload.block_cache import BlockCache
from ..offload.store import TokenCache
from ..registry import Registry
from ..trace.styles import Style, declare
from .selection import GROUPS, Group, Selection, attend_all
from .sliders import Slider

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Kind = Literal["exact", "retrieval", "eviction", "merging", "prefill"]

REGISTRY: Registry[Method] = Registry("method", "kvviz.methods")


@dataclass(eq=False)
class Prompt:
    """The prompt that a cache was filled with, for what has to run the model on it once more (`kvviz.cache.kvpress`).

    `model` is a weak reference. `ids` are the tokens [1, L] of the first prompt; None until `kvviz.generate`, `compare`
    or `evaluate` fills the cache, and where transformers' own `generate` does.
    """

    model: weakref.ref[PreTrainedModel]
    ids: Tensor | None = None


@dataclass(frozen=True)
class LayerContext:
    """What a method may know of the layer that it serves.

    `scale` multiplies the logits, `softcap` bounds them (Gemma 2) or is None. With `details`, selections carry groups
    and scores. `cached` looks up the layer's own keys and values; it is None on stored tensors (see `token_cache`).
    `speculate` gives this layer's queries [B, Q, D] as guessed from the attention input of the layer before, for a
    method that `speculates`; it is None without a running model. So is `prompt`, which methods on tensors do not need.
    """

    index: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None = None
    details: bool = False
    cached: TokenCache | None = None
    speculate: Callable[[], Tensor] | None = None
    prompt: Prompt | None = None

    def rows(self, group: Group) -> int:
        """Rows of choice: KV heads, or query heads where each chooses for itself."""
        return self.n_heads if group == "each" else self.n_kv_heads

    def token_cache(self, keys: Tensor, values: Tensor) -> TokenCache:
        """Where a method looks up keys and values later: the layer's own cache, or a new one with these."""
        if self.cached is not None:
            return self.cached
        own = TokenCache()
        own.append(keys, values)
        return own


@dataclass
class State:
    """What a method keeps of one layer between decode steps; each method adds its own fields.

    `auxiliary` names the fields that hold keys a second time (some channels, low rank, another layout).
    """

    auxiliary: ClassVar[tuple[str, ...]] = ()

    layer: LayerContext
    prompt_length: int
    length: int

    @property
    def generated(self) -> int:
        """Tokens since the prompt."""
        return self.length - self.prompt_length

    def metadata_bytes(self) -> int:
        """Bytes of every tensor the method keeps beside the keys and values themselves."""
        own = (field.name for field in fields(self) if field.name != "layer")  # what the method was told, the prompt
        return sum(tensor_bytes(getattr(self, name)) for name in own)

    def auxiliary_bytes(self) -> int:
        """Bytes of the keys kept a second time, a part of `metadata_bytes`."""
        return sum(tensor_bytes(getattr(self, name)) for name in self.auxiliary)

    def read_bytes(self) -> int:
        """Bytes beside the attended keys and values that one step reads to choose; all metadata, unless less is.

        PQCache counts these as extra communication (arXiv 2407.12820, section 4.1).
        """
        return self.metadata_bytes()

    def outer_metadata_bytes(self) -> int:
        """Bytes of the metadata kept outside the device, a part of `metadata_bytes`."""
        return 0

    def prefetch(self) -> None:
        """Begin to bring to the device what the next step reads of metadata kept outside it."""
        return

    def cached_bytes(self) -> int:
        """Bytes of keys and values that the state holds in place of the layer's store: merged centroids."""
        return 0


@dataclass
class Method(ABC):
    """One way to choose which cached tokens a decode step attends. Its dataclass fields are its configuration.

    A subclass sets the class variables, implements `build`, `extend` and `select`, and is registered under its `name`.
    All three take tensors only, so that they run on stored traces as well as inside a model. The budget counts
    attended tokens per KV head, sinks and recent window included; tokens generated after the prompt come on top. With
    group="each" every query head has the budget to itself, so that a KV head may attend more: the ledger says how many.

    `budget`: an int, or a share of the prompt as a float in (0, 1). `sinks`, `recent`: how many of the first and of the
    most recent tokens are always attended. `dense_layers`: how many of the first layers attend everything. `group`: how
    the query heads of a KV head agree: mean, max or sum of their scores, or each for itself.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    kind: ClassVar[Kind]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}
    expected_failures: ClassVar[Mapping[str, str]] = {}
    needs_queries: ClassVar[bool] = True
    overlaps_build: ClassVar[bool] = False
    speculates: ClassVar[bool] = False
    ignores_budget: ClassVar[bool] = False  # decode steps attend all tokens, whatever the budget
    builds_for_any_budget: ClassVar[bool] = False  # a state built under one budget serves every other; not inherited
    device_cache: ClassVar[StepCache | BlockCache] = StepCache()  # what stays on the device, where a store offloads
    group_name: ClassVar[str] = "cluster"  # what `Selection.groups` are called: one of them
    style: ClassVar[Style] = Style()  # how figures and widgets draw it; not inherited by a method of another name
    sliders: ClassVar[tuple[Slider, ...] | None] = None  # of the budget explorer; None: made from the numeric fields

    budget: int | float = 1024
    sinks: int = 0
    recent: int = 0
    dense_layers: int = 0
    group: Group = "mean"

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
        for field in ("sinks", "recent", "dense_layers"):
            self._check_at_least(field, 0)
        if self.group not in GROUPS:
            raise UnknownNameError(f"{self.name}: group", str(self.group), GROUPS)
        if isinstance(self.budget, int):
            self._check_reserved(self.budget)

    @property
    def config(self) -> dict[str, Any]:
        """The fields and their values."""
        return asdict(self)

    @property
    def reserved(self) -> int:
        """Tokens of the budget that no choice is left for: at least sinks and recent window."""
        return self.sinks + self.recent

    def budget_tokens(self, prompt_length: int) -> int:
        """The budget in tokens for a prompt of this length.

        Raises InvalidInputError where a share of it is smaller than sinks and recent window together.
        """
        if isinstance(self.budget, int):
            return self.budget
        tokens = math.floor(self.budget * prompt_length)
        self._check_reserved(tokens, f" ({self.budget} of {prompt_length} tokens)")
        return tokens

    def allowance(self, state: State) -> int:
        """Tokens a head may attend at this step: the budget, and one more for each generated token."""
        return self.budget_tokens(state.prompt_length) + state.generated

    def recent_window(self, state: State) -> int:
        """Tokens at the end that this step attends without choosing."""
        return self.recent

    def local_window(self, state: State) -> int:
        """Tokens at the end that this step attends whatever it chooses, and that an outer tier need not have."""
        return self.recent_window(state)

    def is_dense(self, layer: int) -> bool:
        """Whether this layer attends everything by the method's choice."""
        return layer < self.dense_layers

    @property
    def drops_tokens(self) -> bool:
        """Whether tokens are dropped or replaced, so that their keys and values are freed."""
        return self.kind in ("eviction", "merging")

    @property
    def prefills_sparsely(self) -> bool:
        """Whether prompts are attended as `attend_prompt` says, and not exactly."""
        return type(self).attend_prompt is not Method.attend_prompt

    @abstractmethod
    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> State:
        """The state of one layer after the prompt.

        queries [B, Q, L, D] (none of them, [B, Q, 0, D], unless the class `needs_queries`), keys and values
        [B, H, L, D], all after RoPE, finite, and not to be changed. Where the class `overlaps_build`, this runs beside
        the rest of the prefill, in a worker thread and, on CUDA, on a side stream.
        """

    @abstractmethod
    def extend(self, state: State, queries: Tensor, keys: Tensor, values: Tensor) -> State:
        """The state with the tokens decoded since: queries [B, Q, n, D], keys and values [B, H, n, D]."""

    @abstractmethod
    def select(self, state: State, queries: Tensor) -> Selection:
        """What the step with these queries [B, Q, D] attends."""

    def keeps(self, state: State) -> Tensor | None:
        """Positions [B, H, K] that a later step may still attend, ascending, -1 pads; None: every one.

        The layer frees the keys and values of all others. Asked only of methods that drop tokens.
        """
        return None

    def merged(self, state: State) -> Merged | None:
        """The merged tokens that stand for dropped ones, which a later prompt attends too."""
        return None

    def continue_prompt(self, state: State, queries: Tensor, keys: Tensor, values: Tensor) -> State | None:
        """The state after a later prompt of the same session, whose tokens are cached already.

        queries [B, Q, n, D], keys and values [B, H, n, D] are the later prompt's own n > 1 tokens. None, the default,
        asks for a new `build` over all tokens so far; a method that drops tokens has to do better.
        """
        return None

    def attend_prompt(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor | None:
        """Attention output [B, Q, n, D] of a prompt's last n tokens over keys and values [B, H, L, D], causal.

        None, the default: the model's own exact attention.
        """
        return None

    def everything(self, state: State, queries: Tensor) -> Selection | None:
        """All tokens, where the allowance covers them; otherwise None."""
        if state.length > self.allowance(state):
            return None
        rows = state.layer.rows(self.group)
        return attend_all(state.length, queries.shape[0], rows, queries.device, details=state.layer.details)

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

    def _check_at_least(self, field: str, least: int) -> None:
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidInputError(f"{self.name}: {field}", repr(value), f"an int >= {least}")

    def _check_between(self, field: str, least: float, most: float) -> None:
        """Raise InvalidInputError unless the field is a number from `least` to `most`, both allowed."""
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise InvalidInputError(f"{self.name}: {field}", repr(value), f"a number from {least} to {most}")


def tensor_bytes(value: object) -> int:
    """Bytes of every tensor in a tensor, a sequence or a dataclass; 0 for anything else."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, list | tuple):
        return sum(tensor_bytes(item) for item in value)
    if is_dataclass(value):
        return sum(tensor_bytes(getattr(value, field.name)) for field in fields(value))
    return 0
