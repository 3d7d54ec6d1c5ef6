"""How PQCache's scene shows keys and codes: the codebook after each round of k-means, its plane, and rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from ...clustering.kmeans import Clusters, initial_positions
from ...clustering.product_quantization import Codebook, cluster_parts, split
from ...trace.scene import Dots, Plane, Row, refer
from ..pqcache import PQCache
from .moment import Moment

MOST_PARTS = 8  # that are shown of a key
MOST_CODEWORDS = 64  # that are shown of a part
MOST_DOTS = 600  # on a plane

Floats = NDArray[np.float32]
Whole = NDArray[np.int64]


class Coded:
    """The keys of a step and their codes, by the codebook of the method's state.

    `example` is the token that is followed, or, if the step does not score it, the scored one with the most attention.
    """

    def __init__(self, method: PQCache, moment: Moment) -> None:
        self.method, self.moment = method, moment
        self.book: Codebook = moment.state.books[-1]
        self.start, self.end = method.sinks, method.recent_start(moment.state)  # of the tokens that are scored
        self.clustered: int = moment.state.rebuilt  # end of the tokens whose keys made the codebook
        _, self.n_parts, self.count, self.width = self.book.centroids.shape[1:]
        self.shown_parts = range(min(self.n_parts, MOST_PARTS))
        self.planes = range(min(self.n_parts, 2))  # parts that are drawn on a plane
        scored = self.start <= moment.token < self.end
        strongest = self.start + int(moment.weights[self.start : min(self.end, moment.prompt_length)].argmax())
        self.example = moment.token if scored else strongest

    @cached_property
    def last(self) -> Clusters:
        """The clusters of part 1 after all rounds of k-means."""
        return self.after(self.method.iterations(self.clustered - self.start))

    def after(self, rounds: int) -> Clusters:
        """The clusters of part 1 after at most so many rounds, by the function and keys that the method uses."""
        keys = self.moment.keys[:, :, self.start : self.clustered, : self.width]
        return cluster_parts(keys, n_partitions=1, n_bits=self.method.n_bits, max_iter=rounds, seed=self.method.seed)

    @property
    def initial(self) -> Floats:
        """The parts of keys that k-means begins with, [m, C, D/m]."""
        initial = initial_positions(self.clustered - self.start, self.count, self.method.seed).numpy()
        return self.key_parts[:, initial]

    @property
    def final(self) -> Floats:
        """The codewords [m, C, D/m] of the method's codebook."""
        centroids: Floats = self.book.centroids[0, 0].numpy()
        return centroids

    @cached_property
    def codes(self) -> Whole:
        """The codes of all tokens but the sinks and the newest, int64 [n, m]."""
        return self.book.codes[0, 0].numpy().astype(np.int64)

    @property
    def own(self) -> list[int]:
        """The codes of the token that is followed."""
        return [int(code) for code in self.codes[self.example - self.start]]

    def parts(self, vectors: torch.Tensor) -> Floats:
        """The parts [m, n, D/m] of vectors [n, D]."""
        parts: Floats = split(vectors.float(), self.n_parts).numpy()
        return parts

    @cached_property
    def key_parts(self) -> Floats:
        """The parts of the keys that made the codebook, [m, n, D/m]."""
        return self.parts(self.moment.keys[0, 0, self.start : self.clustered])

    @cached_property
    def own_parts(self) -> Floats:
        """The parts [m, D/m] of the key of the token that is followed."""
        return self.parts(self.moment.keys[0, 0, self.example, None])[:, 0]

    def members(self) -> dict[str, Whole]:
        """The codeword of each token of the prompt, by part, -1 for none."""
        coded = self.codes[: max(self.moment.prompt_length - self.start, 0)]
        members = np.full((self.moment.prompt_length, self.n_parts), -1)
        members[self.start : self.start + len(coded)] = coded
        return {codewords(part): members[:, part] for part in self.shown_parts}

    def shown_codewords(self, part: int, values: Floats) -> Whole:
        """The numbers of the codewords that are shown: those with the largest values, and that of the token."""
        best = np.argsort(-values, kind="stable")[: MOST_CODEWORDS - 1]
        return np.arange(self.count) if self.count <= MOST_CODEWORDS else np.union1d(best, self.own[part])

    def _axes(self, part: int) -> tuple[Floats, Floats, float]:
        """The mean, the two principal components [D/m, 2] and their share of the variance, of a part of the keys."""
        keys = self.key_parts[part]
        mean = keys.mean(0)
        variances, vectors = np.linalg.eigh(np.cov(keys.T).reshape(self.width, self.width))
        axes = vectors[:, ::-1][:, :2]
        axes = np.pad(axes, ((0, 0), (0, 2 - axes.shape[1]))) * np.where(axes.sum(0) < 0, -1, 1)
        total = float(variances.sum())
        return mean, axes, float(variances[::-1][:2].sum()) / total if total > 0 else 1.0

    def plane(
        self, part: int, labels: Whole | None = None, centroids: Floats | None = None, near: int | None = None
    ) -> Plane:
        """A part of the keys on its two principal components, in the hues of their codewords, with these centroids.

        With `near`, only so many centroids, those nearest to the token that is followed; keys of others are faint.
        """
        mean, axes, share = self._axes(part)
        count = self.clustered - self.start
        spread = np.linspace(0, count - 1, min(count, MOST_DOTS)).astype(np.int64)
        chosen = np.union1d(spread, self.example - self.start)
        places = (self.key_parts[part][chosen] - mean) @ axes
        dots = [
            Dots(
                kind="token", numbers=chosen + self.start, x=places[:, 0], y=places[:, 1],
                groups=None if labels is None else labels[chosen],
                strength=None if labels is None or near is None else np.where(
                    labels[chosen] == self.own[part], 1.0, 0.15
                ),
            )
        ]  # fmt: skip
        title = f"part {part + 1} of the keys"
        if centroids is not None:
            away = np.linalg.norm(centroids - self.own_parts[part], axis=-1)
            nearest = np.argsort(away, kind="stable")[:near]
            numbers = self.shown_codewords(part, -away) if near is None else np.sort(nearest)
            at = (centroids[numbers] - mean) @ axes
            dots.append(
                Dots(kind=codewords(part), numbers=numbers, groups=numbers, x=at[:, 0], y=at[:, 1], shape="ring")
            )
            if len(numbers) < self.count:
                title = f"part {part + 1} of keys, {len(numbers)} of {self.count} codewords"
        return Plane(title=title, dots=dots, axes=(f"PCA, {share:.0%} of the variance", ""))


def codewords(part: int) -> str:
    """The kind of the codewords of a part, which is counted from 1 in it."""
    return f"codeword{part + 1}"


def codeword(part: int, number: int) -> str:
    """A reference to a codeword in a sentence."""
    return refer(f"codeword {number}", f"{codewords(part)}:{number}")


def rows_of(kind: str, parts: Iterable[tuple[str, Floats]]) -> list[Row]:
    """A row for each named part of a vector, with a cell for each of its numbers."""
    rows, start = [], 0
    for name, values in parts:
        rows.append(Row(name=name, kind=kind, numbers=np.arange(start, start + len(values)), values=values))
        start += len(values)
    return rows


def added(terms: Sequence[float]) -> str:
    """Terms as a sum in words, the first ones if they are many: "1.50 − 0.25"."""
    shown = terms if len(terms) <= 4 else terms[:3]
    text = signed(shown[0]) + "".join(f" {'−' if term < 0 else '+'} {abs(term):.2f}" for term in shown[1:])
    return text if len(shown) == len(terms) else f"{text} + …"


def signed(value: float) -> str:
    """A number with two decimals and a minus sign."""
    return f"{'−' if round(value, 2) < 0 else ''}{abs(value):.2f}"
