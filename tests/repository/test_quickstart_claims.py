"""What notebook 00 says beside its own outputs: of the sentence at another place, and of 32 other texts."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

import kvviz
from notebooks.runs import recipes

ROOT = Path(__file__).parents[2]
TEXT = "\n".join(cell.source for cell in nbformat.read(ROOT / "notebooks" / "00_quickstart.ipynb", 4).cells)
NAMES = {
    "ClusterKV with 400 clusters": "clusterkv, 400 clusters", "PQCache": "pqcache", "CTkvr": "ctkvr",
    "Quest": "quest", "L/80 clusters": "clusterkv", "StreamingLLM": "streaming_llm",
}  # fmt: skip


def test_the_numbers_found_in_other_texts_are_the_benchmarks():
    sentence = re.search(r"In \[32 other texts\].*?\.\n", TEXT)[0]
    page = (ROOT / "data" / "benchmarks" / "methods.md").read_text()
    for said, label in NAMES.items():
        (found,) = re.findall(rf"^\| `{re.escape(label)}` \| 256 \| (\d+)/32 \|", page, re.MULTILINE)
        assert re.search(rf"{re.escape(said)}(?: finds)? {found}\b", sentence), said


@pytest.mark.slow
@pytest.mark.model
def test_the_sentence_at_another_place_and_a_choice_per_query_head():
    """1,500 characters earlier neither of the two that answer finds it; per query head, a KV head reads about 430."""
    lm = kvviz.load(recipes.MODEL)
    fields = recipes.NEEDLE_METHODS["clusterkv, 400 clusters"][1]
    here, earlier = recipes.NEEDLE_AFTER, recipes.NEEDLE_AFTER - 1500
    run = {"budget": recipes.NEEDLE_BUDGET, "max_new_tokens": recipes.NEEDLE_NEW_TOKENS, "record": True}
    for name, own in (("clusterkv", fields), ("pqcache", {})):
        prompt, question = recipes.needle_prompt(lm, earlier)
        assert "7463" not in kvviz.generate(lm, prompt, name, question=question, **run, **own).text
    prompt, question = recipes.needle_prompt(lm, here)
    official = kvviz.methods.create("clusterkv", preset="official", budget=run.pop("budget"))
    read = kvviz.generate(lm, prompt, official, question=question, **run).recording.summary()["attended_tokens"]
    assert "reads about 430 tokens" in TEXT
    assert read == pytest.approx(430, abs=5)
