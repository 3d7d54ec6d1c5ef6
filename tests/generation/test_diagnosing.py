"""diagnose(): its numbers against scores of edits, its tables against the recording of the same run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

import kvviz
from kvviz.errors import IncompatibleFileError, InvalidInputError
from kvviz.trace.diagnosis import ALL, TABLES
from kvviz.trace.outcomes import OUTCOMES
from tests.cache.test_editing import HEADS, LAYERS, smallest
from tests.tiny_models import letters_tokenizer, make, prompt

LENGTH, QUESTION = 150, " what? "
METHODS = (
    "clusterkv",
    "quest",
    "ctkvr",
    "pqcache",
    "centroidkv",
    "snapkv",
    "h2o",
    "sparq",
    "magicpig",
    "infllm",
    "shadowkv",
    "infinigen",
    "retrieval_attention",
)
RANKING = {name for name in METHODS if kvviz.methods.get(name).kind == "retrieval"}  # tell how they ranked tokens
EVIDENCE = (40, 41, 77)


@pytest.fixture(scope="module")
def tiny():
    return kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")


@pytest.fixture(scope="module")
def answer(tiny):
    """What full attention writes."""
    return kvviz.generate(tiny, prompt(LENGTH), "full", question=QUESTION, max_new_tokens=4).text  # four printable ones


@pytest.fixture(scope="module")
def diagnosed(tiny, answer):
    """A function from a method's name to its diagnosis."""
    found = {}

    def diagnosis(name):
        if name not in found:
            found[name] = kvviz.diagnose(
                tiny, prompt(LENGTH), answer, smallest(name), question=QUESTION, evidence=EVIDENCE, controls=2
            )
        return found[name]

    return diagnosis


def scored(tiny, answer, name, edit=None):
    return kvviz.score(tiny, prompt(LENGTH), answer, name, question=QUESTION, edit=edit)


@pytest.mark.parametrize("name", METHODS)
def test_scores_are_those_of_score(tiny, answer, diagnosed, name):
    d = diagnosed(name)
    assert d.answer == answer
    assert d.full.answered
    np.testing.assert_allclose(d.full.logprobs, scored(tiny, answer, "full").logprobs, atol=1e-4)
    np.testing.assert_allclose(d.method.logprobs, scored(tiny, answer, smallest(name)).logprobs, atol=1e-4)
    assert d.lost == pytest.approx(d.full.total - d.method.total)
    assert d.waterfall["stage"].tolist() == ["method", *reversed(d.stages), "full"]
    assert d.waterfall["logprob"].iloc[0] == pytest.approx(d.method.total, abs=1e-3)
    assert d.waterfall["logprob"].iloc[-1] == d.full.total


@pytest.mark.parametrize("name", METHODS)
def test_every_loss_has_one_row(diagnosed, name):
    d = diagnosed(name)
    steps = len(d.tokens) - 1 - LENGTH
    rows = d.losses.query_head.max() + 1 if d.losses.query_head.max() >= 0 else HEADS
    keys = ["step", "layer", "head", "query_head", "position"]
    assert len(d.losses) == len(d.losses.drop_duplicates(keys)) == steps * LAYERS * rows * len(EVIDENCE)
    assert set(d.losses["stage"]) <= set(OUTCOMES)
    told = set(d.losses["stage"]) - {"attended", "not wanted", "crowded out"}
    allowed = {"kept": "not kept", "grouping": "badly grouped", "ranking": "badly scored", "trimming": "trimmed"}
    assert told <= {allowed[stage] for stage in d.stages}
    lost = d.losses[d.losses["stage"] != "attended"]
    if name != "centroidkv":  # a merged token has a part of its centroid's weight
        assert (lost["weight"] == 0).all()
    assert (d.losses.loc[d.losses["stage"] == "attended", "weight"] > 0).all()
    if name in RANKING:
        beaten = lost[lost["stage"].isin(["badly grouped", "badly scored"])]
        assert (beaten["score"] <= beaten["cut"]).all()
        assert (beaten["rank"] > 1).all()


@pytest.mark.parametrize("name", ["quest", "clusterkv", "snapkv", "centroidkv"])
def test_weights_and_ranks_are_those_of_a_recording(tiny, answer, diagnosed, name):
    """Step 0 of both runs feeds the question's first token."""
    d = diagnosed(name)
    out = kvviz.generate(
        tiny, prompt(LENGTH), smallest(name), question=QUESTION, max_new_tokens=2, record=True
    ).recording
    for layer in (0, LAYERS - 1):
        exact, attended = out.attention(0, layer), out.indices(0, layer)
        rows = d.losses.query(f"step == 0 and layer == {layer}")
        for row in rows.itertuples():
            assert row.exact_weight == pytest.approx(float(exact[row.head, row.position]), abs=2e-3)
            higher = (exact[row.head] > exact[row.head, row.position]).sum()
            assert abs(row.exact_rank - 1 - higher) <= 1  # recordings keep 16 bits
            assert (row.position in attended[row.head]) == (row.stage == "attended")


def test_the_weight_given_is_the_exact_one_among_the_attended(tiny, answer):
    """Per query head: a row's weights are then one softmax."""
    method = kvviz.methods.create("quest", budget=48, page_size=4, dense_layers=0, group="each")
    d = kvviz.diagnose(tiny, prompt(LENGTH), answer, method, question=QUESTION, evidence=range(20, 90))
    out = kvviz.generate(tiny, prompt(LENGTH), method, question=QUESTION, max_new_tokens=2, record=True).recording
    exact, attended = out.attention(0, 1), out.indices(0, 1)
    rows = d.losses.query("step == 0 and layer == 1 and stage == 'attended'")
    assert len(rows) > 20
    for row in rows.itertuples():
        weights = exact[row.query_head].astype(float)
        share = weights[attended[row.query_head][attended[row.query_head] >= 0]].sum()
        assert row.weight == pytest.approx(weights[row.position] / share, rel=0.02, abs=1e-5)
        assert row.head == row.query_head // (tiny.geometry.n_heads // HEADS)


@pytest.mark.parametrize("name", METHODS)
def test_restoring_the_last_layer_is_a_real_decode(tiny, answer, diagnosed, name):
    d, last = diagnosed(name), LAYERS - 1
    for head in range(HEADS):
        decoded = scored(tiny, answer, smallest(name), kvviz.exact([last], [head]))
        restored = d.restored.query(f"stage == 'all' and layer == {last} and head == {head}")["logprob"].item()
        assert restored == pytest.approx(decoded.total - d.method.total, abs=1e-3)
        assert d.head_map()[last, head] == restored
    assert np.isfinite(d.head_map()).all()
    everywhere = d.restored.query(f"layer == {ALL}").set_index("stage")["logprob"]
    kept = everywhere["kept"] if "kept" in everywhere else everywhere["all"]
    assert everywhere["all"] == kept


@pytest.mark.parametrize("name", METHODS)
def test_the_smallest_heads_bring_the_answer_back(tiny, answer, diagnosed, name):
    d = diagnosed(name)
    if d.smallest is None:  # even all heads don't
        assert not scored(tiny, answer, smallest(name), kvviz.exact()).answered
        assert d.control.empty
        return
    edit = kvviz.trace.edits.Edit()
    for layer, head in d.smallest:
        edit |= kvviz.exact([layer], [head])
    score = scored(tiny, answer, smallest(name), edit if d.smallest else None)
    assert score.answered
    np.testing.assert_allclose(d.smallest_score.logprobs, score.logprobs, atol=1e-4)
    assert (d.smallest == ()) == d.method.answered
    if d.smallest:
        assert d.control.groupby("seed").size().tolist() == [len(d.smallest)] * 2
        seed = d.control[d.control["seed"] == 1]
        edit = kvviz.trace.edits.Edit()
        for row in seed.itertuples():
            edit |= kvviz.exact([row.layer], [row.head])
        score = scored(tiny, answer, smallest(name), edit)
        assert seed["logprob"].iloc[0] == pytest.approx(score.total - d.method.total, abs=1e-4)
        assert seed["answered"].iloc[0] == score.answered


def test_pinned_evidence_in_the_last_layer_alone_matters_as_a_pin_does(tiny, answer):
    """With one layer that selects, a pass over the pinned choice is a real decode with the pin."""
    dense = {"budget": 48, "page_size": 4, "dense_layers": LAYERS - 1}
    d = kvviz.diagnose(tiny, prompt(LENGTH), answer, "quest", question=QUESTION, evidence=EVIDENCE, **dense)
    for row in d.evidence.itertuples():
        method, pinned = kvviz.methods.create("quest", **dense), kvviz.pin(row.position, budget="extra")
        gained = scored(tiny, answer, method, pinned).total - d.method.total
        assert row.pinned == pytest.approx(gained, abs=1e-3)
        dropped = scored(tiny, answer, "full", kvviz.drop(row.position)).total
        assert row.logprob == pytest.approx(d.full.total - dropped, abs=1e-3)
    assert set(d.losses["layer"]) == {LAYERS - 1}
    assert np.isnan(d.head_map()[: LAYERS - 1]).all()


def test_a_diagnosis_survives_its_file(diagnosed, tmp_path):
    for name in ("clusterkv", "snapkv"):
        d = diagnosed(name)
        again = kvviz.Diagnosis.load(d.save(tmp_path / f"{name}.safetensors"))
        for table in TABLES:
            pd.testing.assert_frame_equal(getattr(again, table), getattr(d, table), check_dtype=True)
        for score in ("full", "method", "smallest_score"):
            one, two = getattr(d, score), getattr(again, score)
            assert (one is None) == (two is None)
            if one is not None:
                np.testing.assert_array_equal(one.logprobs, two.logprobs)
                np.testing.assert_array_equal(one.likeliest, two.likeliest)
        assert (again.smallest, again.tokens, again.stages, again.style) == (d.smallest, d.tokens, d.stages, d.style)
        assert (again.geometry, again.passes, dict(again.texts)) == (d.geometry, d.passes, dict(d.texts))


def test_a_file_with_heads_that_the_model_does_not_have_is_refused(diagnosed, tmp_path):
    d = diagnosed("quest")
    for name, message in (("layer", "layer 99; wanted -1 to 3"), ("head", "head 99; wanted -1 to 1")):
        wrong = d.restored.assign(**{name: d.restored[name].replace(0, 99)})
        path = dataclasses.replace(d, restored=wrong).save(tmp_path / f"{name}.safetensors")
        with pytest.raises(IncompatibleFileError, match=f"restored: got {message}"):
            kvviz.Diagnosis.load(path)


def test_an_answer_that_full_attention_does_not_give_has_nothing_to_explain(tiny):
    with pytest.raises(InvalidInputError, match=r"full attention writes .* there is nothing to explain"):
        kvviz.diagnose(tiny, prompt(LENGTH), "zqzq", smallest("quest"), question=QUESTION)


@pytest.mark.parametrize("method", ["full", "minference"])
def test_a_method_that_attends_to_all_tokens_is_refused(tiny, answer, method):
    with pytest.raises(InvalidInputError, match=f"diagnose: method: got {method}, which attends to all tokens"):
        kvviz.diagnose(tiny, prompt(LENGTH), answer, method, question=QUESTION, evidence=EVIDENCE)


def test_an_answer_without_evidence_is_diagnosed_too(tiny, answer, tmp_path):
    d = kvviz.diagnose(tiny, prompt(LENGTH), answer, smallest("clusterkv"), question=QUESTION, max_passes=1, controls=0)
    assert d.evidence.empty
    assert d.losses.empty
    assert set(d.texts) == {"method"}
    assert np.isfinite(d.head_map()).all()
    again = kvviz.Diagnosis.load(d.save(tmp_path / "none.safetensors"))
    pd.testing.assert_frame_equal(again.losses, d.losses)
    with pytest.raises(InvalidInputError, match="a diagnosis without losses"):
        kvviz.widgets.MissInspector(d)


@pytest.mark.parametrize(
    ("evidence", "wanted"), [("nowhere at all", "does not occur"), ("o", "times"), ([LENGTH], f"0 to {LENGTH - 1}")]
)
def test_evidence_has_to_be_in_the_prompt(tiny, answer, evidence, wanted):
    with pytest.raises(InvalidInputError, match=f"diagnose: evidence.*{wanted}"):
        kvviz.diagnose(tiny, prompt(LENGTH), answer, smallest("quest"), question=QUESTION, evidence=evidence)
