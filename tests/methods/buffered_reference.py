"""Eviction in rounds of a whole buffer, by its definition, one selection head at a time."""

from __future__ import annotations

import numpy as np

from tests.methods.eviction_reference import Session


class BufferedSession(Session):
    """A session whose rows drop tokens only once they fill the budget, `buffer` at a time.

    A subclass scores the tokens at `positions` that a row keeps. `last_queries[head]` are the queries of all tokens.
    """

    def __init__(self, *args, size, buffer, recent, **kwargs):
        super().__init__(*args, lambda _: size, lambda _: recent, **kwargs)
        self.size, self.recent = size, recent
        self.room = max(min(buffer, (size - self.sinks - recent) // 2), 1) if self.fixed else 0
        self.queries = [[] for _ in range(self.n_heads)]
        self.rounds = 0

    def ranked(self, row, positions):
        """Scores of the tokens at these positions, which are all that the row keeps; the window's do not matter."""
        raise NotImplementedError

    def prompt(self, queries, keys, values):
        for head in range(self.n_heads):
            self.queries[head] += list(np.asarray(queries[head], dtype=np.float64))
        return super().prompt(queries, keys, values)

    def step(self, query, key, value):
        output = super().step(query, key, value)  # first drops tokens, by the queries before this one
        for head in range(self.n_heads):
            self.queries[head].append(np.asarray(query[head], dtype=np.float64))
        return output

    def score(self, row, candidates, weights):
        return self.ranked(row, candidates)

    def standing(self, row):
        full = len(self.kept[row]) == self.size
        return self.ranked(row, self.kept[row]) if full else [0.0] * len(self.kept[row])

    def best(self, candidates, scores, count, window):
        """`count` is the budget after a prompt, and one less before a step."""
        if len(candidates) <= count:
            return candidates
        self.rounds += 1
        return super().best(candidates, scores, self.size - self.room, self.recent)
