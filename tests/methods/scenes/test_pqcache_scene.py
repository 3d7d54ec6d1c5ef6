"""PQCache's scene: its numbers against k-means of scikit-learn, sums, softmax and LRU from the trace alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import cachetools
import numpy as np
import pytest
from scipy.special import softmax
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

import kvviz
from kvviz.generation.explore import Mechanism
from kvviz.trace import Trace
from kvviz.trace.scene import Bars, Frame, Plane, Row, Rows, Scene

LAYER, HEAD, STEP, QUERIES, BUDGET = 14, 1, 31, 32, 256
PROMPT, SINKS, PARTS, COUNT, WIDTH = 2016, 4, 2, 64, 32
WINDOW = (BUDGET - SINKS) // 4
END = PROMPT + QUERIES - WINDOW  # of the tokens that are scored


@pytest.fixture(scope="module")
def trace() -> Trace:
    return kvviz.open_runs(live=False).trace("prose")


@pytest.fixture(scope="module")
def scene(trace: Trace) -> Scene:
    return Mechanism(trace, "pqcache", QUERIES, budget=BUDGET).scene(LAYER, HEAD, STEP)[0]


@pytest.fixture(scope="module")
def keys(trace: Trace) -> np.ndarray:
    return trace.keys[LAYER][HEAD].astype(np.float64)


@pytest.fixture(scope="module")
def initial(scene: Scene, keys: np.ndarray) -> np.ndarray:
    """The keys that k-means begins with, found by where the picture has its first codewords."""
    tokens, rings = panels(scene, Plane, "codebook")[1].dots
    parts = keys[SINKS:PROMPT, :WIDTH]
    places = PCA(2, svd_solver="full").fit_transform(parts)
    shown = np.stack([tokens.x, tokens.y], axis=1)
    places *= np.sign((places[np.asarray(tokens.numbers) - SINKS] * shown).sum(0))
    np.testing.assert_allclose(places[np.asarray(tokens.numbers) - SINKS], shown, atol=1e-3)
    away = np.linalg.norm(places[:, None] - np.stack([rings.x, rings.y], axis=1), axis=-1)
    assert away.min(0).max() < 1e-3
    return away.argmin(0)


@pytest.fixture(scope="module")
def books(keys: np.ndarray, initial: np.ndarray) -> list[KMeans]:
    """The k-means of each part, by scikit-learn from the same keys."""
    parts = [keys[SINKS:PROMPT, part * WIDTH : (part + 1) * WIDTH] for part in range(PARTS)]
    with threadpool_limits(1):
        return [KMeans(COUNT, init=part[initial], n_init=1, max_iter=10, tol=0).fit(part) for part in parts]


@pytest.fixture(scope="module")
def tables(trace: Trace, books: list[KMeans]) -> np.ndarray:
    """The inner products [G, m, C] of the last queries with the codewords."""
    queries = trace.queries[LAYER][3 * HEAD : 3 * HEAD + 3, -1].astype(np.float64).reshape(3, PARTS, WIDTH)
    return np.stack([queries[:, part] @ book.cluster_centers_.T for part, book in enumerate(books)], axis=1)


@pytest.fixture(scope="module")
def sums(tables: np.ndarray, books: list[KMeans], keys: np.ndarray) -> np.ndarray:
    """The sums of the cells [G, n] of the tokens that are scored."""
    return sum(tables[:, part][:, codes(books, keys, part)[: END - SINKS]] for part in range(PARTS))


def codes(books: list[KMeans], keys: np.ndarray, part: int) -> np.ndarray:
    """The codes of a part of the prompt's keys, sinks left out."""
    with threadpool_limits(1):
        return books[part].predict(np.ascontiguousarray(keys[SINKS:PROMPT, part * WIDTH : (part + 1) * WIDTH]))


def frames(scene: Scene, chapter: str) -> list[Frame]:
    return [frame for frame in scene.frames if frame.chapter == chapter]


def panels(scene: Scene, kind: type, chapter: str) -> list:
    return [panel for frame in frames(scene, chapter) for panel in frame.panels if isinstance(panel, kind)]


def row(panel: Rows, name: str) -> Row:
    return next(row for row in panel.rows if row.name == name)


def followed(scene: Scene) -> int:
    return int(scene.frames[0].focus[0].split(":")[1])


def part_of(trace: Trace, tokens: slice, kv_heads: Sequence[int] = (0, 1, 2), group_size: int = 3) -> Trace:
    """Some tokens and KV heads of the layer, with so many query heads per KV head."""
    heads = list(kv_heads)
    rows = [3 * head + member for head in heads for member in range(group_size)]
    queries, keys, values = trace.queries[LAYER][rows], trace.keys[LAYER][heads], trace.values[LAYER][heads]
    cut = ({LAYER: array[:, tokens]} for array in (queries, keys, values))
    geometry = replace(trace.geometry, n_heads=len(rows), n_kv_heads=len(heads))
    return Trace(trace.model, geometry, trace.tokens[tokens], trace.token_ids[tokens], *cut, trace.scale)


def test_the_codebooks_are_those_of_k_means_on_each_part(
    scene: Scene, keys: np.ndarray, initial: np.ndarray, books: list[KMeans]
) -> None:
    part = keys[SINKS:PROMPT, :WIDTH]
    joined = panels(scene, Plane, "codebook")[2].dots[0]
    nearest = np.linalg.norm(part[:, None] - part[initial], axis=-1).argmin(-1)
    assert list(joined.groups) == nearest[np.asarray(joined.numbers) - SINKS].tolist()
    for number in range(PARTS):
        labels = np.asarray(scene.members[f"codeword{number + 1}"])
        assert labels[:SINKS].tolist() == [-1] * SINKS
        assert labels[SINKS:].tolist() == codes(books, keys, number).tolist()


def test_the_key_has_two_codes_of_six_bits_and_their_codewords_stand_for_it(
    scene: Scene, keys: np.ndarray, books: list[KMeans]
) -> None:
    token, (nearest, stored) = followed(scene), frames(scene, "codes")
    parts = keys[token].reshape(PARTS, WIDTH)
    own = [int(codes(books, keys, part)[token - SINKS]) for part in range(PARTS)]
    away = [np.linalg.norm(parts[part] - books[part].cluster_centers_[own[part]]) for part in range(PARTS)]
    for part in range(PARTS):
        assert f"part {part + 1} is nearest to codeword {own[part]}, {away[part]:.1f} away" in nearest.words
        stands = stored.panels[0].rows[2 * part + 1]
        assert stands.name == f"codeword {own[part]}"
        np.testing.assert_allclose(stands.values, books[part].cluster_centers_[own[part]], atol=1e-3)
        np.testing.assert_allclose(stored.panels[0].rows[2 * part].values, parts[part])
    assert "2 × 6 = 12 bits" in stored.words
    assert "64 × 16 = 1,024 bits, 85 times" in stored.words


def test_a_sum_of_cells_is_the_product_with_the_codewords(
    scene: Scene, trace: Trace, keys: np.ndarray, tables: np.ndarray, sums: np.ndarray
) -> None:
    at = followed(scene) - SINKS
    head = int(softmax(sums / 8, axis=-1)[:, at].argmax())
    looked_up, of_some, _ = frames(scene, "scores")
    for part in range(PARTS):
        values = row(panels(scene, Rows, "tables")[-1], f"table {part + 1}").values
        np.testing.assert_allclose(values, tables[head, part], atol=2e-2)
    exact = trace.queries[LAYER][3 * HEAD + head, -1].astype(np.float64) @ keys[at + SINKS]
    total = looked_up.words.split(" ≈ ")[-1].split(" = ")[-1].split(".")
    assert float(f"{total[0]}.{total[1]}".replace("−", "-")) == pytest.approx(sums[head, at], abs=0.02)
    assert f"q·key is {exact:.2f}".replace("-", "−") in looked_up.words
    (bars,) = of_some.panels
    np.testing.assert_allclose(bars.values, sums[head, np.asarray(bars.numbers) - SINKS], atol=2e-2)


def test_scores_are_the_mean_softmax_weights_and_the_cut_is_what_the_budget_leaves(
    scene: Scene, trace: Trace, keys: np.ndarray, sums: np.ndarray
) -> None:
    at, weights = followed(scene) - SINKS, softmax(sums / 8, axis=-1)
    score = weights.mean(0)
    of_head, of_some = frames(scene, "scores")[-1].panels
    np.testing.assert_allclose(of_head.values, weights[:, at], rtol=5e-3)
    np.testing.assert_allclose(of_some.values, score[np.asarray(of_some.numbers) - SINKS], rtol=5e-3)
    ranked, exact = frames(scene, "rank")[-1].panels
    np.testing.assert_allclose(ranked.values, np.sort(score)[::-1][:20], rtol=5e-3)
    np.testing.assert_allclose(score[np.asarray(ranked.numbers) - SINKS], ranked.values, rtol=5e-3)
    queries = trace.queries[LAYER][3 * HEAD : 3 * HEAD + 3, -1].astype(np.float64)
    truth = softmax(queries @ keys.T / 8, axis=-1).mean(0)[SINKS:END]
    assert list(exact.numbers) == (np.argsort(-truth, kind="stable")[:20] + SINKS).tolist()
    np.testing.assert_allclose(exact.values, np.sort(truth)[::-1][:20], rtol=1e-3)
    (bars,), free = frames(scene, "cut")[-1].panels, BUDGET - SINKS - WINDOW
    assert isinstance(bars, Bars)
    assert bars.labels is not None
    assert bars.labels[int(bars.cut or 0) - 1].endswith(f"#{free}")
    np.testing.assert_allclose(bars.values, np.sort(score)[::-1][free - 10 : free + 10], rtol=5e-3)


def test_blocks_on_the_gpu_are_those_of_an_lru_cache_of_whole_blocks(scene: Scene, trace: Trace) -> None:
    alone = part_of(trace, slice(None), kv_heads=[HEAD])
    replayed = kvviz.replay(alone, "pqcache", budget=BUDGET, queries=QUERIES)
    offloaded, size, room = PROMPT - WINDOW, 128, 7  # a prompt of 2,016: half of it holds 7 blocks
    cache: cachetools.LRUCache = cachetools.LRUCache(room)
    for step in range(STEP + 1):
        before = set(cache)
        chosen = [int(p) for p in replayed.indices(step, LAYER)[0] if SINKS <= p < offloaded]
        counts = Counter(p // size for p in chosen if (p // size + 1) * size <= offloaded)
        best = sorted(counts, key=lambda block: (-counts[block], block))[:room]
        present = [block for block in reversed(best) if block in cache]
        absent = [block for block in reversed(best) if block not in cache]
        for block in present:
            _ = cache[block]
        while len(cache) + len(absent) > room:
            cache.popitem()
        cache.update(dict.fromkeys(absent, True))
    of_blocks, at_step, after = frames(scene, "blocks")
    middle = [int(p) for p in replayed.indices(STEP, LAYER)[0] if SINKS <= p < END]
    held = sum(p // size in before for p in chosen)
    assert list(of_blocks.panels[0].values) == np.bincount(np.array(middle) // size).tolist()
    assert set(at_step.panels[1].rows[0].numbers) == before
    assert f"{len(before)} blocks on the GPU: {held} of" in at_step.words
    assert f"The other {len(chosen) - held} are fetched" in at_step.words
    assert f"{len(middle) - len(chosen)} more" in at_step.words
    assert set(after.panels[1].rows[0].numbers) == set(cache)


@pytest.mark.parametrize(
    ("group_size", "fields", "place"),
    [
        (1, {}, {}),
        (3, {"group": "each", "n_partitions": 1}, {"head": 5}),
        (3, {"n_partitions": 4, "n_bits": 8, "budget": 230}, {"token": 260}),  # in the recent window
        (3, {"n_partitions": 64, "n_bits": 2, "group": "max"}, {"token": 0}),  # a sink
        (3, {"softmax": False, "recent_share": 0.0}, {"step": 0}),
        (3, {"softmax": False, "group": "max", "rebuild_interval": 5, "sinks": 0}, {}),
        (3, {"recent_share": 1.0, "preset": "official"}, {}),  # nothing is left to choose
    ],
)
def test_any_fields_have_a_scene_that_ends_with_what_a_replay_selects(
    trace: Trace, group_size: int, fields: dict, place: dict
) -> None:
    small = part_of(trace, slice(300), group_size=group_size)
    method = kvviz.methods.create("pqcache", **{"budget": 64} | fields)
    where = {"layer": LAYER, "head": 1, "step": STEP} | place
    lit = Mechanism(small, method, QUERIES).scene(**where)[0].frames[-1].lit
    assert lit is not None
    rows = kvviz.replay(small, method, queries=QUERIES).indices(where["step"], LAYER)[where["head"]]
    attended = np.asarray(lit.positions)[np.asarray(lit.attended)]
    assert attended.tolist() == np.unique(rows[rows >= 0]).tolist()
