"""What a comparison holds equal: the tokens that a step attends to, or bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from ..errors import InvalidInputError, UnknownNameError
from ..metrics.byte_budgets import Budget, Bytes
from ..metrics.byte_budgets import bytes as in_bytes

Hold = Literal["tokens", "bytes"]  # what is held equal


def held_budgets(operation: str, budgets: Sequence[Budget | str], hold: Hold | None) -> list[Budget]:
    """The budgets in the unit that is held equal.

    With "bytes", a share such as 0.25 and a text such as "2 MiB" become `kvviz.bytes`. None infers it: bytes if all
    budgets are `kvviz.bytes`. Raises UnknownNameError for another `hold`, InvalidInputError for budgets of both kinds,
    and for a number of tokens where bytes are held.
    """
    if hold is not None and hold not in get_args(Hold):
        raise UnknownNameError(f"{operation}: hold", str(hold), get_args(Hold))
    if hold == "bytes":
        for budget in budgets:
            if isinstance(budget, int):
                wanted = 'a share such as 0.25, text such as "2 MiB", or kvviz.bytes(...), with hold="bytes"'
                raise InvalidInputError(f"{operation}: budgets", repr(budget), wanted)
        return [in_bytes(budget) if isinstance(budget, float | str) else budget for budget in budgets]
    for budget in budgets:
        if isinstance(budget, Bytes) and (hold == "tokens" or not all(isinstance(each, Bytes) for each in budgets)):
            wanted = 'tokens or shares of the prompt; or budgets in bytes only, with hold="bytes"'
            raise InvalidInputError(f"{operation}: budgets", repr(budget), wanted)
        if isinstance(budget, str):
            raise InvalidInputError(
                f"{operation}: budgets",
                repr(budget),
                'tokens, an int >= 1, or a share of the prompt in (0, 1); or hold="bytes"',
            )
    return [budget for budget in budgets if not isinstance(budget, str)]


def held_by(operation: str, budgets: Iterable[Budget | None]) -> Hold:
    """What these budgets hold equal; None is that of a method that ignores it. Raises InvalidInputError for both."""
    kinds = {isinstance(budget, Bytes) for budget in budgets if budget is not None}
    if len(kinds) > 1:
        raise InvalidInputError(f"{operation}: budgets", "some in bytes and some in tokens", "all in one of them")
    return "bytes" if kinds == {True} else "tokens"
