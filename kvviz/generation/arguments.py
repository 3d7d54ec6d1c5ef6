"""Unknown keyword arguments: named in the error, with what would work."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from ..cache.selective_layer import ASSISTED_DECODING, BEAM_SEARCH
from ..errors import InvalidInputError, UnknownNameError
from ..methods import get
from ..methods.base import Method

REFUSED = {  # arguments of transformers' generate for what a method's state cannot do
    **dict.fromkeys(("num_beams", "num_beam_groups", "early_stopping", "length_penalty"), BEAM_SEARCH),
    **dict.fromkeys(("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit"), ASSISTED_DECODING),
}
INSTEAD = {  # and for what has another name here
    "do_sample": "temperature: above 0 it samples, at 0 it does not",
    "generation_config": "temperature, top_p, seed, stop and max_new_tokens",
    "max_length": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "num_return_sequences": "a list that holds the prompt several times",
    "past_key_values": "model.generate with a kvviz.SelectiveCache",
    "stop_strings": "stop",
    "streamer": "stream, which takes a streamer too",
    "top_k": "top_p",
}


@contextmanager
def explained(function: Callable[..., Any], values: Mapping[str, Any]) -> Iterator[None]:
    """Turn the error of a method that has no such field into one that knows the arguments of `function` too.

    Raises InvalidInputError for an argument of transformers' `generate` that is refused or has another name here.
    """
    try:
        yield
    except UnknownNameError as error:
        name = error.name
        if name not in values:
            raise
        operation = f"{function.__name__}: argument {name}"
        if name in REFUSED:
            raise InvalidInputError(operation, *REFUSED[name]) from None
        if name in INSTEAD:
            raise InvalidInputError(operation, "a name of transformers' generate", INSTEAD[name]) from None
        known = {*error.known, "preset", *inspect.signature(function).parameters} - {"values"}
        raise UnknownNameError(f"{function.__name__} with {error.operation}", name, known) from None


def with_seed(method: str | Method, values: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    """The values with the seed for a method by name that has a field `seed`."""
    seeded = seed is not None and isinstance(method, str) and "seed" in {field.name for field in fields(get(method))}
    return {**values, "seed": seed} if seeded else dict(values)
