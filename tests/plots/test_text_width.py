"""The widths of texts are those of the fonts, and lines are as long as they may be."""

from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.ft2font import FT2Font, LoadFlags

from kvviz.plots.labels import escape, wrap
from kvviz.plots.letter_widths import SANS, SERIF
from kvviz.plots.text_width import text_width
from tests.plots.drawn import DEJAVU

FONTS = {False: "DejaVuSans.ttf", True: "DejaVuSerif.ttf"}


def advances(name: str, text: str) -> list[float]:
    """Widths of letters in em, as FreeType reads them from the font."""
    font = FT2Font(str(DEJAVU / name))
    font.set_size(1000, 72)
    return [font.load_char(ord(letter), flags=LoadFlags.NO_HINTING).linearHoriAdvance / 65536e3 for letter in text]


@pytest.mark.parametrize("serif", [False, True])
def test_each_letter_is_as_wide_as_in_the_font(serif):
    widths = SERIF if serif else SANS
    letters = "".join(widths)
    assert len(letters) > 150
    assert set(map(chr, range(32, 127))) <= set(letters)
    for letter, advance in zip(letters, advances(FONTS[serif], letters), strict=True):
        assert advance - 1e-4 <= widths[letter] < advance + 0.01, letter


@pytest.mark.parametrize("serif", [False, True])
def test_a_text_is_as_wide_as_the_letters_that_are_seen(serif):
    line = "Rückruf für “naïve” methods · ρ ≤ 0.5 & <b>$x$</b>"
    width = text_width(f"short<br>{escape(line)}", serif)
    exact = sum(advances(FONTS[serif], line))
    assert exact <= width <= exact + 0.01 * len(line)
    assert text_width('<span style="color:rgb(1, 2, 3)">■</span>', serif) == text_width("■", serif)
    assert text_width("中文🙂", serif) >= 3  # square letters


@given(
    st.lists(st.text("abcW. <&$ ü", max_size=30), max_size=6), st.floats(3, 40), st.booleans(), st.booleans()
)  # fmt: skip
def test_wrapped_lines_fit_and_keep_their_text(parts, width, anywhere, serif):
    text = " · ".join(map(escape, parts))
    lines = wrap(text, width, anywhere, functools.partial(text_width, serif=serif)).split("<br>")
    assert "".join("".join(lines).split()) == "".join(text.split())
    for line in lines:
        if anywhere:
            assert text_width(line, serif) <= width
        else:
            assert text_width(line, serif) <= width or " " not in line.strip(" ·")
    for line, following in itertools.pairwise(lines):
        if line.endswith(" ·") and following.endswith(" ·"):  # whole parts: the next one did not fit any more
            assert text_width(f"{line} {following}", serif) > width


def test_a_wrapped_text_is_wrapped_again_for_another_width():
    text = "Recall by budget · SmolLM2-135M-Instruct · budget 256"
    assert wrap(wrap(text, 20), 100) == text
    assert wrap("one two three · c", 7).split("<br>") == ["one two", "three · c"]
