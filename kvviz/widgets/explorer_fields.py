"""The sliders of the budget explorer: budgets, and the fields of each method worth sliding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

FIRST_BUDGET = 16


@dataclass(frozen=True)
class Slider:
    """A field of a method, the values that its slider stops at, and what the field means."""

    name: str
    label: str
    values: tuple[Any, ...]
    meaning: str

    def including(self, value: Any) -> Slider:
        """The same slider with a stop at `value` too."""
        return Slider(self.name, self.label, tuple(sorted({*self.values, value})), self.meaning)

    def described(self) -> dict[str, Any]:
        """The slider as JSON-able data."""
        return asdict(self) | {"values": list(self.values)}


# Of each method at most two; the first is the main one, over which a page without a kernel holds a grid.
_SLIDERS: Mapping[str, tuple[Slider, ...]] = {
    "quest": (Slider("page_size", "page size", (4, 8, 16, 32, 64, 128), "consecutive tokens of a page"),),
    "clusterkv": (
        Slider("n_clusters", "clusters", (16, 32, 64, 128, 256, 512), "clusters of the prompt's keys"),
        Slider("tokens_per_cluster", "tokens a cluster", (10, 20, 40, 80, 160, 320, 640),
               "the prompt gets one cluster for every so many of its tokens"),
        Slider("sinks", "sinks", (0, 4, 8, 16, 32, 64), "first tokens, always attended and never clustered"),
    ),
    "pqcache": (
        Slider("n_partitions", "partitions m", (1, 2, 4, 8), "parts that a key is cut into, each with its own codes"),
        Slider("n_bits", "bits b", (2, 3, 4, 5, 6, 7, 8), "bits of a code: a part is coded by one of 2ᵇ centroids"),
    ),
    "ctkvr": (
        Slider("n_centroids", "centroids C", (16, 32, 64, 128, 256, 512), "queries of the prompt that are centroids"),
        Slider("tokens_per_centroid", "tokens a centroid", (8, 16, 32, 64, 128, 256),
               "one of the prompt's queries is a centroid for every so many of its tokens"),
        Slider("list_ratio", "list length ρ/ρ′", (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0),
               "keys that a centroid lists, for each token that a step retrieves"),
    ),
    "centroidkv": (
        Slider("chunk_size", "chunk size", (32, 64, 128, 256, 512, 1024), "tokens that look for a partner together"),
        Slider("initial_ratio", "merge ratio", (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
               "share of the links that the first round keeps"),
    ),
    "streaming_llm": (Slider("sinks", "sinks", (0, 1, 2, 4, 8, 16, 32, 64), "first tokens, always attended"),),
}  # fmt: skip
SHOWN = 2


def sliders(config: Mapping[str, Any], method: str, head_dim: int) -> list[Slider]:
    """The sliders of a method with this configuration, the main one first, each with a stop at its present value.

    A field that is None has no slider: another one takes its place (clusters, or tokens a cluster).
    """
    found = [slider.including(config[slider.name]) for slider in _SLIDERS.get(method, ())
             if config[slider.name] is not None]  # fmt: skip
    if method == "clusterkv" and config["n_clusters"] is not None:
        found = [slider for slider in found if slider.name != "tokens_per_cluster"]
    if method == "ctkvr" and config["n_centroids"] is not None:
        found = [slider for slider in found if slider.name != "tokens_per_centroid"]
    if method == "pqcache":  # a key is cut into equal parts
        parts = tuple(value for value in found[0].values if head_dim % value == 0)
        found[0] = Slider(found[0].name, found[0].label, parts, found[0].meaning)
    return found[:SHOWN]


def budgets(prompt_length: int) -> list[int]:
    """Four budgets an octave from 16, up to the whole prompt, ascending."""
    stops = {max(prompt_length, 1)}
    octave = FIRST_BUDGET // 4
    while 4 * octave < prompt_length:
        stops.update(budget for budget in (4 * octave, 5 * octave, 6 * octave, 7 * octave) if budget < prompt_length)
        octave *= 2
    return sorted(stops)


def curve_budgets(stops: list[int]) -> list[int]:
    """Every second budget, and the first and the last: the points of a curve."""
    return sorted({*stops[::2], stops[0], stops[-1]})
