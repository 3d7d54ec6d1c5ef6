"""Meanings on the maps are told apart without colour vision: measured on the pixels that Chromium draws."""

from __future__ import annotations

import warnings
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from kvviz.methods import names
from kvviz.metrics import Verdict
from kvviz.plots.theme import method_style
from kvviz.trace.hues import HUES
from kvviz.widgets import view
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says which of its own extras are not installed
    import colour

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]
SIGHT = ("normal", "Deuteranomaly", "Protanomaly", "achromatopsia")
LEAST = 5.0  # CIEDE2000: 1 is just noticeable side by side, on large areas
SOURCE = Path(view.__file__).parent / "js"
GROUND = {"light": "#ffffff", "dark": "#15181c"}


def seen(pixels, sight):
    """CIE Lab of sRGB pixels [..., 3] in 0 to 1, as people with this colour vision see them."""
    linear = colour.cctf_decoding(np.asarray(pixels), function="sRGB")
    if sight == "achromatopsia":
        linear = np.repeat((linear @ [0.2126, 0.7152, 0.0722])[..., None], 3, axis=-1)
    elif sight != "normal":
        linear = linear @ colour.matrix_cvd_Machado2009(sight, 1.0).T
    xyz = colour.RGB_to_XYZ(linear.clip(0, 1), "sRGB")
    return colour.XYZ_to_Lab(xyz, colour.CCS_ILLUMINANTS["CIE 1931 2 Degree Standard Observer"]["D65"])


def closest(meanings):
    """The smallest distance between two colours of different meanings, and where: from colours [n, 3] by meaning."""
    distances = {}
    for sight in SIGHT:
        for one, other in combinations(meanings, 2):
            lab = seen(meanings[one], sight)[:, None], seen(meanings[other], sight)[None]
            distances[sight, one, other] = float(colour.delta_E(*lab, method="CIE 2000").min())
    place = min(distances, key=distances.__getitem__)
    return distances[place], place


@pytest.fixture(scope="module")
def colours(browser):
    """A function that gives a palette of js/map_colours.js, [256, 4] in 0 to 1, on the ground of a theme."""
    page = browser.new_page()
    page.route("**/*", lambda route: route.fulfill(path=SOURCE / Path(route.request.url).name))
    page.goto("http://kvviz.test/shared.css")

    def of(call, theme):
        page.set_content(f'<div class="kvviz" data-theme="{theme}"></div>')
        script = f"""async () => {{
            const colours = await import("http://kvviz.test/map_colours.js"), root = document.querySelector(".kvviz");
            return [...colours.{call}];
        }}"""
        rgba = np.array(page.evaluate(script), float).reshape(256, 4) / 255
        return np.where(rgba[:, 3:] > 0, rgba[:, :3], colour.notation.HEX_to_RGB(GROUND[theme]))

    yield of
    page.close()


@pytest.mark.parametrize("theme", GROUND)
@pytest.mark.parametrize("name", names())
def test_verdicts_differ_in_every_method_s_colour(colours, name, theme):
    hue = method_style(name, dark=theme == "dark")["color"]
    looks = colours(f"verdictColours(root, {hue!r})", theme)
    verdicts = [verdict for verdict in Verdict if verdict is not Verdict.UNMARKED]
    meanings = {verdict.name: looks[verdict * view.LEVELS : (verdict + 1) * view.LEVELS] for verdict in verdicts}
    distance, place = closest(meanings | {"nothing": looks[view.NOTHING][None]})
    assert distance > LEAST, place


@pytest.mark.parametrize("theme", GROUND)
def test_attended_kept_and_missed_differ_for_clusters_of_all_hues(colours, theme):
    looks = colours("mapColours(root)", theme)
    rows = looks[: view.MISSED_LOOK + view.LEVELS].reshape(-1, view.LEVELS, 3)
    meanings = {"attended": rows[:HUES].reshape(-1, 3), "kept": rows[HUES], "missed": rows[HUES + 1]}
    distance, place = closest(meanings | {"nothing": looks[view.NOTHING][None]})
    assert distance > LEAST, place
