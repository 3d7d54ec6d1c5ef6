"""Selection maps: the tokens that a method attends to at each decode step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from ..errors import InvalidInputError, UnknownNameError
from ..trace import Recording
from .cells import cells
from .first_layer import layer_or_first
from .labels import heading, set_title
from .labels import title as join
from .marks import hover, legend, paint
from .panels import ABOVE, stack
from .theme import ink, template_name

MAX_COLUMNS = 512
_COLORS = ("agreement", "attention", "group")
_PANEL_GAP = 34  # pixels between panels: the title of the lower one
_BELOW = 84  # pixels for the axis and the legend


def selection_map(
    recordings: Recording | Sequence[Recording],
    layer: int | None = None,
    head: int = 0,
    *,
    color: Literal["agreement", "attention", "group"] = "agreement",
    steps: tuple[int, int] | None = None,
    positions: tuple[int, int] | None = None,
    columns: int = 128,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """A map of decode steps × positions: the tokens that each method attends to, compared with the oracle's.

    As in ClusterKV (arXiv 2412.03213) fig. 1 and CTkvr fig. 1, drawn from recorded runs. Agreed tokens are filled,
    missed ones outlined, wasted ones hatched. Sinks, recent window and generated tokens, which a method always attends
    to, are dotted unless they agree. The marks are those of the widgets, and differ without colours too. The oracle
    selects as many tokens as the method, by exact attention. A merged token of the oracle's agrees if its centroid
    gives it at least half of its weight.

    `recordings`: one recording, or several of the same model and prompt, with one panel each and a shared position
    axis. `layer`: by default the first one recorded in all of them. `head` counts key/value heads; if one of several
    recordings has one row per query head, its panel shows the first query head of the group, and says so. `color`:
    "agreement" (the four marks), "attention" (attended tokens in cividis, by the logarithm of their exact weight) or
    "group" (hue by cluster or page, lightness by weight). `steps` and `positions` are half-open ranges. More than
    `columns` positions (at most 512) are pooled: a column then shows the most attended of its marked tokens, and the
    axis says so.

    Recall and attention mass above each panel are exact: means over the steps shown, over all positions.

    Raises InvalidInputError for recordings of different models or prompts, a layer that was not recorded, or a head,
    range or number of columns that does not fit; UnknownNameError for an unknown `color`.

    >>> from kvviz.plots.example import example_recording
    >>> figure = selection_map(example_recording(), layer=0)
    >>> [trace.name for trace in figure.data if trace.name]
    ['agreed with the oracle', 'missed: only the oracle', 'wasted: only the method', 'end of the prompt']
    """
    runs = _same_prompt([recordings] if isinstance(recordings, Recording) else list(recordings))
    layer = layer_or_first("selection_map", layer, *runs)
    if color not in _COLORS:
        raise UnknownNameError("selection_map: color", str(color), _COLORS)
    if not 1 <= columns <= MAX_COLUMNS:
        raise InvalidInputError("selection_map: columns", columns, f"1 to {MAX_COLUMNS}")
    steps = _range("steps", steps, max(run.steps for run in runs))
    for run in runs:
        if steps[0] >= run.steps:
            wanted = f"a range within the {run.steps} steps of {run.method}"
            raise InvalidInputError("selection_map: steps", steps, wanted)
    positions = _range("positions", positions, max(run.visible(min(steps[1], run.steps) - 1) for run in runs))
    rows = [run.indices(0, layer).shape[0] for run in runs]
    if not 0 <= head < min(rows):
        raise InvalidInputError("selection_map: head", head, f"0 to {min(rows) - 1}")
    spans = [(steps[0], min(steps[1], run.steps)) for run in runs]
    height = min(max(6 * (steps[1] - steps[0]), 90), 260)
    figure, inside = stack([height] * len(runs), _PANEL_GAP, shared_xaxes=True)
    grids = []
    for panel, (run, span, count) in enumerate(zip(runs, spans, rows, strict=True), start=1):
        row = head * (count // min(rows))
        grid = cells(run, layer, row, span, positions, columns)
        figure.add_traces([*paint(grid, run, color, dark), hover(grid, run)], rows=panel, cols=1)
        panel_title = _panel_title(run, layer, row, range(*span), count != min(rows))
        figure.add_annotation(**ABOVE, text=panel_title, row=panel, col=1)
        figure.update_yaxes(range=[span[1] - 0.5, span[0] - 0.5], title_text="step", nticks=6, row=panel, col=1)
        grids.append(grid)
    prompt_end = runs[0].prompt_length - 0.5
    ends_inside = positions[0] < prompt_end < positions[1] - 1
    if ends_inside:
        figure.add_vline(x=prompt_end, line={"width": 1, "dash": "dot", "color": ink(dark).foreground})
    figure.add_traces(legend(grids, runs, color, ends_inside, dark), rows=1, cols=1)
    row_name = f"KV head {head}" if min(rows) == runs[0].geometry.n_kv_heads else f"query head {head}"
    set_title(figure, heading(title, _about(runs, layer, row_name, steps, color)), panel_titles=True)
    figure.update_layout(template=template_name(dark), height=figure.layout.margin.t + inside + _BELOW)
    figure.update_layout(meta={"titles": {run.method: run.title for run in runs}})  # for plots.save
    figure.update_yaxes(showgrid=False)
    figure.update_xaxes(range=[positions[0] - 0.5, positions[1] - 0.5], showgrid=False, tickformat=",")
    pooled = f"position (max-pooled by {grids[0].width})" if grids[0].width > 1 else "position"
    figure.update_xaxes(title_text=pooled, row=len(runs), col=1)
    return figure


def _same_prompt(runs: list[Recording]) -> list[Recording]:
    if not runs:
        raise InvalidInputError("selection_map", "no recording", "at least one")
    first = runs[0]
    for run in runs:
        if run.steps == 0:
            raise InvalidInputError("selection_map", f"a recording of {run.method} without steps", "at least one step")
        if (run.model, run.geometry) != (first.model, first.geometry):
            raise InvalidInputError("selection_map", f"recordings of {first.model} and {run.model}", "one model")
        if not np.array_equal(run.token_ids[: run.prompt_length], first.token_ids[: first.prompt_length]):
            got = f"another prompt in the recording of {run.method}"
            raise InvalidInputError("selection_map", got, f"the prompt of {first.method}")
    return runs


def _range(name: str, bounds: tuple[int, int] | None, length: int) -> tuple[int, int]:
    if bounds is None:
        return 0, length
    start, stop = bounds
    if not 0 <= start < stop <= length:
        raise InvalidInputError(f"selection_map: {name}", bounds, f"(start, stop) with 0 <= start < stop <= {length}")
    return start, stop


def _panel_title(run: Recording, layer: int, row: int, steps: range, of_query_head: bool) -> str:
    recall = np.mean([run.recall(step, layer)[row] for step in steps])
    mass = np.mean([run.attention_mass(step, layer)[row] for step in steps])
    parts = [run.method, f"query head {row}" if of_query_head else "", f"budget {run.budget:,}"]
    return join([*parts, f"recall {recall:.2f}", f"mass {mass:.2f}"])


def _about(runs: list[Recording], layer: int, row_name: str, steps: tuple[int, int], color: str) -> list[str]:
    """Parts of the title: what was run and what is shown."""
    seeds = {run.config["seed"] for run in runs if "seed" in run.config}
    last_step = f"–{steps[1] - 1:,}" if steps[1] - steps[0] > 1 else ""
    return [
        "Attended tokens by step", runs[0].model, f"{runs[0].prompt_length:,} tokens", f"layer {layer}", row_name,
        f"steps {steps[0]:,}{last_step}", f"seed {seeds.pop()}" if len(seeds) == 1 else "",
        "hue: cluster or page, strength: attention" if color == "group" else "",
    ]  # fmt: skip
