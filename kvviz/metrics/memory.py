"""How many bytes keys and values take."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidInputError


def kv_bytes(
    n_layers: int,
    n_kv_heads: int,
    head_dim: int,
    length: ArrayLike,
    batch: ArrayLike = 1,
    bytes_per_value: int = 2,
) -> NDArray[np.int64]:
    """Bytes of all keys and values of `batch` sequences of `length` tokens, int64, of the shape both broadcast to.

    2 · n_layers · n_kv_heads · head_dim · length · batch · bytes_per_value: a key and a value for every layer,
    key/value head and token. 2 bytes a value are float16 and bfloat16, 4 float32. Nothing that a method adds is
    counted.

    Source: the arithmetic of PQCache (arXiv 2407.12820), figure 1.

    Raises InvalidInputError for a count below 1 (a length and a batch may be 0), one that is no whole number, or more
    bytes than int64 counts.

    >>> int(kv_bytes(32, 8, 128, length=131_072))
    17179869184
    """
    counts = {"n_layers": n_layers, "n_kv_heads": n_kv_heads, "head_dim": head_dim, "bytes_per_value": bytes_per_value}
    sizes = {name: _whole(name, count, 1) for name, count in counts.items()}
    lengths, batches = _whole("length", length, 0), _whole("batch", batch, 0)
    a_token = 2 * int(np.prod([float(size) for size in sizes.values()]))
    if a_token * float(lengths.max(initial=0)) * float(batches.max(initial=0)) >= 2.0**63:
        raise InvalidInputError("kv_bytes", "more bytes than an int64 counts", "smaller numbers")
    try:
        return np.asarray(a_token * lengths * batches, np.int64)
    except ValueError as error:
        shapes = f"length {lengths.shape}, batch {batches.shape}"
        raise InvalidInputError("kv_bytes: shapes", shapes, "shapes that broadcast") from error


def _whole(name: str, given: ArrayLike, least: int) -> NDArray[Any]:
    try:
        numbers = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"kv_bytes: {name}", repr(given), f"whole numbers >= {least}") from error
    if not (np.isfinite(numbers) & (numbers >= least) & (numbers == np.floor(numbers))).all():
        raise InvalidInputError(f"kv_bytes: {name}", given, f"whole numbers >= {least}")
    return numbers.astype(np.int64)
