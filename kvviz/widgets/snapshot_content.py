"""What the snapshot of each widget shows. This module only arranges; the numbers are those that the widget has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..metrics import Verdict
from ..trace import Recording
from ..trace.diagnosis import Diagnosis
from ..trace.hues import HUES, hue
from . import content, view
from .comparer_content import Compared
from .inspector_content import Settings, Source
from .snapshot import Snapshot
from .snapshot_panels import Cells, Dots, Passage, Table

if TYPE_CHECKING:
    from ..generation.explore import Explored

Array = NDArray[Any]
COLUMNS = 128  # of a row of cells
MOST_ROWS, MOST_DOTS = 24, 1500
TEXT = "{}: attended tokens are tinted, the oracle's underlined"
POSITIONS = "attended tokens, from the first position to the last"


def stepper(recording: Recording, arrays: Mapping[str, Array], layer: int, heads: str, step: int) -> Snapshot:
    """A step of a recording; `arrays` are those of `unions.shown`, `heads` the head or union in words."""
    span = slice(*arrays["offsets"][[step, step + 1]])
    frame = {name: arrays[name][span] for name in ("positions", "looks", "marks", "groups", "weights")}
    mean = "mean " if "union" in arrays else ""
    numbers = [
        (f"{mean}recall", f"{arrays['recall'][step]:.2f}"), (f"{mean}mass", f"{arrays['mass'][step]:.2f}"),
        ("attended", f"{np.count_nonzero(frame['marks'] & view.ATTENDED):,}"),
        *((name, f"{int(arrays[f'{name}_bytes'][step]):,} bytes") for name in ("read", "moved")),
    ]  # fmt: skip
    place = f"layer {layer} · {heads} · step {step} of {recording.steps - 1}"
    tokens = recording.tokens[: recording.visible(step)]
    return Snapshot(recording.description, place, numbers, _text_and_map(tokens, frame, arrays["map_looks"][step]))


def comparer(
    common: Compared, columns: Sequence[Mapping[str, Array]], page: Mapping[str, Any], place: Mapping[str, Any]
) -> Snapshot:
    """A step of several recordings; `columns` are those of `comparer_view.column`, `place` step, layer and heads."""
    step = place["step"]
    rows = [["", "recall", "mass", "attended", "output error"]]
    strips = []
    for label, column, method in zip(common.labels, columns, page["methods"], strict=True):
        numbers = [f"{column[name][step]:.2f}" for name in ("recall", "mass")]
        rows.append([label, *numbers, f"{int(column['attended'][step]):,}", f"{column['error'][step]:.3f}"])
        strips.append((label, _verdicts(column["map_looks"][step], method["light"])))
    where = f"layer {place['layer']} · {place['heads']} · step {step} of {common.steps - 1}"
    title = "tokens by position: full colour agreed, pale wasted, dark missed"
    return Snapshot(page["description"], where, [], [Table(rows), Cells(title, strips)])


def explorer(
    explored: Explored, arrays: Mapping[str, Array], numbers: Mapping[str, Any], page: Mapping[str, Any]
) -> Snapshot:
    """The last step at a budget; `arrays` and `numbers` are those of `explorer_data`, of one row."""
    seed = "" if page["seed"] is None else f" · seed {page['seed']}"
    budget, length = f"{numbers['budget']:,}", f"{page['prompt_length']:,} tokens"
    title = f"{page['title']} · budget {budget} · {page['model']} · {length}{seed}"
    settings = "".join(f" · {name} {value}" for name, value in numbers["settings"].items())
    error = "∞" if numbers["error"] is None else f"{numbers['error']:.3f}"
    attended = sum(count for name, count in numbers["parts"].items() if name not in ("missed", "merged_tokens"))
    shown = [
        ("recall", f"{numbers['recall']:.3f}"), ("mass", f"{numbers['mass']:.3f}"), ("output error", error),
        ("attended", f"{attended:,}"), ("metadata", f"{numbers['metadata_bytes']:,} bytes"),
    ]  # fmt: skip
    place = f"layer {numbers['layer']} · {page['head_name']} {numbers['head']}{settings} · step {page['steps'] - 1}"
    panels = _text_and_map(explored.recording.tokens, arrays, arrays["map_looks"].ravel())
    return Snapshot(title, place, shown, panels)


def inspector(source: Source, settings: Settings, token: int) -> Snapshot:
    """The clusters of a head's keys, with the one that contains `token`."""
    clusters, places = source.clusters(settings), source.places(settings.layer, settings.head)
    shades = hue(clusters.labels)
    picked = -1 if token < 0 else int(clusters.labels[token])
    title = f"Keys of {source.trace.model} · {source.prompt:,} tokens in {settings.n_clusters:,} clusters"
    place = f"layer {settings.layer} · KV head {settings.head} · {settings.metric} · seed {settings.seed}"
    numbers = []
    if picked >= 0:
        recalled, steps = int((clusters.taken[:, picked] > 0).sum()), len(clusters.taken)
        numbers = [
            ("picked cluster", f"#{picked}"), ("size", f"{clusters.sizes[picked]:,} tokens"),
            ("spread", f"{clusters.spread[picked]:.3f}"), ("recalled by", f"{recalled} of {steps} steps"),
        ]  # fmt: skip
    fills = {
        position: look_colour(shade * view.LEVELS + (view.LEVELS - 1 if label == picked else 0))
        for position, (shade, label) in enumerate(zip(shades.tolist(), clusters.labels.tolist(), strict=True))
    }
    few = np.unique(np.linspace(0, len(shades) - 1, min(MOST_DOTS, len(shades))).astype(int))
    colours = [str(look_colour(int(shade) * view.LEVELS + view.LEVELS - 1)) for shade in shades[few]]
    lined = frozenset(np.flatnonzero(clusters.labels == picked).tolist() if picked >= 0 else ())
    return Snapshot(title, place, numbers, [
        Dots("keys by principal components, coloured by cluster; the star is the last query",
             places.points[few], colours, places.star),
        Passage("prompt, tinted by cluster; the picked one is underlined", source.trace.tokens[: source.prompt],
                {at: colour for at, colour in fills.items() if colour}, lined, max(token, 0)),
    ])  # fmt: skip


def misses(diagnosis: Diagnosis, page: Mapping[str, Any], place: Mapping[str, int]) -> Snapshot:
    """What a diagnosis found; `page` is that of `misses_content`, `place` layer, head, position and step."""
    found = diagnosis.head_map()[list(diagnosis.layers)]  # [layers, heads]
    most = max(float(np.nanmax(np.abs(found))), 1e-9)
    rows = [(f"KV head {head}", [_gain(value, most) for value in found[:, head]]) for head in range(found.shape[1])]
    numbers = [
        ("log-probability with full attention", f"{page['full']:.2f}"), ("here", f"{page['here']:.2f}"),
        ("heads that bring the answer back", "none" if page["smallest"] is None else f"{len(page['smallest'])}"),
    ]  # fmt: skip
    where = "layer {layer} · KV head {head} · evidence at {position} · step {step}".format(**place)
    evidence = {token["position"]: look_colour(token["look"]) for token in page["evidence"]}
    layers = f"{diagnosis.layers[0]} to {diagnosis.layers[-1]}"
    return Snapshot(f"{page['title']} · answer “{page['answer']}”", where, numbers, [
        Passage("evidence in the text, tinted; the picked token is underlined", page["tokens"],
                {at: colour for at, colour in evidence.items() if colour}, frozenset([place["position"]]),
                place["position"]),
        Cells(f"layers {layers} × KV heads: what restoring one brings back", rows),
    ])  # fmt: skip


def strip(tokens: Sequence[str], label: str, looks: Array, marks: Array, focus: int) -> Snapshot:
    """Running text with its looks and marks, uint8 [L] each."""
    frame = {"positions": np.arange(len(tokens)), "looks": np.where(marks > 0, looks, view.NOTHING), "marks": marks}
    return Snapshot(label, f"{len(tokens):,} tokens", [], [_passage("", tokens, frame, max(focus, 0))])


def matrix(values: Array, colours: Array | None, label: str) -> Snapshot:
    """A matrix of bytes, uint8 [rows, columns], in a palette, uint8 [256, 4], or as looks."""
    rows = values[np.unique(np.linspace(0, len(values) - 1, min(MOST_ROWS, len(values))).astype(int))]
    few = np.take_along_axis(rows, metrics.pool_argmax(rows, COLUMNS), axis=-1)
    palette = [look_colour(byte) for byte in range(256)] if colours is None else [
        f"rgba({red},{green},{blue},{alpha / 255:.2f})" for red, green, blue, alpha in colours.tolist()
    ]  # fmt: skip
    shown = [("", [palette[byte] for byte in row]) for row in few.tolist()]
    return Snapshot(label, f"{values.shape[0]:,} rows × {values.shape[1]:,} columns", [], [Cells("", shown, height=9)])


@lru_cache(256)
def look_colour(look: int) -> str | None:
    """`#rrggbb` of a look on a white ground; None for no look. Tokens of no group and missed tokens are grey."""
    from ..plots.theme import hue_color, oklch  # loads plotly

    shade, level = divmod(int(look), view.LEVELS)
    weight = (level + 1) / view.LEVELS
    if shade < HUES:
        return hue_color(shade, weight)
    return oklch(0.92 - 0.25 * weight, 0.0, 0.0) if shade <= HUES + 1 else None


def _text_and_map(tokens: Sequence[str], frame: Mapping[str, Array], map_looks: Array) -> list[Passage | Cells]:
    """The text around the recalled token with the most attention, and a row of cells for all positions."""
    recalled = np.flatnonzero(frame["groups"] >= 0)
    strongest = recalled[np.argmax(frame["weights"][recalled])] if len(recalled) else 0
    focus = int(frame["positions"][strongest]) if len(frame["positions"]) else 0
    cells = [look_colour(look) for look in _pooled(map_looks)]
    return [_passage(TEXT.format("text"), tokens, frame, focus), Cells(POSITIONS, [("", cells)])]


def _passage(title: str, tokens: Sequence[str], frame: Mapping[str, Array], focus: int) -> Passage:
    attended = (frame["marks"] & (view.ATTENDED | view.MERGED) > 0).tolist()
    looks = zip(frame["positions"].tolist(), frame["looks"].tolist(), attended, strict=True)
    fills = {position: colour for position, look, shown in looks if shown and (colour := look_colour(look))}
    lined = frozenset(frame["positions"][frame["marks"] & view.ORACLE > 0].tolist())
    return Passage(title, content.texts(tokens), fills, lined, focus)


def _pooled(looks: Array) -> list[int]:
    """A row of looks in at most COLUMNS cells: the strongest look of each stretch."""
    rank = np.where(looks == view.NOTHING, -1, looks % view.LEVELS)
    return [int(look) for look in looks[metrics.pool_argmax(rank, COLUMNS)]]


def _verdicts(looks: Array, colour: str) -> list[str | None]:
    from ..plots.theme import translucent  # loads plotly

    shades: dict[int, str] = {
        Verdict.WASTED: translucent(colour, 0.3),
        Verdict.MISSED: "#33393f",
        Verdict.KEPT: "#dcdfe4",
    }
    return [None if look == view.NOTHING else shades.get(look // view.LEVELS, colour) for look in _pooled(looks)]


def _gain(value: float, most: float) -> str | None:
    from ..plots.theme import oklch  # loads plotly

    if np.isnan(value):
        return None
    return oklch(0.95 - 0.45 * max(value, 0.0) / most, 0.02 + 0.1 * max(value, 0.0) / most, 250.0)
