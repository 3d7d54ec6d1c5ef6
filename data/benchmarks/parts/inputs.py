"""Inputs of the parts: text, traces of a real model, the methods with their labels, and built states."""

from __future__ import annotations

import importlib.util
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
MODEL = "smollm2-135m"
PROMPT_TOKENS = 8192  # all that the model has positions for

# The order of every table: exact methods, the four systems, then the rest by kind.
SYSTEMS = ("clusterkv", "centroidkv", "pqcache", "ctkvr")
KINDS = ("exact", "retrieval", "merging", "eviction", "prefill", "quantised")
# Configurations in addition to the presets; ClusterKV with as many clusters as its published code.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {"clusterkv, 400 clusters": ("clusterkv", {"n_clusters": 400})}


@dataclass(frozen=True)
class Configuration:
    """A row of a table: a method's name and the fields that differ from its defaults."""

    label: str
    name: str
    fields: dict[str, Any]

    def create(self, **fields: Any) -> Any:
        """The method, with these fields changed in addition."""
        import kvviz

        return kvviz.methods.create(self.name, **{**self.fields, **fields})

    @property
    def seeded(self) -> bool:
        """Whether the method is random, with a field `seed`."""
        import kvviz

        return "seed" in kvviz.methods.get(self.name).__dataclass_fields__


def configurations(
    presets_of: Container[str] | None = None, methods: Container[str] | None = None
) -> list[Configuration]:
    """All methods, or those in `methods`, with the preset "paper", in the order of the tables.

    Each method in `presets_of` (by default all) is followed by its other presets and variants.
    """
    import kvviz

    rows = []
    for name in sorted(kvviz.methods.names(), key=_place):
        if methods is not None and name not in methods:
            continue
        rows.append(Configuration(name, name, {}))
        if presets_of is None or name in presets_of:
            others = [preset for preset in kvviz.methods.get(name).presets if preset != "paper"]
            rows += [Configuration(f"{name}, {preset}", name, {"preset": preset}) for preset in others]
            variants = [(label, fields) for label, (method, fields) in VARIANTS.items() if method == name]
            rows += [Configuration(label, name, dict(fields)) for label, fields in variants]
    return rows


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A part's old results with newly measured rows in place of those with the same label and budget."""
    fresh = {(row["label"], row.get("budget")): row for row in new["rows"]}
    rows = [fresh.pop((row["label"], row.get("budget")), row) for row in old["rows"]]
    return old | {"rows": [*rows, *fresh.values()], "left_out": old["left_out"] | new["left_out"]}


def _place(name: str) -> tuple[int, int, str]:
    import kvviz

    system = SYSTEMS.index(name) if name in SYSTEMS else len(SYSTEMS)
    kind = KINDS.index(kvviz.methods.get(name).kind)
    return (-1 if kind == 0 else system, kind, name)


def prose() -> str:
    """Python's reference manual, English prose, as in the recorded runs."""
    from notebooks.runs.recipes import manual

    return manual()


@cache
def model(device: str = "cpu") -> Any:
    """The model used by all parts."""
    import kvviz

    return kvviz.load(MODEL, device=device)


def real_trace(tokens: int, layers: tuple[int, ...], start: int = 0) -> Any:
    """A trace of the model over `tokens` tokens of the prose, starting at token `start`."""
    import kvviz

    ids = model().encode(prose())
    return kvviz.capture(model(), ids[:, start : start + tokens], layers=layers)


@dataclass
class Layer:
    """One layer of a trace as tensors: queries [1, Q, L, D], keys and values [1, H, L, D]."""

    context: Any
    queries: Any
    keys: Any
    values: Any

    @classmethod
    def of(cls, trace: Any, layer: int) -> Layer:
        """One layer of a trace, in float32."""
        import torch

        from kvviz.generation.replaying import trace_context

        context = replace(trace_context(trace, layer), details=False)
        arrays = (trace.queries, trace.keys, trace.values)
        return cls(context, *(torch.from_numpy(array[layer].astype("float32"))[None] for array in arrays))

    def first(self, length: int) -> Layer:
        """The layer with only its first `length` tokens."""
        tensors = (tensor[:, :, :length].contiguous() for tensor in (self.queries, self.keys, self.values))
        return Layer(self.context, *tensors)

    def stored(self) -> Layer:
        """The layer with its tokens in a store, so that a method can look keys up without keeping copies."""
        from kvviz.offload import DeviceStore
        from kvviz.offload.token_cache import TokenCache

        store = DeviceStore()
        store.append(self.keys, self.values)
        return Layer(replace(self.context, cached=TokenCache(store)), self.queries, store.keys, store.values)

    def build(self, method: Any) -> Any:
        """The method's state over all tokens."""
        queries = self.queries if method.needs_queries else self.queries[:, :, :0]
        return method.build(self.context, queries, self.keys, self.values)

    def steps(self, method: Any, count: int) -> Iterator[tuple[Any, Any]]:
        """State and queries [1, Q, D] at each of the last `count` tokens, which are fed; the rest is the prompt.

        Nothing is dropped from the store, so that every method can be used.
        """
        from kvviz.offload import DeviceStore
        from kvviz.offload.token_cache import TokenCache

        prompt = self.first(self.keys.shape[2] - count)
        store = DeviceStore()
        store.append(prompt.keys, prompt.values)
        context = replace(self.context, cached=TokenCache(store))
        state = Layer(context, prompt.queries, store.keys, store.values).build(method)
        for step in range(prompt.keys.shape[2], self.keys.shape[2]):
            queries, keys, values = (tensor[:, :, step : step + 1] for tensor in (self.queries, self.keys, self.values))
            store.append(keys, values)
            state = method.extend(state, queries, keys, values)
            yield state, queries[:, :, 0]


def script(path: str) -> Any:
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
