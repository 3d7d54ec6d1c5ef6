"""PyramidKV: SnapKV's votes with more budget for the lower layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..trace.styles import Style
from .base import LayerContext, State
from .fields import number
from .snapkv import SnapKV


@dataclass
class PyramidKV(SnapKV):
    """SnapKV with a budget that falls linearly from the first layer to the last; `budget` is the mean over layers.

    Beside window and sinks, the last layer has a share 1 / `beta` of the mean and the first what keeps the mean. A
    layer never gets more than the prompt: then the pyramid is as steep as that allows. Sums over layers are exact,
    because a layer below the middle gets what the one as far above it gives up. Source: PyramidKV (arXiv 2406.02069),
    section 4.2, β = 20.

    Deviations: layers that are dense by choice are left out of the pyramid; the published code rounds so that the mean
    falls short, and gives prompts shorter than twice the budget one budget for all layers. Layers that no method serves
    (sliding windows) count as layers here, so that there the mean over the others may differ. A later prompt may leave
    an upper layer fewer tokens to choose from than its budget. preset="official" is what the published LongBench runs
    use: window 8, maximum over 7, and each query head for itself.
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

    def step_budget(self, state: State) -> int:
        """Tokens that a head of this layer may attend to: the layer's budget, and one more for each generated token."""
        return self.layer_budget(state.layer, state.prompt_length) + state.generated

    def layer_budget(self, layer: LayerContext, prompt_length: int) -> int:
        """The budget of one layer in tokens, window and sinks included; its mean over layers is the budget."""
        budget = self.budget_tokens(prompt_length)
        if budget >= prompt_length:
            return budget
        mean = budget - self.reserved
        most = min(2 * mean - math.floor(mean / self.beta), prompt_length - self.reserved)
        layers = layer.n_layers - self.dense_layers
        below_middle = layers - 1 - 2 * (layer.index - self.dense_layers)  # twice the distance; above it negative
        moved = abs(below_middle) * (most - mean) // max(layers - 1, 1)
        return budget + moved if below_middle > 0 else budget - moved
