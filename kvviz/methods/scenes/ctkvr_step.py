"""The numbers of a step that CTkvr's scene shows, from the method's state and functions, and the words for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from ...clustering.query_centroids import centroid_positions
from ...trace.scene import Row, refer
from ..attention import attention_weights
from ..ctkvr import CTkvr
from ..query_lists import CTkvrState, Probe
from ..ranking import Ranking
from ..selection import reduce_group
from .moment import Moment

CHIPS = 12  # tokens in a row
PALE = 0.3  # strength of what has no hue: text on it stays readable
Positions = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Step:
    """One step of CTkvr: its centroids by number, the lists that it probes, and the scores of their tokens.

    A centroid's number is that of `Selection.groups`: 0 to C − 1 for those of the prompt, then one more per step.
    """

    method: CTkvr
    moment: Moment

    @property
    def state(self) -> CTkvrState:
        """The method's state, in which the step's own query is not a centroid yet."""
        state: CTkvrState = self.moment.state
        return state

    @property
    def count(self) -> int:
        """C, the number of centroids."""
        return self.state.centroids.shape[2]

    @property
    def list_length(self) -> int:
        """ρ, the number of entries of a list."""
        return self.state.lists.shape[-1]

    @property
    def own_number(self) -> int:
        """The number that the step's query gets when it becomes a centroid."""
        return self.state.replaced + self.count

    @cached_property
    def index(self) -> CTkvrState:
        """The state after the prompt, before any centroid was replaced."""
        moment, end = self.moment, self.moment.prompt_length
        return self.method.build(
            self.state.layer, moment.all_queries[:, :, :end], moment.keys[:, :, :end], moment.values[:, :, :end]
        )

    @cached_property
    def prompt_positions(self) -> Positions:
        """The positions of the prompt's centroids, by number."""
        method = self.method
        chosen = centroid_positions(self.moment.prompt_length, self.count, method.choice, seed=method.seed)
        return np.asarray(chosen.numpy(), np.int64)

    @cached_property
    def numbers(self) -> Positions:
        """The number of the centroid in each slot."""
        numbers: Positions = self.state.numbers(torch.arange(self.count)).numpy()
        return numbers

    @cached_property
    def cosines(self) -> Floats:
        """The cosine of the step's query with the centroid in each slot."""
        cosines: Floats = self.method.centroid_scores(self.state, self.moment.queries)[0, 0].numpy()
        return cosines

    @cached_property
    def probe(self) -> Probe:
        """What the step finds by its query."""
        return self.method.probe(self.state, self.moment.queries)

    @cached_property
    def probed(self) -> Positions:
        """The numbers of the probed centroids, the nearest first."""
        probed: Positions = self.numbers[self.probe.slots[0, 0].numpy()]
        return probed

    @cached_property
    def union(self) -> Positions:
        """The distinct tokens in the probed lists, ascending."""
        tokens: Positions = self.probe.union.tokens[0, 0].numpy()
        return tokens[tokens >= 0]

    @cached_property
    def first_list(self) -> Positions:
        """For each token of the union, which of the probed lists brings it in, 0 for that of the nearest centroid."""
        first: Positions = self.probe.union.first[0, 0, : len(self.union)].numpy()
        places: Positions = first // self.list_length if self.method.rerank else first % len(self.probed)
        return places

    @cached_property
    def ranking(self) -> Ranking:
        """How the step ranks all tokens."""
        ranking: Ranking = self.method.ranking(self.state, self.moment.queries, self.moment.keys)
        return ranking

    @cached_property
    def ranked(self) -> Positions:
        """The tokens of the union, the best first."""
        return self.union[np.argsort(-self.scores[self.union], kind="stable")]

    @property
    def scores(self) -> Floats:
        """The score of each token, -inf if the step did not find it."""
        scores: Floats = self.ranking.scores[0, 0].numpy()
        return scores

    @cached_property
    def host(self) -> Positions:
        """The retrieved tokens, ascending."""
        part = self.moment.selection.host_part
        retrieved: Positions = self.moment.selection.indices[0, 0, slice(*(part or (0, 0)))].numpy()
        return retrieved[retrieved >= 0]

    @property
    def device(self) -> Positions:
        """Sinks and recent window, ascending."""
        return np.setdiff1d(self.moment.attended, self.host)

    @property
    def over_heads(self) -> str:
        """How the query heads are combined, in words; "" for one."""
        count = self.moment.group_size
        return "" if count == 1 else f", {self.method.group} over {count} query heads"

    def position(self, number: int) -> int:
        """The position of the token whose query is this centroid."""
        if number < self.count:
            return int(self.prompt_positions[number])
        return self.moment.prompt_length + number - self.count

    def entries(self, slot: int) -> Positions:
        """The tokens in the list of a slot that may still be retrieved, those that its query attends to most first.

        The order in the list, where it counts. A list of a decode step is otherwise in no order.
        """
        listed = self.state.lists[0, 0, slot].numpy().astype(np.int64)
        listed = listed[(listed >= 0) & (listed < self.method.recent_start(self.state))]
        number = int(self.numbers[slot])
        if number < self.count or not self.method.rerank or not len(listed):
            return listed
        query = self.moment.all_queries[:, :, self.position(number)]
        weights = self.state.exact_weights(query, torch.from_numpy(listed)[None, None], self.method.group)[0, 0].numpy()
        return listed[np.argsort(-weights, kind="stable")]

    def list_weights(self, number: int, tokens: Positions) -> Floats:
        """The weights by which a centroid of the prompt lists tokens: of a softmax over all keys of the prompt."""
        position, layer = self.position(number), self.state.layer
        end = position + 1 if self.method.causal else self.moment.prompt_length
        query = self.moment.all_queries[:, :, position]
        weights = attention_weights(query, self.moment.keys[:, :, :end], layer.scale, layer.softcap)
        reduced: Floats = reduce_group(weights, 1, self.method.group)[0, 0].numpy()
        return reduced[tokens]

    def holders(self, state: CTkvrState) -> int:
        """The number of lists that hold the followed token."""
        return int((state.lists[0, 0] == self.moment.token).any(-1).sum())

    @cached_property
    def best_holder(self) -> Positions:
        """For each token of the prompt, the number of the nearest centroid that lists it, -1 for none."""
        holders = np.full(self.moment.prompt_length, -1)
        for slot in np.argsort(self.cosines, kind="stable"):
            listed = self.state.lists[0, 0, slot].numpy()
            holders[listed[(listed >= 0) & (listed < len(holders))]] = self.numbers[slot]
        tokens = self.union < len(holders)
        holders[self.union[tokens]] = self.probed[self.first_list[tokens]]
        return holders

    def named(self, number: int) -> str:
        """A centroid in a sentence."""
        return refer(f"the query of “{self.moment.short(self.position(number))}”", f"centroid:{number}")

    def label(self, number: int) -> str:
        """A centroid in a picture: the token whose query it is, and its position."""
        position = self.position(number)
        return f"{self.moment.short(position)[:8]} @{position}"

    def centroid_row(self, numbers: Positions, name: str = "", strength: float = 1.0) -> Row:
        """Centroids side by side."""
        return Row(
            kind="centroid", name=name, numbers=numbers, groups=numbers,
            labels=[self.label(int(number)) for number in numbers], strength=np.full(len(numbers), strength),
        )  # fmt: skip

    def token_row(self, tokens: Positions, name: str = "", group: int = -1) -> Row:
        """Tokens side by side, in the hue of the centroid `group`."""
        return Row(
            kind="token", name=name, numbers=tokens, groups=np.full(len(tokens), group), labels=self.texts(tokens),
            strength=np.full(len(tokens), PALE if group < 0 else 1.0),
        )  # fmt: skip

    def texts(self, tokens: Positions) -> list[str]:
        """The texts of tokens, shortened."""
        return [self.moment.short(int(token)) for token in tokens]
