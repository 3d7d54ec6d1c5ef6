"""The cards that Jupyter shows of objects, against the objects; and their one line in a terminal."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import kvviz
from kvviz.generation.result import Generation, Timings
from kvviz.trace import Ledger
from kvviz.trace.cards import card
from tests.browser.recordings import HOSTILE
from tests.generation.test_explore import made_trace
from tests.synthetic import diagnosis, recording

LEDGER = Ledger(sinks=4, recent=10, selected=50, kept_bytes={"device": 2**20, "host": 3 * 2**20}, metadata_bytes=2048)


def generation(text, run=None):
    return Generation(text, [1, 2, 3], Timings(0.25, 0.3, 0.05, 0.1), LEDGER, run)


OBJECTS = {
    "trace": lambda texts: made_trace(200, tokens=texts(200)),
    "recording": lambda texts: recording(tokens=texts(126)).replace(answer="".join(texts(20)), model=HOSTILE[0]),
    "generation": lambda texts: generation("".join(texts(20)), recording(tokens=texts(126))),
    "generation without a recording": lambda texts: generation("".join(texts(20))),
    "ledger": lambda texts: LEDGER,
    "method": lambda texts: kvviz.methods.create("clusterkv", budget=777),
    "diagnosis": lambda texts: diagnosis(texts(60)),
}


class Read(HTMLParser):
    """The tags of a page, the text of its cells by row, and its code."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.open, self.code, self.cells = [], [], [], []
        self.feed(page)
        self.rows = dict(zip(self.cells[::2], self.cells[1::2], strict=True))

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.open.append(tag)
        assert {name for name, _ in attributes} <= {"style", "class"}
        if tag in ("th", "td"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"th", "td"} & set(self.open):
            self.cells[-1] += data
        if "code" in self.open:
            self.code.append(data)


def hostile(count):
    return [HOSTILE[place % len(HOSTILE)] if place % 2 else "\ud83d" for place in range(count)]


@pytest.mark.parametrize("name", OBJECTS)
def test_texts_are_escaped_and_the_terminal_has_one_line(name):
    made = OBJECTS[name](hostile)
    page = made._repr_html_()
    page.encode("utf-8")
    read = Read(page)
    assert read.open == []
    assert set(read.tags) <= {"div", "b", "table", "tbody", "tr", "th", "td", "bdi", "ul", "li", "code"}
    assert read.rows
    assert read.code
    assert "\n" not in repr(made)


@pytest.mark.parametrize("name", OBJECTS)
def test_the_calls_name_what_exists(name):
    made = OBJECTS[name](lambda count: [f" w{place}" for place in range(count)])
    for line in Read(made._repr_html_()).code:
        path = re.match(r"[\w.]+", line)[0].split(".")
        value = kvviz if path[0] == "kvviz" else made
        for part in path[1:]:
            value = getattr(value, part)


def test_a_trace_says_model_length_layers_and_size():
    trace = made_trace(200)
    rows = Read(trace._repr_html_()).rows
    size = sum(array.nbytes for part in (trace.queries, trace.keys, trace.values) for array in part.values())
    assert rows["model"] == trace.model
    assert rows["length"] == "200 tokens"
    assert rows["layers"].split(" (")[0] == ", ".join(map(str, trace.layers))
    assert float(rows["size"].split()[0]) == pytest.approx(size / 2**10, rel=1e-3)
    assert rows["size"].endswith(" KiB")


def test_a_recording_and_a_generation_say_what_was_run():
    run = recording()
    rows = Read(run._repr_html_()).rows
    assert rows["method"] == "ClusterKV, budget 32"
    assert rows["length"] == "120 tokens, then 6 steps"
    assert rows["layers"] == "2, 3 (2 of 4)"
    assert rows["answer"] == run.answer
    rows = Read(generation("an <b>answer</b>", run)._repr_html_()).rows
    assert rows["text"] == "an <b>answer</b>"
    assert rows["model"] == "synthetic"
    assert rows["length"] == "3 new tokens"
    assert rows["times"] == "0.25 s to the first token, 0.050 s per token after it"


def test_a_ledger_adds_up():
    rows = Read(LEDGER._repr_html_()).rows
    assert rows["attended per KV head"] == "64 tokens: 4 sinks, 10 recent, 50 selected"
    assert rows["keys and values"] == "1 MiB on device, 3 MiB on host"
    assert rows["metadata"] == "2 KiB"
    assert "hit rate" not in rows  # nothing was looked up


def test_a_method_shows_all_its_fields():
    method = kvviz.methods.create("quest", budget=777)
    assert Read(method._repr_html_()).rows == {name: repr(value) for name, value in method.config.items()}
    assert repr(method).startswith("Quest(budget=777")


def test_a_diagnosis_says_what_was_lost():
    found = diagnosis()
    rows = Read(found._repr_html_()).rows
    assert rows["answer"] == found.answer
    assert [float(number) for number in re.findall(r"-?\d+\.\d+", rows["log-probability"])] == pytest.approx(
        [found.full.total, found.method.total], abs=0.005
    )
    assert rows["size"] == f"{len(found.evidence)} evidence tokens, {len(found.losses)} losses"


def test_long_texts_are_cut_and_colours_are_those_of_the_page():
    page = card("Name", "about", {"text": "x" * 10_000, "none": None, "zero": 0}, [])
    assert len(page) < 2000
    assert Read(page).rows.keys() == {"text", "zero"}
    assert "background-color" not in page
    assert np.all([colour == "inherit" for colour in re.findall(r"(?<![\w-])color: ([^;\"]+)", page)])
