"""Powers of ten in print."""

from __future__ import annotations


def power_of_ten(exponent: int) -> str:
    """A power of ten in print: as a decimal number from 0.0001 to 10,000, with an exponent beyond.

    >>> power_of_ten(-2), power_of_ten(-6)
    ('0.01', '10⁻⁶')
    """
    return f"{10.0**exponent:,g}" if -5 < exponent < 5 else "10" + raised(exponent)


def raised(number: int) -> str:
    """A whole number as an exponent in print.

    >>> raised(-12)
    '⁻¹²'
    """
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
