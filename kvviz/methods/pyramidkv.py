"""PyramidKV: SnapKV with a larger budget in lower layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..trace.styles import Style
from .base import LayerContext
from .fields import number
from .snapkv import SnapKV


@dataclass
class PyramidKV(SnapKV):
    """SnapKV with a budget that falls linearly from the first layer to the last; `budget` is the mean over layers.

    Without window and sinks, the last layer gets 1 / `beta` of the mean, and the first layer as much as keeps the mean.
    No layer gets more than the prompt; this may make the pyramid less steep. The mean is exact, because each layer
    below the middle gains what its mirror image above the middle loses. Source: PyramidKV (arXiv 2406.02069), section
    4.2, β = 20. As the paper evicts at the end of the prompt only, generated tokens come on top of the budget.

    Deviations: dense layers are not part of the pyramid. The published code rounds the mean down, and gives all layers
    the same budget if the prompt is shorter than twice the budget. Layers that no method serves (sliding windows) count
    as layers here, so the mean over the other layers may differ. After a later prompt, an upper layer may have fewer
    tokens to choose from than its budget. preset="official" has the settings of the published LongBench runs: window 8,
    maximum over 7, and a separate choice per query head.
    """

    name = "pyramidkv"
    title = "PyramidKV"
    paper = "arXiv 2406.02069"
    style = Style(dash="dot", symbol="triangle-up-open")
    presets = {
        "paper": {},
        "official": {"recent": 8, "kernel": 7, "pooling": "max", "group": "each"},
    }

    beta: float = number(20, 1)

    def layer_budget(self, layer: LayerContext, prompt_length: int) -> int:
        """The budget of one layer in tokens, window and sinks included; the mean over layers is `budget`."""
        budget = self.budget_tokens(prompt_length)
        if budget >= prompt_length:
            return budget
        mean = budget - self.reserved
        most = min(2 * mean - math.floor(mean / self.beta), prompt_length - self.reserved)
        layers = layer.n_layers - self.dense_layers
        below_middle = layers - 1 - 2 * (layer.index - self.dense_layers)  # twice the distance; above it negative
        change = abs(below_middle) * (most - mean) // max(layers - 1, 1)
        return budget + change if below_middle > 0 else budget - change
