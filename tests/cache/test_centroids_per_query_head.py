"""Centroids that each query head chooses for itself, against loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kvviz import Recording
from kvviz.cache.attended import Attended
from kvviz.cache.decoding import merged_attention
from kvviz.cache.edited_choice import _without
from kvviz.clustering.merged import Merged
from kvviz.errors import IncompatibleFileError
from kvviz.methods.attention import centroid_weights
from kvviz.methods.selection import Selection
from kvviz.offload.device_store import DeviceStore
from tests import synthetic

HEADS, QUERY_HEADS, TOKENS, CENTROIDS, DIM, SCALE = 2, 6, 12, 4, 8, 0.4
LABELS = np.arange(TOKENS) % CENTROIDS  # of both KV heads
# The centroids that each query head attends to: some, all, none.
CHOSEN = np.array([[1, 0, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]], bool)


@pytest.fixture
def tensors():
    rng = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, 1, HEADS, TOKENS, DIM, generator=rng)
    return torch.randn(1, QUERY_HEADS, DIM, generator=rng), keys, values


def merged_of(keys, values):
    """The means by loops; their degree is 0 where a query head does not attend to them."""
    means = [
        torch.stack([torch.stack([t[0, h, c == LABELS].mean(0) for c in range(CENTROIDS)]) for h in range(HEADS)])[None]
        for t in (keys, values)
    ]
    sizes = np.bincount(LABELS, minlength=CENTROIDS)
    degree = torch.from_numpy(np.where(CHOSEN, sizes, 0).astype(np.int32))[None]
    members = torch.from_numpy(np.where(CHOSEN[:, LABELS], LABELS, -1).astype(np.int32))[None]
    return Merged(*means, degree, members)


def test_each_query_head_attends_to_its_own(tensors):
    queries, keys, values = tensors
    merged = merged_of(keys, values)
    output, lse = merged_attention(queries, merged, SCALE)
    alone = torch.tensor([[[0]] * QUERY_HEADS])
    selection = Selection(alone, merged=merged)
    shares = centroid_weights(queries, keys, values, alone, selection, SCALE)
    attended = Attended.of([selection], QUERY_HEADS, TOKENS)
    for head in range(QUERY_HEADS):
        of_kv, query = head * HEADS // QUERY_HEADS, queries[0, head].double()
        numbers = np.flatnonzero(CHOSEN[head])
        centroids = merged.keys[0, of_kv, numbers].double()
        weights = (centroids @ query * SCALE).exp() * torch.from_numpy(np.bincount(LABELS))[numbers]
        expected = weights @ merged.values[0, of_kv, numbers].double()
        expected = expected / weights.sum() if len(numbers) else torch.zeros(DIM).double()
        torch.testing.assert_close(output[0, head].double(), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(lse[0, head].double(), weights.sum().log(), rtol=1e-5, atol=1e-5)
        total = weights.sum() + (keys[0, of_kv, 0].double() @ query * SCALE).exp()
        torch.testing.assert_close(shares[0, head, numbers].double(), weights / total, rtol=1e-5, atol=1e-6)
        assert (attended.merged_mask[head, 0] > -torch.inf).tolist() == CHOSEN[head].tolist()
    assert attended.counts[:, 0].tolist() == selection.entries[0].tolist() == (1 + CHOSEN.sum(-1)).tolist()


def test_a_token_is_taken_out_for_all_query_heads_that_attend_to_its_centroid(tensors):
    _, keys, values = tensors
    merged, out, store = merged_of(keys, values), torch.zeros(1, HEADS, TOKENS, dtype=torch.bool), DeviceStore()
    store.append(keys, values)
    out[0, 0, [1, 6]] = True  # centroids 1 and 2 of the first KV head
    left = _without(merged, out, store)
    for head in range(QUERY_HEADS):
        of_kv = head * HEADS // QUERY_HEADS
        stay = LABELS[:, None] == np.arange(CENTROIDS)
        stay[[1, 6]] &= of_kv != 0
        assert left.degree[0, head].tolist() == (stay.sum(0) * CHOSEN[head]).tolist()
        for number in np.flatnonzero(CHOSEN[head]):
            torch.testing.assert_close(left.keys[0, of_kv, number], keys[0, of_kv, stay[:, number]].mean(0))
            torch.testing.assert_close(left.values[0, of_kv, number], values[0, of_kv, stay[:, number]].mean(0))
        gone = (left.members[0, head] < 0).numpy()
        assert gone.tolist() == [not (CHOSEN[head, LABELS[t]] and stay[t].any()) for t in range(TOKENS)]


def test_steps_that_choose_among_the_same_centroids_share_them(tensors):
    _, keys, values = tensors
    merged = merged_of(keys, values)
    others = replace(merged, degree=merged.degree.flip(1))
    changed = replace(merged, values=merged.values + 1)
    indices = torch.zeros(1, QUERY_HEADS, 1, dtype=torch.int64)
    steps = [Selection(indices, merged=of_step) for of_step in (merged, others, None, changed)]
    attended = Attended.of(steps, QUERY_HEADS, TOKENS)
    assert attended.merged.keys.shape[2] == 2 * CENTROIDS
    sizes = torch.from_numpy(np.bincount(LABELS)).float()
    nothing, chosen = np.zeros_like(CHOSEN), [CHOSEN, CHOSEN[::-1], np.zeros_like(CHOSEN), CHOSEN]
    for step, (first, second) in enumerate(zip([*chosen[:3], nothing], [*[nothing] * 3, chosen[3]], strict=True)):
        expected = torch.from_numpy(np.concatenate([first, second], axis=1)) * sizes.repeat(2)
        assert torch.equal(attended.merged_mask[:, step].exp(), expected)


def per_query_head(**changes):
    """A recording whose layer 2 has two query heads per KV head, each with centroids of its own."""
    recording = synthetic.recording()
    events = recording.events[2]
    rows = {name: getattr(events, name).repeat(2, axis=1) for name in ("indices", "groups", "scores", "attention")}
    members = np.full((1, 4, 126), -1, np.int32)
    members[0, 0, 10:40], members[0, 1, 20:60], members[0, 3, 10:50] = 5, np.arange(40) // 20 * 5, 2
    merged = np.tile(np.array([1, 2, 0, 1], np.int32), (6, 1))
    fields = rows | {"merged": merged, "members": members, "members_of_step": np.zeros(6, np.int32)} | changes
    return recording.replace(events={2: replace(events, **fields)})


def test_recordings_hold_the_centroids_of_each_query_head(tmp_path):
    recording = Recording.load(per_query_head().save(tmp_path / "each"))
    assert recording.members(0, 2).shape == (4, 121)
    assert [recording.attended_centroids(0, 2, rows) for rows in ([0], [1], [0, 1], [2], [1, 3])] == [1, 2, 2, 0, 3]
    without = {"merged": np.zeros((6, 4), np.int32), "members": None, "members_of_step": None}
    alone = per_query_head(**without).attended_tokens(0, 2)
    assert (recording.attended_tokens(0, 2) - alone).tolist() == [2, 1]
    unknown = per_query_head(members=None, members_of_step=None)
    assert unknown.attended_centroids(0, 2, [0, 1, 3]) == 2 + 1
    with pytest.raises(IncompatibleFileError, match="not attended"):
        per_query_head(merged=np.tile(np.array([1, 1, 0, 1], np.int32), (6, 1)))
