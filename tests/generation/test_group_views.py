"""Pages, codes and lists of a head's keys, with their scores per step, against the methods' replay and brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvviz
from kvviz.clustering import product_quantize, query_centroids
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.generation.explore import VIEWS, cluster_keys, group_keys, view_of
from tests.generation.test_explore_clusters import made_trace

FIELDS = {
    "clusters": {"n_clusters": 9}, "pages": {"page_size": 8}, "codes": {"n_partitions": 2, "n_bits": 3},
    "lists": {"n_centroids": 10, "sinks": 8, "recent": 8, "list_ratio": 1.0},
}  # fmt: skip
METHODS = {"clusters": "clusterkv", "pages": "quest", "codes": "pqcache", "lists": "ctkvr"}


def head_queries(trace, step, prompt, head=1):
    return trace.queries[2][2 * head : 2 * head + 2, prompt + step].astype(np.float64)


@pytest.mark.parametrize("view", VIEWS)
def test_recalled_tokens_are_those_of_a_replay(view):
    trace = made_trace()
    recording = kvviz.replay(trace, METHODS[view], queries=12, budget=64, dense_layers=0, **FIELDS[view])
    alone = group_keys(trace, 2, 1, view, queries=12, budget=64, **FIELDS[view])
    given = group_keys(trace, 2, 1, view, recording=recording)  # the recording gives budget and fields
    for groups in (alone, given):
        for step in range(12):
            attended = set(recording.indices(step, 2)[1].tolist())
            expected = [len(attended & set(groups.members(number).tolist())) for number in range(len(groups.sizes))]
            assert groups.recalled[step].tolist() == expected
            assert groups.taken[step].tolist() == expected
        assert groups.recalled.sum() > 0


def test_clusters_before_the_cut_are_whole_but_for_the_last():
    groups = cluster_keys(made_trace(), 2, 1, n_clusters=9, queries=12, budget=64)
    trimmed = 0
    for scores, recalled, cut in zip(groups.scores, groups.recalled, groups.cut, strict=True):
        order = np.argsort(-scores, kind="stable")
        assert (recalled[order[: cut - 1]] == groups.sizes[order[: cut - 1]]).all()
        assert recalled[order[cut - 1]] > 0
        assert (recalled[order[cut:]] == 0).all()
        trimmed += recalled[order[cut - 1]] < groups.sizes[order[cut - 1]]
    assert trimmed > 0


def test_scores_of_clusters_are_products_with_the_mean_query():
    trace = made_trace()
    groups = cluster_keys(trace, 2, 1, n_clusters=9, queries=12)
    for step in range(12):
        expected = groups.centroids @ head_queries(trace, step, 288).mean(0)
        np.testing.assert_allclose(groups.scores[step], expected, rtol=1e-4, atol=1e-4)


def test_scores_of_pages_are_bounds_and_pages_in_the_window_have_none():
    trace = made_trace()
    groups = group_keys(trace, 2, 1, "pages", queries=12, budget=64, page_size=8, recent=20)
    keys = trace.keys[2][1, :288].astype(np.float64).reshape(36, 8, 16)
    assert groups.labels.tolist() == [position // 8 for position in range(288)]
    for step in range(12):
        ranked = (289 + step - 20) // 8
        for page in range(36):
            products = [np.maximum(q * keys[page].max(0), q * keys[page].min(0)).sum()
                        for q in head_queries(trace, step, 288)]  # fmt: skip
            found = groups.scores[step, page]
            assert np.isnan(found) if page >= ranked else found == pytest.approx(np.mean(products), rel=1e-3)


@pytest.mark.parametrize("part", [0, 1])
def test_codes_are_those_of_a_part(part):
    trace = made_trace()
    groups = group_keys(trace, 2, 1, "codes", part=part, queries=12, n_partitions=2, n_bits=3, budget=64)
    keys = torch.from_numpy(trace.keys[2][1, 4:288].astype(np.float32))
    book = product_quantize(keys, n_partitions=2, n_bits=3, max_iter=10)
    assert groups.labels[:4].tolist() == [-1] * 4
    assert groups.labels[4:].tolist() == book.codes[:, part].tolist()
    np.testing.assert_allclose(groups.centroids, book.centroids[part], rtol=1e-5)
    query = head_queries(trace, 5, 288).mean(0)[8 * part : 8 * part + 8]
    np.testing.assert_allclose(groups.scores[5], book.centroids[part].numpy() @ query, rtol=1e-3, atol=1e-3)
    assert (groups.cut == -1).all()  # tokens are ranked by the sum over the parts


def test_lists_share_tokens_and_steps_replace_the_oldest():
    trace = made_trace()
    groups = group_keys(trace, 2, 1, "lists", queries=12, budget=64, **FIELDS["lists"])
    q, k = (torch.from_numpy(array.astype(np.float32)) for array in (trace.queries[2][2:4], trace.keys[2][1:2]))
    index = query_centroids(q[:, :288], k[:, :288], n_centroids=10, list_length=48, within=(8, 280))
    for number in range(10):
        assert groups.members(number).tolist() == sorted(index.lists[0, number].tolist())
    assert groups.sizes.sum() > len(set(groups.order.tolist()))
    for step in range(12):
        missing = np.isnan(groups.scores[step])
        assert missing.tolist() == [number < min(step, 10) for number in range(10)]
        assert 0 <= groups.cut[step] <= min(4, 10 - missing.sum())
    direction = q[:, 288] / q[:, 288].norm(dim=-1, keepdim=True)
    centroids = index.centroids / index.centroids.norm(dim=-1, keepdim=True)
    cosines = (centroids * direction[:, None]).sum(-1).amax(0)
    np.testing.assert_allclose(groups.scores[0], cosines, rtol=1e-4, atol=1e-5)
    assert groups.cut[0] == 4


def test_steps_without_queries_are_not_ranked():
    trace = made_trace()
    recording = kvviz.replay(trace, "quest", queries=12, budget=64, dense_layers=0)
    changed = recording.token_ids.copy()
    changed[288 + 7] += 1
    groups = group_keys(trace, 2, 1, "pages", recording=recording.replace(token_ids=changed))
    assert (len(groups.scores), len(groups.taken)) == (7, 12)
    short = kvviz.Trace(trace.model, trace.geometry, trace.tokens[:288], trace.token_ids[:288],
                        *({2: getattr(trace, name)[2][:, :288]} for name in ("queries", "keys", "values")))  # fmt: skip
    groups = group_keys(short, 2, 1, "clusters", recording=recording, n_clusters=5)
    assert (groups.scores.shape, len(groups.taken)) == ((0, 5), 12)


def test_a_prompt_too_short_for_groups_has_none():
    for view in ("pages", "codes", "lists"):
        groups = group_keys(made_trace(14), 2, 0, view, queries=11)
        assert groups.sizes.sum() == 0
        assert (groups.labels == -1).all()


def test_views_of_recordings_and_refusals():
    trace = made_trace()
    assert [view_of(kvviz.replay(trace, name, queries=4, budget=140)) for name in [*METHODS.values(), "oracle"]] == [
        *METHODS, "clusters"
    ]  # fmt: skip
    with pytest.raises(UnknownNameError, match="did you mean 'pages'"):
        group_keys(trace, 2, 0, "page")
    with pytest.raises(InvalidInputError, match="0 to 1"):
        group_keys(trace, 2, 0, "codes", part=2)
    with pytest.raises(InvalidInputError, match="divisor"):
        group_keys(trace, 2, 0, "codes", n_partitions=3)
