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
from . import content, scopes, unions, view
from .comparer_content import Compared
from .inspector_source import Settings, Source
from .snapshot import Snapshot
from .snapshot_panels import Bars, Cells, Dots, Panel, Passage, Table

if TYPE_CHECKING:
    from ..generation.explore import Explored, KeyGroups

Array = NDArray[Any]
COLUMNS = 128  # of a row of cells
MOST_ROWS, MOST_DOTS = 24, 1500
TEXT = "{}: attended tokens are tinted, the oracle's underlined"
MAPS = {"pca": "principal components", "query": "the query's direction", "tsne": "t-SNE"}
POSITIONS = "attended tokens, from the first position to the last"


def stepper(recording: Recording, arrays: Mapping[str, Array], layer: int, heads: str, step: int) -> Snapshot:
    """A step of a recording; `arrays` are those of `unions.shown`, `heads` the head or union in words."""
    span = slice(*arrays["offsets"][[step, step + 1]])
    frame = {name: arrays[name][span] for name in ("positions", "looks", "marks", "groups", "weights")}
    kind = unions.kind_of(arrays)
    shown = {
        "recall": f"{arrays['recall'][step]:.2f}", "mass": f"{arrays['mass'][step]:.2f}",
        "attended": f"{np.count_nonzero(frame['marks'] & view.ATTENDED):,}",
        **{name: f"{int(arrays[f'{name}_bytes'][step]):,} bytes" for name in ("read", "moved")},
    }  # fmt: skip
    numbers = [(scopes.scoped(name, "step", union=kind), value) for name, value in shown.items()]
    place = f"layer {layer} · {heads} · step {step} of {recording.steps - 1}"
    tokens = recording.tokens[: recording.visible(step)]
    return Snapshot(recording.description, place, numbers, _text_and_map(tokens, frame, arrays["map_looks"][step]))


def comparer(
    common: Compared, columns: Sequence[Mapping[str, Array]], page: Mapping[str, Any], place: Mapping[str, Any]
) -> Snapshot:
    """A step of several recordings; `columns` are those of `comparer_view.column`, `place` step, layer and heads."""
    step, union = place["step"], unions.kind_of(columns[0])
    rows = [["", *(scopes.name_in(name, union) for name in ("recall", "mass", "attended")), "output error"]]
    about = ["", *(scopes.text(scopes.scope_in(name, union)) for name in ("recall", "mass", "attended", "error"))]
    strips = []
    for label, column, method in zip(common.labels, columns, page["methods"], strict=True):
        numbers = [f"{column[name][step]:.2f}" for name in ("recall", "mass")]
        rows.append([label, *numbers, f"{int(column['attended'][step]):,}", f"{column['error'][step]:.3f}"])
        strips.append((label, _verdicts(column["map_looks"][step], method["light"])))
    where = f"layer {place['layer']} · {place['heads']} · step {step} of {common.steps - 1}"
    title = "tokens by position: full colour agreed, pale wasted, dark missed"
    return Snapshot(page["description"], where, [], [Table(rows, about), Cells(title, strips)])


def explorer(
    explored: Explored, arrays: Mapping[str, Array], numbers: Mapping[str, Any], page: Mapping[str, Any]
) -> Snapshot:
    """The last step at a budget; `arrays` and `numbers` are those of `Exploration`."""
    seed = "" if page["seed"] is None else f" · seed {page['seed']}"
    budget, length = f"{numbers['budget']:,}", f"{page['prompt_length']:,} tokens"
    title = f"{page['title']} · budget {budget} · {page['model']} · {length}{seed}"
    settings = "".join(f" · {name} {value}" for name, value in numbers["settings"].items())
    error = "∞" if numbers["error"] is None else f"{numbers['error']:.3f}"
    attended = sum(count for name, count in numbers["parts"].items() if name not in ("missed", "merged_tokens"))
    union = numbers["union"]
    shown = [
        (scopes.scoped("recall", "steps", union=union), f"{numbers['recall']:.3f}"),
        (scopes.scoped("mass", "steps", union=union), f"{numbers['mass']:.3f}"),
        (scopes.scoped("error", "steps", label="output error"), error),
        (scopes.scoped("attended", "last", union=union), f"{attended:,}"),
        (scopes.scoped("metadata", "last"), f"{numbers['metadata_bytes']:,} bytes"),
    ]
    heads = unions.name(page["head_name"], numbers["head"], union, page["per_kv_head"])
    place = f"layer {numbers['layer']} · {heads}{settings} · step {page['steps'] - 1}"
    panels = _text_and_map(explored.recording.tokens, arrays, arrays["map_looks"].ravel())
    return Snapshot(title, place, shown, panels)


def inspector(source: Source, settings: Settings, picked: int, token: int, projection: str, step: int) -> Snapshot:
    """The groups of a head's keys, with the one that is picked, and their ranking at a step."""
    groups, key = source.clusters(settings), source.map_of(settings, projection, step)
    places, shades = source.places(key), hue(groups.labels)
    kinds = {"clusters": ("cluster", "clusters"), "pages": ("page", "pages"), "codes": ("code", "codes"),
             "lists": ("list", "lists of query centroids")}  # fmt: skip
    kind, kinds_name = kinds[settings.view]
    title = f"Keys of {source.trace.model} · {source.prompt:,} tokens in {len(groups.sizes):,} {kinds_name}"
    place = f"layer {settings.layer} · KV head {settings.head} · {settings.metric} · seed {settings.seed} · step {step}"
    numbers = []
    if picked >= 0:
        recalled, steps, head = int((groups.taken[:, picked] > 0).sum()), len(groups.taken), scopes.text("head")
        numbers = [
            (f"picked {kind}", f"#{picked}"), (f"size ({head})", f"{groups.sizes[picked]:,} tokens"),
            (f"spread ({head})", f"{groups.spread[picked]:.3f}"),
            (f"recalled by ({scopes.text('head', 'steps')})", f"{recalled} of {steps} steps"),
        ]  # fmt: skip
    members = set(groups.members(picked).tolist()) if picked >= 0 else set()
    fills = {
        position: look_colour(shade * view.LEVELS + (view.LEVELS - 1 if position in members else 0))
        for position, shade in enumerate(shades.tolist())
    }
    known = np.flatnonzero(~np.isnan(places.points[:, 0]))
    few = known[np.unique(np.linspace(0, len(known) - 1, min(MOST_DOTS, len(known))).astype(int))]
    colours = [str(look_colour(int(shade) * view.LEVELS + view.LEVELS - 1)) for shade in shades[few]]
    star = places.stars[min(step, len(places.stars) - 1)] if step < source.ranked or not source.ranked else None
    about = f"keys by {MAPS[projection]}, coloured by {kind}; the star is the query"
    panels: list[Panel] = [Dots(about, places.points[few], colours, star)]
    if step < len(groups.scores):
        panels.append(_ranking(groups, kinds_name, step))
    about = f"prompt, tinted by {kind}; the picked one is underlined"
    tinted = {position: colour for position, colour in fills.items() if colour}
    tokens = source.trace.tokens[: source.prompt]
    passage = Passage(about, tokens, tinted, frozenset(members), max(token, 0))
    return Snapshot(title, place, numbers, [*panels, passage])


def _ranking(groups: KeyGroups, kinds: str, step: int) -> Bars:
    """The scores of the groups at a step, best first; filled are those before the cut, or with recalled tokens."""
    scores, cut = groups.scores[step], int(groups.cut[step])
    ranked = np.flatnonzero(~np.isnan(scores) & (groups.sizes > 0))
    order = ranked[np.argsort(-scores[ranked], kind="stable")]
    filled = [rank < cut if cut >= 0 else bool(groups.recalled[step, number] > 0) for rank, number in enumerate(order)]
    colours = [str(look_colour(int(shade) * view.LEVELS + view.LEVELS - 1)) for shade in hue(order)]
    said = f"{sum(filled):,} of {len(order):,} {kinds} recalled at step {step}"
    return Bars(f"{kinds} by score at step {step}; filled: recalled", scores[order], colours, filled, said)


def misses(diagnosis: Diagnosis, page: Mapping[str, Any], place: Mapping[str, int]) -> Snapshot:
    """What a diagnosis found; `page` is that of `misses_content`, `place` layer, head, position and step."""
    found = diagnosis.head_map()[list(diagnosis.layers)]  # [layers, heads]
    most = max(float(np.nanmax(np.abs(found))), 1e-9)
    rows = [(f"KV head {head}", [_gain(value, most) for value in found[:, head]]) for head in range(found.shape[1])]
    numbers = [
        (scopes.scoped("logprob", "answer", label="log-probability with full attention"), f"{page['full']:.2f}"),
        (scopes.scoped("logprob", "answer", label="here"), f"{page['here']:.2f}"),
        (f"heads that bring the answer back ({scopes.text('layers')})",
         "none" if page["smallest"] is None else f"{len(page['smallest'])}"),
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
