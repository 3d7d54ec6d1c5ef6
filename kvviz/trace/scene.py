"""Scene: an algorithm on real data, frame by frame, as plain data that `kvviz.widgets.MechanismStepper` plays.

A scene shows *objects*, such as "token:17" or "cluster:3". An object of one frame that is also in the next one moves to
its new place there, be it from a map to a bar; so a frame says what is where, and never how things move.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError

MOST_WORDS = 40  # in the text of a frame: as much as is read while one looks at a picture
Numbers = Sequence[int] | NDArray[Any]
Values = Sequence[float] | NDArray[Any]
Flags = Sequence[bool] | NDArray[Any]
COLUMNS = ("groups", "labels", "strength", "x", "y", "at", "values", "sizes")  # fields with one entry per object
_REFERENCE = re.compile(r"\[\[(.*?)\|(.*?)\]\]", re.DOTALL)
_KIND = re.compile(r"[a-z]+\d*")


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Objects of one kind, in order: the object `kind:number` for each of the `numbers`.

    All other fields are None or have one entry per object. `groups` gives the hue, -1 for none, and `strength` in
    [0, 1] how strong it is drawn, 1 if None. `labels` are drawn if there is room, and shown by the tip.
    """

    kind: str
    numbers: Numbers
    groups: Numbers | None = None
    labels: Sequence[str] | None = None
    strength: Values | None = None


@dataclass(frozen=True, kw_only=True)
class Dots(Marks):
    """Objects on a Plane, at `x` and `y`.

    If these are None, the plane is the map of the prompt's keys: a token is at its key, if the map has it, and any
    other object is at the key of the token `at`, or, without `at`, in the middle of the tokens of its group.
    """

    x: Values | None = None
    y: Values | None = None
    at: Numbers | None = None
    shape: Literal["dot", "ring", "star"] = "dot"


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Dots in two dimensions, and boxes [left, bottom, right, top] with a label, in the same coordinates."""

    title: str
    dots: Sequence[Dots]
    boxes: Sequence[tuple[Sequence[float], str]] = ()
    axes: tuple[str, str] = ("", "")
    type: Literal["plane"] = field(default="plane", init=False)


@dataclass(frozen=True, kw_only=True)
class Bars(Marks):
    """One bar per object, from the top down, as long as its value. The cut is drawn after `cut` bars.

    With `log`, all values are positive, and a bar is as long as the logarithm of its value is above that of the least.
    """

    title: str
    values: Values
    cut: float | None = None
    log: bool = False
    type: Literal["bars"] = field(default="bars", init=False)


@dataclass(frozen=True, kw_only=True)
class Ruler(Marks):
    """The objects end to end, each as long as its size in tokens, with the running total; the cut is at `cut`."""

    title: str
    sizes: Numbers
    cut: int | None = None
    type: Literal["ruler"] = field(default="ruler", init=False)


@dataclass(frozen=True, kw_only=True)
class Row(Marks):
    """Objects side by side, with a name before them. `values` tint them, the largest of all rows the strongest."""

    name: str = ""
    values: Values | None = None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of objects. The same object may be in several rows. Rows that are `linked` leave room for links."""

    title: str
    rows: Sequence[Row]
    linked: bool = False
    type: Literal["rows"] = field(default="rows", init=False)


Panel = Plane | Bars | Ruler | Rows


@dataclass(frozen=True, kw_only=True)
class Link:
    """A line between two objects of a frame, such as "token:17" and "cluster:3"; dashed if it is `weak`."""

    start: str
    end: str
    label: str = ""
    strength: float = 1.0
    weak: bool = False


@dataclass(frozen=True, kw_only=True)
class Lit:
    """The tokens that are tinted in the text: their positions, ascending, their groups, and attention weights.

    `attended` says which of them the step attends to, and `kept` which of these without a choice; without `attended`
    they are merely pointed out. `merged` says which of the others stand in a centroid that the step attends to instead.
    `oracle` are the positions that the oracle attends to.
    """

    positions: Numbers
    groups: Numbers
    weights: Values | None = None
    attended: Flags | None = None
    kept: Flags | None = None
    merged: Flags | None = None
    oracle: Numbers = ()


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One picture of a chapter. `text` is read before the objects move, `result` after; at most 40 words together.

    "[[the words|token:17,cluster:3]]" in them refers to objects, which are highlighted while the words are; `refer`
    writes it. `focus` are objects that are drawn stronger.
    """

    chapter: str
    text: str
    result: str = ""
    panels: Sequence[Panel] = ()
    links: Sequence[Link] = ()
    lit: Lit | None = None
    focus: Sequence[str] = ()

    @property
    def words(self) -> str:
        """The text and result as they are read, without references."""
        return _REFERENCE.sub(r"\1", f"{self.text} {self.result}".strip())


@dataclass(frozen=True, kw_only=True)
class Scene:
    """An algorithm at work on one decode step of one head: frames in order, each in one of the `chapters`.

    `members` says, by kind, which object of that kind holds each token of the prompt, -1 for none: a token that is
    followed lights up there where a frame does not show the token itself. `about` says what the scene leaves out.
    """

    title: str
    frames: Sequence[Frame]
    members: Mapping[str, Numbers] = field(default_factory=dict)
    about: str = ""

    def __post_init__(self) -> None:
        if not self.frames:
            raise InvalidInputError("Scene: frames", "none", "at least one Frame")
        for number, frame in enumerate(self.frames):
            _check(number, frame)

    @property
    def chapters(self) -> list[str]:
        """The chapters in the order of their first frames."""
        return list(dict.fromkeys(frame.chapter for frame in self.frames))

    @property
    def uses_map(self) -> bool:
        """Whether a frame has the map of the prompt's keys."""
        planes = [panel for frame in self.frames for panel in frame.panels if isinstance(panel, Plane)]
        return any(dots.x is None for plane in planes for dots in plane.dots)

    def described(self) -> dict[str, Any]:
        """The scene as plain data, which JSON can store; numbers have six digits."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain | {"chapters": self.chapters}


def refer(words: str, *objects: str) -> str:
    """A reference of a frame's text to objects: `refer("the best one", "cluster:3")`."""
    return f"[[{plain_words(words)}|{','.join(objects)}]]"


def plain_words(text: str) -> str:
    """A text, such as that of a token, that no reference can be read from."""
    return text.replace("[[", "[ [").replace("]]", "] ]").replace("|", "\u2223")


def _check(number: int, frame: Frame) -> None:
    what = f"Scene: frame {number} ({frame.chapter!r})"
    if (count := len(frame.words.split())) > MOST_WORDS:
        raise InvalidInputError(what, f"{count} words", f"at most {MOST_WORDS}")
    for panel in frame.panels:
        parts = panel.dots if isinstance(panel, Plane) else panel.rows if isinstance(panel, Rows) else (panel,)
        for marks in parts:
            _check_marks(what, marks)


def _check_marks(what: str, marks: Marks) -> None:
    if not _KIND.fullmatch(marks.kind):
        raise InvalidInputError(f"{what}: kind", repr(marks.kind), "lower-case letters, then digits if any")
    for name, values in vars(marks).items():
        if name in COLUMNS and values is not None and len(values) != len(marks.numbers):
            got = f"{len(values)} for {len(marks.numbers)} numbers"
            raise InvalidInputError(f"{what}: {name} of {marks.kind}", got, "one per number")


def _plain(value: Any) -> Any:
    """The value with NumPy's numbers and arrays as Python's, floats with six digits, and NaN as None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.integer | np.bool_):
        return value.item()
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value
