"""HeadGates: how much each KV head of a model needs tokens beyond sinks and recent window, and where that was found."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import IncompatibleFileError, InvalidInputError
from .cards import card
from .storage import check_metadata, replacing

KIND, VERSION = "kvviz head gates", 1
WANTED = "one list of numbers from 0 to 1 per layer, all of the same length"

Gates = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class HeadGates:
    """The gates of a model's KV heads, and their provenance; made by `kvviz.find_retrieval_heads`.

    `gates[layer][head]` is from 0 to 1: the larger, the more the head's output changes what the model says if the head
    attends to sinks and recent window only. `model_hash` identifies the weights, `settings` are the arguments of the
    calibration with its last losses, `versions` those of the packages.
    """

    gates: Gates
    model: str
    model_hash: str
    seed: int
    settings: Mapping[str, Any]
    versions: Mapping[str, str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "gates", checked_gates("HeadGates", self.gates))

    def _repr_html_(self) -> str:
        heads = f"{len(self.gates)} layers of {len(self.gates[0])} KV heads"
        return card(type(self).__name__, f"{heads} of {self.model}", {"seed": str(self.seed)}, [
            ('kvviz.methods.create("duo_attention", gates=head_gates.gates)', "the method with these gates"),
            ('head_gates.save("gates.json")', "keep them"),
        ])  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write them to a JSON file, completely or not at all, and return its path.

        Raises InvalidInputError for settings that JSON cannot hold, and OSError if the file cannot be written.
        """
        try:
            text = json.dumps({"kind": KIND, "version": VERSION, **asdict(self)}, indent=1)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"write {path}: settings", error, "texts, numbers, lists, objects of them"
            ) from error
        with replacing(path) as partial:
            partial.write_text(text + "\n", encoding="utf-8")
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HeadGates:
        """The gates of a file from `save`.

        Raises IncompatibleFileError for a file that is damaged, or of another kind or version, and FileNotFoundError if
        it does not exist.
        """
        operation = f"read {KIND} from {path}"
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FileNotFoundError(f"{operation}: no such file") from None
        except (ValueError, RecursionError) as error:
            raise IncompatibleFileError(operation, f"a damaged file ({error})", "complete JSON") from error
        if not isinstance(content, dict) or content.pop("kind", None) != KIND:
            raise IncompatibleFileError(operation, "a file of another kind", f"kind {KIND!r}")
        version = content.pop("version", None)
        if version != VERSION:
            raise IncompatibleFileError(operation, f"format version {version}", f"version {VERSION}")
        gates = content.pop("gates", None)
        check_metadata(content, operation, {
            "model": "text", "model_hash": "text", "seed": "integer", "settings": "object", "versions": "object",
        })  # fmt: skip
        try:
            return cls(gates, **content)
        except InvalidInputError as error:
            raise IncompatibleFileError(operation, f"gates {error.got}", error.wanted) from error


def checked_gates(operation: str, gates: object) -> Gates:
    """Gates as tuples of floats. Raises InvalidInputError unless they are numbers from 0 to 1, as many per layer."""
    layers = list(gates) if isinstance(gates, list | tuple) else []
    if not layers or not all(isinstance(layer, list | tuple) and len(layer) for layer in layers):
        raise InvalidInputError(operation, f"{type(gates).__name__} {str(gates)[:60]}", WANTED)
    if len({len(layer) for layer in layers}) > 1:
        raise InvalidInputError(operation, "layers of different lengths", WANTED)
    for number, layer in enumerate(layers):
        for head, gate in enumerate(layer):
            if isinstance(gate, bool) or not isinstance(gate, int | float) or not 0 <= gate <= 1:
                raise InvalidInputError(operation, f"{gate!r} in layer {number}, head {head}", WANTED)
    return tuple(tuple(float(gate) for gate in layer) for layer in layers)
