"""MissInspector: why a method missed: the evidence, the heads that matter, and a token's way through one choice."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import traitlets

from ..errors import InvalidInputError
from ..trace.diagnosis import Diagnosis
from . import content, misses_content, snapshot_content
from .decode_stepper import DecodeStepper
from .live import LiveWidget
from .method_comparer import MethodComparer
from .page import Embedded, blob, self_contained
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..models import LanguageModel


class MissInspector(LiveWidget):
    """A widget that shows why a method missed what the answer needs.

    The text has the evidence, tinted by what full attention loses without each token; the map of layers × KV heads
    shows what comes back when one head is restored, and the framed heads are those whose restoration brings the answer
    back. For a picked token and head, below is the token's way through the method's stages at each step, with its
    numbers; the last line has the answers. Arrow keys change the step, and move over the map when it has the focus.

    "Restore" lets the picked head attend to the oracle's tokens. Under "Changes", "pin" and "drop" are for the picked
    token, in every head, and all changes can be taken back. With a language model `lm`, the diagnosed one, every change
    decodes the answer again, and changes combine; the prompt is prefilled at the first one. Without it, and in a page
    without a kernel, the widget shows what the diagnosis knows of a single change.

    `layer`, `head`, `position` (of an evidence token), `step` and `changes` are traits: set them from Python, or
    observe them. `changes` is a list of {"kind": "restore", "layer": …, "head": …} and {"kind": "pin" or "drop",
    "position": …}; `result` has the log-probability, whether it is the answer, and the text that was written.

    Raises InvalidInputError for a diagnosis without losses, another model, or a value out of range.
    """

    _kvviz_view = traitlets.Unicode("misses").tag(sync=True)
    layer = traitlets.Int(0).tag(sync=True)
    head = traitlets.Int(0).tag(sync=True)
    position = traitlets.Int(0).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    changes: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    result = traitlets.Dict().tag(sync=True)
    page = traitlets.Dict().tag(sync=True)
    losses = traitlets.Bytes().tag(sync=True)

    def __init__(
        self,
        diagnosis: Diagnosis,
        lm: LanguageModel | None = None,
        *,
        layer: int | None = None,
        head: int | None = None,
        position: int | None = None,
        step: int | None = None,
    ) -> None:
        self.diagnosis = misses_content.check(diagnosis)
        self._retry = None
        if lm is not None:
            from ..generation.explore import retry

            self._retry = retry(lm, diagnosis)
        given = {"layer": layer, "head": head, "position": position, "step": step}
        place = misses_content.opening(diagnosis) | {
            name: self._checked(name, value) for name, value in given.items() if value is not None
        }
        super().__init__(
            **place, page=misses_content.describe(diagnosis, live=lm is not None), losses=misses_content.pack(diagnosis)
        )

    def follow(self, widget: DecodeStepper | MethodComparer) -> None:
        """Follow a stepper or comparer of the same prompt, from a missed token to why: its step, layer, head and token.

        What the diagnosis does not have (a dense layer, a token that is no evidence) is not followed. In a page without
        a kernel, `to_html(beside=widget)` does the same. Raises InvalidInputError for a widget of another prompt.
        """
        how = self._following("MissInspector.follow", widget)

        def moved(change: Any) -> None:
            name, value = change["name"], change["new"]
            value = {"step": value + how["skipped"], "head": value // how["group"]}.get(name, value)
            with contextlib.suppress(InvalidInputError):
                self.set_trait("position" if name == "token" else name, value)

        widget.observe(moved, ["step", "layer", "head", "token"])
        for name in ("step", "layer", "head", "token"):
            moved({"name": name, "new": getattr(widget, name)})

    def snapshot(self) -> Snapshot:
        """The evidence, the heads and what is picked now, as a picture and words."""
        place = {name: getattr(self, name) for name in ("layer", "head", "position", "step")}
        return snapshot_content.misses(self.diagnosis, self.page, place)

    def to_html(
        self, path: str | os.PathLike[str] | None = None, *, beside: DecodeStepper | MethodComparer | None = None
    ) -> str:  # fmt: skip
        """A self-contained HTML page that opens at what is picked now; also written to `path`, atomically.

        It needs no kernel. It has the whole diagnosis, so that its size does not depend on what is picked. With
        `beside`, the page also has that stepper or comparer, above, as its own `to_html` embeds it, and the inspector
        follows it: from a missed token to why. Raises InvalidInputError for a widget of another prompt.
        """
        state = {
            "page": misses_content.describe(self.diagnosis, live=False), "layer": self.layer, "head": self.head,
            "position": self.position, "step": self.step, "changes": [], "result": {},
            "losses": blob(misses_content.pack(self.diagnosis), "losses"),
        }  # fmt: skip
        title, widgets = f"Why was it missed? {self.diagnosis.description}", [Embedded("misses", state)]
        if beside is None:
            return self_contained(title, widgets, path)
        how = self._following("MissInspector.to_html", beside)
        return self_contained(title, [beside.embedded(), *widgets], path, follow=how)

    def _following(self, operation: str, widget: DecodeStepper | MethodComparer) -> dict[str, int]:
        """How to follow a widget: the first steps that it leaves out, and how many of its heads are one KV head."""
        prompt = self.diagnosis.tokens[: self.diagnosis.prompt_length]
        recording = widget.recording if isinstance(widget, DecodeStepper) else widget.common.recordings[0]
        if recording.tokens[: recording.prompt_length][: len(prompt)] != prompt:
            raise InvalidInputError(operation, "a widget of another prompt", "one of the diagnosed prompt")
        heads = content.rows(recording) if isinstance(widget, DecodeStepper) else widget.common.heads
        skipped = recording.prompt_length - len(prompt)
        return {"skipped": skipped, "group": heads // self.diagnosis.geometry.n_kv_heads}

    def _checked(self, name: str, value: Any) -> int:
        """The value if the diagnosis has it; raises InvalidInputError otherwise."""
        what = f"{name} of a MissInspector"
        if name == "head":
            return content.between(what, value, 0, self.diagnosis.geometry.n_kv_heads - 1)
        if name == "step":
            return content.between(what, value, 0, misses_content.shape(self.diagnosis)[0] - 1)
        known = self.diagnosis.layers if name == "layer" else self.diagnosis.evidence["position"].tolist()
        if value not in known:
            raise InvalidInputError(what, repr(value), f"one of {', '.join(map(str, known))}")
        return int(value)

    @traitlets.validate("layer", "head", "position", "step")
    def _check(self, proposal: Any) -> int:
        return self._checked(proposal["trait"].name, proposal["value"])

    @traitlets.validate("changes")
    def _check_changes(self, proposal: Any) -> list[dict[str, Any]]:
        for change in proposal["value"]:
            places = {"restore": ("layer", "head"), "pin": ("position",), "drop": ("position",)}.get(change.get("kind"))
            if places is None or set(change) != {"kind", *places}:
                wanted = "{'kind': 'restore', 'layer': …, 'head': …} or {'kind': 'pin' or 'drop', 'position': …}"
                raise InvalidInputError("changes of a MissInspector", repr(change), wanted)
            for place in places:
                self._checked(place, change[place])
        return list(proposal["value"])

    @traitlets.observe("changes")
    def _decode_again(self, change: Any) -> None:
        """Decode with the changes, if there is a model; a refusal becomes the result's `refusal`."""
        if self._retry is None:
            return
        try:
            self.result = {"changes": change["new"], **self._retry(change["new"])}
        except InvalidInputError as error:
            self.result = {"changes": change["new"], "refusal": str(error)}
