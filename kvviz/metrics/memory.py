"""Memory of the KV cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidInputError

_PREFIXES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def kv_bytes(
    n_layers: int,
    n_kv_heads: int,
    head_dim: int,
    length: ArrayLike,
    batch: ArrayLike = 1,
    bytes_per_value: int = 2,
) -> NDArray[np.int64]:
    """Bytes of the KV cache for `batch` sequences of `length` tokens, int64, broadcast over `length` and `batch`.

    2 · n_layers · n_kv_heads · head_dim · length · batch · bytes_per_value: one key and one value per layer, KV head
    and token. `bytes_per_value` is 2 for float16 and bfloat16, 4 for float32. A method's metadata is not counted.

    Source: the arithmetic of PQCache (arXiv 2407.12820), figure 1.

    Raises InvalidInputError for a count below 1 (length and batch may be 0), a count that is not a whole number, or
    more bytes than fit into int64.

    >>> int(kv_bytes(32, 8, 128, length=131_072))
    17179869184
    """
    counts = {"n_layers": n_layers, "n_kv_heads": n_kv_heads, "head_dim": head_dim, "bytes_per_value": bytes_per_value}
    sizes = {name: _whole(name, count, 1) for name, count in counts.items()}
    lengths, batches = _whole("length", length, 0), _whole("batch", batch, 0)
    per_token = 2 * int(np.prod([float(size) for size in sizes.values()]))
    if per_token * float(lengths.max(initial=0)) * float(batches.max(initial=0)) >= 2.0**63:
        raise InvalidInputError("kv_bytes", "more bytes than fit into int64", "smaller numbers")
    try:
        return np.asarray(per_token * lengths * batches, np.int64)
    except ValueError as error:
        shapes = f"length {lengths.shape}, batch {batches.shape}"
        raise InvalidInputError("kv_bytes: shapes", shapes, "shapes that broadcast") from error


def compensated_budget(budget: float, extra_communication: float, prompt_length: int | None = None) -> int | float:
    """The budget of a method that drops tokens at the memory of a retrieval method's budget and extra communication.

    The retrieval method attends to `budget` tokens, an int or a share of the prompt, and a step fetches metadata of
    `extra_communication` times the bytes of all keys of the prompt (`PQCache.extra_communication`). A token's key and
    value take twice the bytes of its key: so many bytes hold `extra_communication` · L / 2 further tokens. The result
    is a share for a share, and for a number of tokens, which needs the `prompt_length` L, a number, rounded down.

    Source: PQCache (arXiv 2407.12820), sections 4.1.3 and 4.2, tables 2 to 4: baselines with "(C)", for compensation.

    Raises InvalidInputError for a budget that no method accepts, a share of keys outside 0 to 1, tokens without a
    prompt length of at least 1, and a share of 1 or more.

    >>> compensated_budget(1024, 1 / 64, prompt_length=32_768), compensated_budget(0.2, 1 / 128)
    (1280, 0.20390625)
    """
    operation = "compensated_budget"
    if not 0 <= extra_communication <= 1:
        raise InvalidInputError(f"{operation}: extra_communication", extra_communication, "a share of 0 to 1")
    if isinstance(budget, int) and budget >= 1:
        if prompt_length is None or prompt_length < 1:
            raise InvalidInputError(f"{operation}: prompt_length", prompt_length, "at least 1, for a budget in tokens")
        return budget + math.floor(extra_communication * prompt_length / 2)
    share = float(budget) + float(extra_communication) / 2
    if budget <= 0 or share >= 1:
        raise InvalidInputError(f"{operation}: budget", budget, "tokens, an int >= 1, or a share that stays below 1")
    return share


def _whole(name: str, count: ArrayLike, least: int) -> NDArray[Any]:
    try:
        numbers = np.asarray(count, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"kv_bytes: {name}", repr(count), f"whole numbers >= {least}") from error
    if not (np.isfinite(numbers) & (numbers >= least) & (numbers == np.floor(numbers))).all():
        raise InvalidInputError(f"kv_bytes: {name}", count, f"whole numbers >= {least}")
    return numbers.astype(np.int64)


def bytes_text(size: float) -> str:
    """A number of bytes as text, in the largest binary unit that is not larger.

    >>> bytes_text(17179869184)
    '16 GiB'
    """
    unit, symbol = next(((unit, symbol) for unit, symbol in _PREFIXES if size >= unit), _PREFIXES[-1])
    return f"{size / unit:.4g} {symbol}"
