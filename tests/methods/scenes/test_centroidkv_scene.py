"""CentroidKV's scene: its numbers against merging and attention in NumPy, from the trace alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from sklearn.preprocessing import normalize

import kvviz
from kvviz.generation.explore import Mechanism
from kvviz.trace import Recording, Trace
from kvviz.trace.scene import Bars, Frame, Rows, Scene
from kvviz.widgets import mechanism_content, view

LAYER, HEAD, STEP, QUERIES, TOKEN, BUDGET = 14, 1, 31, 32, 700, 512
SINKS, RECENT, CHUNK = 16, 64, 256
RATIOS = (0.8, 0.6, 0.4, 0.2, 0.2, 0.2, 0.2)


@dataclass
class Merging:
    """Every round's links and centroids, in float64."""

    rounds: list[dict]
    members: np.ndarray  # of the tokens between sinks and recent window
    means: np.ndarray


def merged(keys: np.ndarray, most: int) -> Merging:
    means, degree, members = keys, np.ones(len(keys)), np.arange(len(keys))
    rounds = []
    for ratio in RATIOS:
        links = []
        for start in range(0, len(means), CHUNK):
            a, b = (np.arange(start + odd, min(start + CHUNK, len(means)), 2) for odd in (0, 1))
            cosines = normalize(means[a]) @ normalize(means[b]).T
            links += [(a[row], b[best], cosines[row, best]) for row, best in enumerate(cosines.argmax(-1))]
        kept = min(round(ratio * len(links)), len(means) - most)
        strongest = sorted(links, key=lambda link: -link[2])[:kept]
        target = {source: partner for source, partner, _ in strongest}
        remaining = [number for number in range(len(means)) if number not in target]
        place = {number: index for index, number in enumerate(remaining)}
        became = np.array([place[target.get(number, number)] for number in range(len(means))])
        weights = np.zeros((len(remaining), len(means)))
        weights[became, np.arange(len(means))] = degree
        degree = weights.sum(-1)
        means, members = weights @ means / degree[:, None], became[members]
        rounds.append({
            "links": {(source, partner): cosine for source, partner, cosine in links},
            "kept": {(source, partner) for source, partner, _ in strongest},
            "degree": degree, "members": members.copy(), "least": strongest[-1][2], "ratio": kept / len(links),
        })  # fmt: skip
    return Merging(rounds, members, means)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return kvviz.open_runs(live=False).trace("prose")


@pytest.fixture(scope="module")
def scene(trace: Trace) -> Scene:
    method = kvviz.methods.create("centroidkv", budget=BUDGET)
    return Mechanism(trace, method, QUERIES).scene(LAYER, HEAD, STEP, TOKEN)[0]


@pytest.fixture(scope="module")
def recording(trace: Trace) -> Recording:
    one = replace(trace, **{name: {LAYER: getattr(trace, name)[LAYER]} for name in ("queries", "keys", "values")})
    return kvviz.replay(one, "centroidkv", budget=BUDGET, queries=QUERIES)


@pytest.fixture(scope="module")
def expected(trace: Trace) -> Merging:
    keys = trace.keys[LAYER][HEAD, SINKS : len(trace) - QUERIES - RECENT].astype(np.float64)
    return merged(keys, BUDGET - SINKS - RECENT)


def frames(scene: Scene, chapter: str) -> list[Frame]:
    return [frame for frame in scene.frames if frame.chapter == chapter]


def position(name: str) -> int:
    return int(name.removeprefix("token:")) - SINKS


def test_links_are_the_largest_cosines_in_a_chunk_and_the_strongest_of_all_chunks_are_kept(
    scene: Scene, expected: Merging
) -> None:
    first = expected.rounds[0]
    made, judged = frames(scene, "links")[1:]
    assert len(made.links) == 8
    for link, again in zip(made.links, judged.links, strict=True):
        ends = position(link.start), position(link.end)
        assert float(link.label) == pytest.approx(first["links"][ends], abs=0.0051)
        assert again.weak == (ends not in first["kept"])
    assert f"the 968 links is kept: the 774 most similar, down to cosine {first['least']:.2f}" in judged.words


def test_chips_that_merge_are_the_tokens_of_one_centroid(scene: Scene, expected: Merging) -> None:
    tokens, after = frames(scene, "merge")
    members, degree = expected.rounds[0]["members"], expected.rounds[0]["degree"]
    assert isinstance(tokens.panels[0], Rows)
    *groups, alone = tokens.panels[0].rows
    for row in groups:
        (number,) = set(members[np.asarray(row.numbers) - SINKS])
        assert len(row.numbers) == degree[number] > 1
    assert (degree[members[np.asarray(alone.numbers) - SINKS]] == 1).all()
    assert TOKEN in np.concatenate([row.numbers for row in tokens.panels[0].rows])
    (row,) = after.panels[0].rows
    for number, label in zip(row.numbers, row.labels, strict=True):
        count = degree[members[number - SINKS]]
        assert label.endswith(f"×{count:.0f}") if count > 1 else "×" not in label


def test_rounds_have_their_counts_ratios_and_largest_degrees(scene: Scene, expected: Merging) -> None:
    shown = frames(scene, "rounds")
    for number, (frame, made) in enumerate(zip(shown[1:], expected.rounds[1:], strict=True), start=2):
        degree = made["degree"]
        own = degree[made["members"][TOKEN - SINKS]]
        assert f"Round {number}, r = {made['ratio']:.2g}: of {len(made['links'])} links, the" in frame.words
        assert f"down to cosine {made['least']:.2f}." in frame.words
        assert re.search(rf"{len(degree)} centroids remain.*largest has {degree.max():.0f} tokens", frame.words)
        assert f"is one of {own:.0f}." in frame.words
    (bars,) = [panel for panel in shown[-1].panels if isinstance(panel, Bars)]
    counts = [len(made["degree"]) for made in expected.rounds]
    assert list(bars.values) == [1936, *counts, BUDGET - SINKS - RECENT]
    assert list(scene.members["centroid"][SINKS:-RECENT]) == expected.members.tolist()


def test_logits_are_those_of_mean_keys_plus_log_n_and_weights_are_their_softmax(
    scene: Scene, expected: Merging, trace: Trace
) -> None:
    query = trace.queries[LAYER][3:6, -1].astype(np.float64)
    keys = trace.keys[LAYER][HEAD].astype(np.float64)
    degree, scale = np.bincount(expected.members), trace.geometry.head_dim**-0.5
    plain = query @ expected.means.T * scale
    biased = plain + np.log(degree)
    logits = query @ keys.T * scale
    exact = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    raw = np.delete(logits, np.arange(SINKS, SINKS + 1936), axis=-1)
    given = np.exp(biased) / (np.exp(raw).sum(-1, keepdims=True) + np.exp(biased).sum(-1, keepdims=True))
    together = np.bincount(expected.members, exact.mean(0)[SINKS : SINKS + 1936])
    _, with_log, weights, own = frames(scene, "attention")
    for frame, values in (
        (with_log, (plain.mean(0), biased.mean(0))),
        (weights, (100 * together, 100 * given.mean(0))),
    ):
        for panel, wanted in zip(frame.panels, values, strict=True):
            np.testing.assert_allclose(panel.values, wanted[panel.numbers], rtol=1e-3)
            assert list(panel.numbers[:5]) == np.argsort(-values[0] if frame is weights else -wanted)[:5].tolist()
    (bars,) = own.panels
    np.testing.assert_allclose(bars.values, 100 * exact.mean(0)[bars.numbers], rtol=1e-3)
    number = expected.members[TOKEN - SINKS]
    assert f"{degree[number]} tokens share {100 * given.mean(0)[number]:.2g}%" in own.words


def test_the_last_frame_tells_apart_tokens_alone_and_in_centroids_as_a_recording_does(
    scene: Scene, recording: Recording
) -> None:
    last = scene.frames[-1]
    assert "112 tokens alone, and to 432 centroids that stand for 1,936 others" in last.words
    recall, mass = recording.recall(STEP, LAYER)[HEAD], recording.attention_mass(STEP, LAYER)[HEAD]
    assert f"recall {recall:.2f}, mass {mass:.2f}" in last.words
    arrays = view.token_arrays(recording, LAYER, HEAD)
    step = slice(arrays["offsets"][STEP], arrays["offsets"][STEP + 1])
    painted = mechanism_content.lit(last.lit)
    assert painted["positions"] == arrays["positions"][step].tolist()
    merged_marks = np.asarray(painted["marks"]) & view.MERGED
    assert merged_marks.any()
    assert merged_marks.tolist() == (arrays["marks"][step] & view.MERGED).tolist()
    assert np.asarray(painted["looks"])[merged_marks > 0].tolist() == arrays["looks"][step][merged_marks > 0].tolist()


SMALL = {"budget": 96, "recent": 32, "chunk_size": 32, "sinks": 4, "decode_interval": 16}


@pytest.mark.parametrize(
    ("fields", "token", "heads"),
    [
        ({}, 2, 6),  # a sink
        ({"group": "each"}, 225, 6),  # in the recent window
        ({"chunk_size": None, "budget": 0.4}, 100, 2),
        ({"chunk_size": 7, "sinks": 0, "recent": 0, "initial_ratio": 1.0}, 0, 6),
        ({"decode_interval": 2, "schedule": "literal"}, 150, 6),  # merges again while decoding
        ({"chunk_size": 193, "schedule": "overshoot"}, 197, 6),  # alone in the last chunk
        ({"budget": 225}, 50, 6),  # first merges while decoding
        ({"budget": 228, "decode_interval": 64}, 50, 6),  # nothing is merged
        ({"budget": 229, "decode_interval": None, "generated": "on_top"}, 50, 6),
    ],
)
def test_any_fields_and_tokens_have_a_scene_that_ends_with_the_selected_tokens(
    fields: dict, token: int, heads: int
) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        name: {1: rng.normal(size=(count, 260, 16)).astype(np.float16)}
        for name, count in (("queries", heads), ("keys", 2), ("values", 2))
    }
    tokens = [f" {number}" for number in range(260)]
    small = Trace("tiny", kvviz.Geometry(2, heads, 2, 16, 512), tokens, np.arange(260), **arrays)
    method = kvviz.methods.create("centroidkv", **SMALL | fields)
    shown, _ = Mechanism(small, method, 30).scene(1, 1, 29, token)
    replayed = kvviz.replay(small, method, queries=30)
    lit, members = shown.frames[-1].lit, replayed.members(29, 1)[1]
    selected = replayed.indices(29, 1)[1]
    assert np.asarray(lit.positions)[np.asarray(lit.attended)].tolist() == selected[selected >= 0].tolist()
    if (members >= 0).any():
        assert list(shown.members["centroid"]) == members[:230].tolist()
        assert f"{(members >= 0).sum()} others" in shown.frames[-1].words
    else:
        assert "Nothing is merged yet" in shown.frames[0].words
    mechanism_content.pack(shown, mechanism_content.NO_MAP, {})
