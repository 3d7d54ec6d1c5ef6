"""Powers of ten as text."""

from __future__ import annotations


def power_of_ten(exponent: int) -> str:
    """A power of ten as text: a decimal number from 0.0001 to 10,000, otherwise with an exponent.

    >>> power_of_ten(-2), power_of_ten(-6)
    ('0.01', '10⁻⁶')
    """
    return f"{10.0**exponent:,g}" if -5 < exponent < 5 else "10" + raised(exponent)


def raised(number: int) -> str:
    """An integer in superscript digits.

    >>> raised(-12)
    '⁻¹²'
    """
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
