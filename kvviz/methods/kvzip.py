"""KVzip: the prompt is repeated to the model, and the tokens that the repetition attends to stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..errors import InvalidInputError
from .attention import causal_weights
from .base import Generated, LayerContext
from .eviction import Eviction, EvictionState
from .fields import checked, one_of, whole
from .selection import Group, Selection, reduce_group, to_selection_heads
from .state import Prompt

# The instructions of the published code.
FIRST = "\n\nRepeat the previous context exactly."
FURTHER = "\n\nRepeat the part of the previous context exactly, starting with "


@dataclass
class KVzip(Eviction[EvictionState]):
    """Keeps the tokens that the model attends to when it repeats the prompt: what matters for any later question.

    After the prefill, the prompt is fed again, behind an instruction to repeat it, in chunks of `chunk` tokens; the
    instruction for a chunk after the first ends with the last `previous` tokens of the chunk before, and `suffix`
    follows each. A token's score is the largest attention weight that it gets from any query of its own chunk's
    repetition (instruction included), in any query head of the group, over sinks, chunk and repetition. The first
    `sinks` tokens, in the paper the system prompt, always stay and are not repeated. Source: KVzip (arXiv 2505.23416),
    section 3 (chunks of 2K tokens), and its published code.

    budgets="shared", the paper's, is one budget for all heads of all layers: a token is kept where its score is among
    the largest of the model, so that heads keep different numbers of tokens, `budget` on average. With "equal", every
    head keeps its own best; the paper's code has that too.

    The method runs the model: a prefill and a repetition, about two to three times the prefill, for each budget, while
    the first layer is built. The prompt has to be one that `kvviz.generate`, `compare`, `score`, `diagnose` or
    `evaluate` prefills, with room in the model's positions for one chunk. There is no model on stored tensors, and so
    no repetition: a trace is refused. With queries="prompt", the prompt's own queries vote instead, here and there;
    this is the paper's comparison with prefill attention, not KVzip, and worse. preset="prompt" has these settings,
    with equal budgets, since one layer does not know the others.

    As the paper evicts at the end of a prompt only, generated tokens come on top of the budget. A later prompt is kept
    whole, as the paper keeps questions; with queries="prompt" it is ranked like other evictors' later prompts.
    """

    name = "kvzip"
    title = "KVzip"
    paper = "arXiv 2505.23416"
    score_name = "largest attention from the repetition"
    expected_failures = {
        **Eviction.expected_failures,
        "the_budget_holds": "the paper evicts at the end of the prompt only; generated tokens come on top",
    }
    presets = {
        "paper": {"queries": "repetition", "budgets": "shared"},
        "prompt": {"queries": "prompt", "budgets": "equal"},
    }

    generated: Generated = "on_top"
    sinks: int = 4
    group: Group = "max"
    queries: Literal["repetition", "prompt"] = one_of("prompt", ("repetition", "prompt"))
    budgets: Literal["shared", "equal"] = one_of("equal", ("shared", "equal"))
    chunk: int = whole(2000, 1)
    previous: int = whole(8, 0)
    suffix: str = checked("\n", str, lambda suffix: True, "a text")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budgets == "shared":
            if self.queries == "prompt":
                raise InvalidInputError("kvzip: budgets", '"shared" with queries="prompt"', 'budgets="equal"')
            if self.generated == "within":
                raise InvalidInputError("kvzip: budgets", '"shared" with generated="within"', 'generated="on_top"')
            if self.recent:
                raise InvalidInputError("kvzip: recent", f'{self.recent} with budgets="shared"', "0, as in the paper")
        self._last: tuple[Tensor, dict[int, Tensor]] | None = None  # the last prompt, and its scores by layer

    def rank(self, state: EvictionState, queries: Tensor, keys: Tensor) -> Tensor:
        """The largest weight of each token: from the repetition, or from the prompt's queries."""
        layer = state.layer
        if self.queries == "repetition":
            return self._of_repetition(layer, state.length)[layer.index]
        most = largest_weights(queries, keys, layer.scale, layer.softcap)
        return reduce_group(most, layer.n_kv_heads, self.group)

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> EvictionState:
        """The state with the prompt's best tokens; a prefill and a repetition by the model, in the first layer."""
        length = keys.shape[2]
        if self.queries == "repetition" and keys.shape[0] > 1:
            raise InvalidInputError(self.name, f"a batch of {keys.shape[0]} prompts", "one prompt")
        if self.budget_tokens(length) >= length and self.generated == "on_top":
            return self.whole(layer, keys, values)  # nothing is dropped, so nothing needs a score
        if self.budgets == "equal":
            return super().build(layer, queries, keys, values)
        by_layer = self._of_repetition(layer, length)
        kept = self._shared(by_layer, layer.index, self.budget_tokens(length)).to(keys.device)
        state = self.whole(layer, keys, values, to_selection_heads(kept, layer.selection_heads(self.group)))
        if state.scores is not None:
            scores = to_selection_heads(by_layer[layer.index], state.kept.shape[1]).gather(-1, state.kept.clamp(min=0))
            state.scores = scores.masked_fill(state.kept < self.sinks, torch.nan)
        return state

    def continue_prompt(self, state: EvictionState, queries: Tensor, keys: Tensor, values: Tensor) -> EvictionState:
        """The state with a later prompt: all of its tokens, or with queries="prompt" the best of all."""
        if self.queries == "prompt":
            return super().continue_prompt(state, queries, keys, values)
        state.append_prompt(keys, values)
        return state

    def select(self, state: EvictionState, queries: Tensor) -> Selection:
        """All kept tokens; heads may keep different numbers of them."""
        return replace(super().select(state, queries), padded=self.budgets == "shared")

    def _shared(self, by_layer: dict[int, Tensor], index: int, budget: int) -> Tensor:
        """Kept positions [1, R, K] of a layer, ascending, -1 pads: the best of all layers and heads, and the sinks.

        Of equal scores, those of the earlier layer, head and token stay.
        """
        layers = sorted(by_layer)
        scores = torch.stack([by_layer[layer][0, :, self.sinks :] for layer in layers])  # [layers, R, N]
        count = (budget - self.sinks) * scores.shape[0] * scores.shape[1]
        best = scores.flatten().argsort(descending=True, stable=True)[:count]
        kept = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
        kept[best] = True
        sinks = torch.arange(self.sinks, device=scores.device)
        rows = [
            torch.cat([sinks, row.nonzero()[:, 0] + self.sinks]) for row in kept.view_as(scores)[layers.index(index)]
        ]
        return pad_sequence(rows, batch_first=True, padding_value=-1)[None]

    def _of_repetition(self, layer: LayerContext, length: int) -> dict[int, Tensor]:
        """Scores [1, R, L] of each layer's tokens in the repetition of the prompt, 0 for sinks; computed once."""
        prompt = layer.prompt
        if prompt is None or prompt.ids is None or prompt.encode is None or prompt.ids.shape[1] != length:
            got = "stored tensors, or a prompt of unknown tokens: there is no model to repeat it to"
            wanted = 'a prompt of kvviz.generate, compare, diagnose or evaluate, or preset="prompt"'
            raise InvalidInputError(self.name, got, wanted)
        if self._last is None or self._last[0] is not prompt.ids:
            self._last = prompt.ids, self._repeated(prompt, layer)
        return self._last[1]

    def _repeated(self, prompt: Prompt, layer: LayerContext) -> dict[int, Tensor]:
        assert prompt.ids is not None
        length = prompt.ids.shape[1]
        chunks = [range(start, min(start + self.chunk, length)) for start in range(self.sinks, length, self.chunk)]
        by_layer: dict[int, Tensor] = {}

        def watch(number: int, index: int, queries: Tensor, keys: Tensor, scale: float, softcap: float | None) -> None:
            if index < self.dense_layers:
                return
            chunk, new = chunks[number], queries.shape[2]
            seen = torch.cat([keys[:, :, : self.sinks], keys[:, :, chunk.start : chunk.stop], keys[:, :, -new:]], dim=2)
            most = largest_weights(queries, seen, scale, softcap)[..., self.sinks : self.sinks + len(chunk)]
            scores = reduce_group(most, layer.n_kv_heads, self.group)
            of_layer = by_layer.setdefault(index, scores.new_zeros((1, scores.shape[1], length)))
            of_layer[..., chunk.start : chunk.stop] = scores

        prompt.feed(self.name, self._texts(prompt, chunks), watch)
        return by_layer

    def _texts(self, prompt: Prompt, chunks: list[range]) -> Iterator[Tensor]:
        """What is fed after the prompt for each chunk: instruction, suffix, and the chunk again, [1, n]."""
        assert prompt.ids is not None
        assert prompt.encode is not None
        ids, suffix = prompt.ids[0].tolist(), prompt.encode(self.suffix)
        most = self._positions(prompt)
        for number, chunk in enumerate(chunks):
            before = ids[max(chunk.start - self.previous, self.sinks) : chunk.start] if number else []
            text = [*prompt.encode(FURTHER if number else FIRST), *before, *suffix, *ids[chunk.start : chunk.stop]]
            if most is not None and len(ids) + len(text) > most:
                got = f"{len(ids)} tokens of the prompt and {len(text)} of a repeated chunk"
                raise InvalidInputError(
                    self.name, got, f"at most the model's {most} positions; a smaller `chunk` helps"
                )
            yield torch.tensor([text], device=prompt.ids.device)

    def _positions(self, prompt: Prompt) -> int | None:
        model = prompt.model()
        config = None if model is None else model.config.get_text_config(decoder=True)
        return getattr(config, "max_position_embeddings", None)


def largest_weights(queries: Tensor, keys: Tensor, scale: float, softcap: float | None = None) -> Tensor:
    """The largest of each key's exact softmax weights over the last n queries, float32 [B, Q, L].

    queries [B, Q, n, D] belong to the last n of the keys [B, R, L, D], R a divisor of Q; attention is causal. Queries
    are processed in blocks, so that memory is linear in L.
    """
    most = keys.new_zeros((*keys.shape[:2], queries.shape[1] // keys.shape[1], keys.shape[2]), dtype=torch.float32)
    for end, weights in causal_weights(queries, keys, scale, softcap):
        most[..., :end] = torch.maximum(most[..., :end], weights.amax(-2))
    return most.flatten(1, 2)
