"""MechanismStepper: a method at work on one decode step of real data, frame by frame."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import traitlets

from ..errors import InvalidInputError
from ..trace import Recording, Trace
from ..trace.edit_parts import Named
from ..trace.recorded_scenes import RecordedScenes
from ..trace.scene import Scene
from . import content, head_maps, mechanism_content
from .live import LiveWidget
from .page import Embedded, blob, self_contained
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..generation.explore import Mechanism, Method

CACHED = 16  # maps of keys and scenes


class MechanismStepper(LiveWidget):
    """A widget that plays how a method comes to the tokens of a decode step, on a trace or a recording.

    Each frame has at most 40 words, and what it shows moves there from its place in the frame before. Chapters, as a
    bar, are the method's stages. The arrow keys change the frame, Home and End jump to the ends, the space bar plays.
    Words that are underlined stand for objects of the picture, which light up with them. A token that is picked in the
    text is followed through all chapters. Nothing moves if the system asks for reduced motion, or "motion" is off.

    The last `queries` positions of the trace play the decode steps, as in `kvviz.replay`; the tokens before are the
    prompt. `method` is a name, with `budget` and the method's `fields`, or a Method. `layer`, `head` (KV head, or query
    head for group="each"), `step` (from 0; by default the last one), `token` (the position that is followed) and
    `frame` (from 0) are traits: set them from Python, or observe them. All but `frame` need the kernel. By default the
    widget opens at the captured layer in the middle and at the token with the most attention; with `span`, which names
    tokens as for `kvviz.pin`, at the head that attends to them most, following the first of them.

    A recording has its method and steps: `method`, `budget`, `fields` and `queries` are for traces. Its frames show
    what was recorded: where the budget went, the scores of what was chosen, and the exact attention.

    What a frame shows comes from the method's own state and functions; a method of another package may define
    `scene(self, moment)` (see `kvviz.trace.scene`).

    Raises InvalidInputError for anything but a trace or a recording, a recording with a method, a place that it does
    not have, a layer in which the method attends to all tokens, or a budget that covers them; the method's errors for
    its fields.
    """

    _kvviz_view = traitlets.Unicode("mechanism").tag(sync=True)
    layer = traitlets.Int(0).tag(sync=True)
    head = traitlets.Int(0).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    token = traitlets.Int(-1).tag(sync=True)
    frame = traitlets.Int(0).tag(sync=True)
    page = traitlets.Dict().tag(sync=True)
    content = traitlets.Bytes().tag(sync=True)

    def __init__(
        self, source: Trace | Recording, method: str | Method | None = None, *, layer: int | None = None,
        head: int | None = None, step: int | None = None, token: int | None = None, frame: int = 0,
        span: Named | None = None, queries: int | None = None, budget: int | float | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        given = {name: value for name, value in {"queries": queries, "budget": budget}.items() if value is not None}
        self.mechanism = mechanism = _mechanism(source, method, fields | given)
        self._scene = lru_cache(CACHED)(mechanism.scene)
        self._map = lru_cache(CACHED)(self._make_map)
        prompt, layers = mechanism.prompt, mechanism.layers
        positions = head_maps.span_positions("MechanismStepper", span, source.tokens[:prompt])
        maps = _head_maps(mechanism, positions)
        if positions:
            first = head_maps.strongest(maps[0], layer)
            layer, head = first[0] if layer is None else layer, first[1] if head is None else head
            token = positions[0] if token is None else token
        layer = layers[len(layers) // 2] if layer is None else layer
        head, step = 0 if head is None else head, mechanism.queries - 1 if step is None else step
        scene, token = self._scene(layer, head, step, token)
        self._followed = token  # is on the maps of keys, which show only some of a long prompt's
        page = self._described(scene, maps, positions)
        super().__init__(
            layer=layer, head=head, step=step, token=token, frame=content.between(
                "frame of a MechanismStepper", frame, 0, len(scene.frames) - 1
            ), page=page, content=self._pack(layer, head, step, token),
        )  # fmt: skip

    @property
    def scene(self) -> Scene:
        """The scene now shown; its frames hold all numbers."""
        return self._scene(self.layer, self.head, self.step, self.token)[0]

    def snapshot(self) -> Snapshot:
        """The frame now shown, in words."""
        shown = self.scene.frames[self.frame]
        head = f"{self.page['head_name']} {self.head}"
        place = f"layer {self.layer} · {head} · step {self.step} · frame {self.frame + 1} of {len(self.scene.frames)}"
        return Snapshot(self.page["title"], place, [(shown.chapter, shown.words)])

    def to_html(
        self, path: str | os.PathLike[str] | None = None, *, heads: Sequence[int] | None = None,
        steps: Sequence[int] | None = None,
    ) -> str:  # fmt: skip
        """A self-contained HTML page that plays the scene without a kernel; also written to `path`, atomically.

        It holds the layer, head and step that are shown, and, if they are given, each of the `heads` at each of the
        `steps`. A token that is picked in it is followed, but scenes stay those of the token now followed.
        """
        return self_contained(self.page["title"], [self.embedded(heads, steps)], path)

    def embedded(self, heads: Sequence[int] | None = None, steps: Sequence[int] | None = None) -> Embedded:
        """The widget as it is in the page of `to_html`."""
        held_heads, held_steps = (
            content.held(f"MechanismStepper.to_html: {name}s", values, partial(self._check_place, name))
            for name, values in (("head", heads or [self.head]), ("step", steps or [self.step]))
        )
        places = {(head, step) for head in held_heads for step in held_steps} | {(self.head, self.step)}
        answers = []
        for head, step in sorted(places):
            packed = blob(self._pack(self.layer, head, step, self.token), f"scene/{self.layer}/{head}/{step}")
            answers.append(({"head": head, "step": step}, {"content": packed}))
        page = self.page | {
            "layers": [self.layer], "heads": sorted({head for head, _ in places}),
            "steps": sorted({step for _, step in places}),
            "head_maps": self.page["head_maps"] if len(places) > 1 else [],
        }  # fmt: skip
        state = {"layer": self.layer, "head": self.head, "step": self.step, "token": self.token, "frame": self.frame}
        return Embedded("mechanism", state | {"page": page}, answers)

    def _described(self, scene: Scene, maps: list[Any], span: Sequence[int]) -> dict[str, Any]:
        mechanism = self.mechanism
        described = mechanism_content.described(mechanism)
        return described | {
            "prompt_length": mechanism.prompt, "layers": mechanism.layers,
            "heads": list(range(mechanism.heads)), "steps": list(range(mechanism.queries)),
            "head_name": "query head" if mechanism.each else "KV head", "unions": [], "per_kv_head": 1,
            "head_maps": maps, "span": list(span),
            "notes": [scene.about, *described["notes"], *head_maps.notes(maps)],
        }  # fmt: skip

    def _make_map(self, layer: int, kv_head: int) -> dict[str, Any]:
        assert not isinstance(self.mechanism, RecordedScenes)  # whose scenes have no map
        return mechanism_content.key_map(self.mechanism.trace, layer, kv_head, self.mechanism.prompt, self._followed)

    def _pack(self, layer: int, head: int, step: int, token: int) -> bytes:
        scene, _ = self._scene(layer, head, step, token)
        places = mechanism_content.NO_MAP
        if scene.uses_map and not isinstance(self.mechanism, RecordedScenes):
            places = self._map(layer, self.mechanism.kv_head(head))
        where = {"layer": layer, "head": head, "step": step, "token": token}
        return mechanism_content.pack(scene, places, where)

    def _check_place(self, name: str, value: int) -> int:
        known = self.page[f"{name}s"]
        return content.between(f"{name} of a MechanismStepper", value, known[0], known[-1])

    @traitlets.validate("layer", "head", "step", "token", "frame")
    def _check(self, proposal: Any) -> Any:
        name, value = proposal["trait"].name, proposal["value"]
        if name == "token":
            return content.between("token of a MechanismStepper", value, 0, self.mechanism.prompt - 1)
        if name == "frame":
            return content.between("frame of a MechanismStepper", value, 0, len(self.scene.frames) - 1)
        if name == "layer" and value not in self.page["layers"]:
            raise InvalidInputError("layer of a MechanismStepper", value, f"one of {self.page['layers']}")
        return value if name == "layer" else self._check_place(name, value)

    @traitlets.observe("layer", "head", "step", "token")
    def _play_again(self, change: Any) -> None:
        self.frame = min(self.frame, len(self.scene.frames) - 1)
        self.content = self._pack(self.layer, self.head, self.step, self.token)


def _mechanism(source: Any, method: str | Method | None, given: dict[str, Any]) -> Mechanism | RecordedScenes:
    """Where the scenes come from: the method at work on a trace, or what was recorded."""
    if isinstance(source, Recording):
        refused = [*(["method"] if method is not None else []), *given]
        if refused:
            wanted = f"none: the recording is one of {source.method}, and holds its steps; a trace takes them"
            raise InvalidInputError("MechanismStepper(recording)", ", ".join(refused), wanted)
        return RecordedScenes(source)
    if not isinstance(source, Trace):
        wanted = "a kvviz.Trace, such as kvviz.capture(lm, prompt), or a kvviz.Recording"
        raise InvalidInputError("MechanismStepper", type(source).__name__, wanted)
    from ..generation.explore import Mechanism

    method = "clusterkv" if method is None else method
    if isinstance(method, str):
        given = {"budget": 256} | given
    return Mechanism(source, method, **given)


def _head_maps(mechanism: Mechanism | RecordedScenes, span: Sequence[int]) -> list[Any]:
    """The maps of layers × heads."""
    if isinstance(mechanism, RecordedScenes):
        return head_maps.of_recording(mechanism.recording, span)
    best = min(mechanism.method.budget_tokens(mechanism.prompt), mechanism.prompt)
    return head_maps.of_trace(mechanism.trace, mechanism.layers, mechanism.heads, span, best)
