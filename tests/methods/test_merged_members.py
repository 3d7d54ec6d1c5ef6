"""Members of merged centroids: after each round, with left padding, in recordings and in files."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad

import kvviz
from kvviz import Recording
from kvviz.cache.layer_cache import LayerCache
from kvviz.clustering.merged import Merged, stack_merged
from kvviz.errors import IncompatibleFileError, InvalidInputError
from kvviz.metrics import Verdict, member_mask
from tests import synthetic
from tests.methods.test_centroidkv import CONTEXT, SMALL, tensors
from tests.trace.test_trace import mapped

DETAILED = replace(CONTEXT, details=True)


@settings(max_examples=25)
@given(
    st.integers(100, 300),
    st.sampled_from([2, 7, 32, None]),
    st.floats(0.1, 1),
    st.integers(60, 80),
    st.sampled_from([0, 4]),
    st.integers(0, 1000),
)
def test_after_each_round_a_centroid_is_the_mean_of_its_members(length, chunk_size, ratio, budget, sinks, seed):
    """The paper's weighted mean of keys and of values over all rounds. The degree is the number of members."""
    fields = SMALL | {"budget": budget, "sinks": sinks, "chunk_size": chunk_size}
    method = kvviz.methods.create("centroidkv", initial_ratio=ratio, least_ratio=ratio / 2, **fields)
    _, keys, values = tensors(length + 20, seed)
    rounds, one_round = [], method._round

    def recorded(*args):
        rounds.append(one_round(*args))
        return rounds[-1]

    method._round = recorded
    state = method.build(DETAILED, keys[:, :, :0], keys[:, :, :length], values[:, :, :length])
    built = len(rounds)
    for position in range(length, length + 20):
        new = slice(position, position + 1)
        state = method.extend(state, keys[:, :, :0], keys[:, :, new], values[:, :, new])
    assert len(rounds) > built > 0, "nothing was merged while decoding"
    for merged, head in itertools.product(rounds, range(2)):
        members, degree = merged.members[0, head].long(), merged.degree[0, head]
        assert torch.equal(members.bincount(minlength=len(degree)), degree.long())
        for means, raw in ((merged.keys, keys), (merged.values, values)):
            sums = torch.zeros_like(means[0, head]).index_add_(0, members, raw[0, head, sinks:][: len(members)])
            assert torch.allclose(means[0, head], sums / degree[:, None], atol=1e-5)


@pytest.fixture
def trace():
    rng = np.random.default_rng(0)
    arrays = {
        name: {layer: rng.normal(size=(heads, 260, 16)).astype(np.float16) for layer in (1, 4)}
        for name, heads in (("queries", 6), ("keys", 2), ("values", 2))
    }
    tokens = [f" {position}" for position in range(260)]
    return kvviz.Trace("tiny", kvviz.Geometry(8, 6, 2, 16, 512), tokens, np.arange(260), **arrays)


@pytest.mark.parametrize("group", ["mean", "each"])
def test_each_visible_token_is_attended_to_or_a_member(trace, tmp_path, group):
    saved = kvviz.replay(trace, "centroidkv", queries=60, group=group, **SMALL)
    recording = Recording.load(saved.save(tmp_path / "merged.safetensors"))
    for layer, step in itertools.product((1, 4), range(60)):
        members, visible = recording.members(step, layer), recording.visible(step)
        assert members.shape == (6 if group == "each" else 2, visible)
        np.testing.assert_array_equal(members < 0, member_mask(recording.indices(step, layer), visible))
        centroid_counts = [len(np.unique(row[row >= 0])) for row in members[:: len(members) // 2]]
        assert centroid_counts == recording.events[layer].merged[step].tolist()
    for events in recording.events.values():
        assert events.members_of_step.tolist() == [0] * 15 + [1] * 16 + [2] * 16 + [3] * 13  # decode_interval 16
        assert not np.array_equal(events.members[0], events.members[1])


@pytest.mark.parametrize("group", ["mean", "each"])
def test_attention_mass_is_the_overlap_of_the_two_attentions(trace, group):
    """1 minus the total variation distance, per query head, and recall of the oracle's tokens by token.

    The method's attention over single tokens, in float64: a centroid of m tokens counts m times, with their mean key.
    """
    recording = kvviz.replay(trace, "centroidkv", queries=20, group=group, **SMALL)
    for step, head in itertools.product((0, 19), range(2)):
        visible = recording.visible(step)
        rows = slice(head * 3, head * 3 + 3) if group == "each" else slice(head, head + 1)
        members = recording.members(step, 4)[rows][0]
        keys = trace.keys[4][head, :visible].astype(float)
        centroid_keys = keys.copy()
        for centroid in range(members.max() + 1):
            centroid_keys[members == centroid] = keys[members == centroid].mean(0)
        queries = trace.queries[4][head * 3 : head * 3 + 3, recording.prompt_length + step].astype(float)
        exact, given = (np.exp(queries @ tensor.T / 4) for tensor in (keys, centroid_keys))
        exact, given = (weights / weights.sum(-1, keepdims=True) for weights in (exact, given))
        overlap = 1 - np.abs(exact - given).sum(-1) / 2
        shares = np.minimum(exact, given), exact
        if group == "mean":
            overlap, shares = overlap.mean(keepdims=True), [part.mean(0, keepdims=True) for part in shares]
        np.testing.assert_allclose(recording.attention_mass(step, 4)[rows], overlap, atol=1e-3)
        best = np.argsort(-shares[1], axis=-1)[:, : (members < 0).sum() + 44]  # 44 centroids
        recalls = np.take_along_axis(shares[0] / shares[1], best, -1).mean(-1)
        np.testing.assert_allclose(recording.recall(step, 4)[rows], recalls, atol=1e-3)
        merged_away = (recording.agreement(step, 4)[rows] == Verdict.MERGED_AWAY).sum(-1)
        taken = np.take_along_axis((shares[0] / shares[1] >= 0.5) & (members >= 0), best, -1).sum(-1)
        assert np.abs(merged_away - taken).max() <= 1, "shares near 0.5 may be rounded"
        assert taken.min() > 0


def test_no_token_is_a_member_if_nothing_is_merged(trace):
    """No members with a method that evicts tokens, nor with CentroidKV within the budget."""
    for method, budget in (("snapkv", 96), ("centroidkv", 250)):
        recording = kvviz.replay(trace, method, queries=30, budget=budget)
        assert recording.events[4].members is None
        np.testing.assert_array_equal(recording.members(29, 4), np.full((2, 260), -1))
    late = kvviz.replay(trace, "centroidkv", queries=60, **SMALL | {"budget": 220})
    assert late.events[4].members_of_step.tolist() == [-1] * 35 + [0] * 16 + [1] * 9  # at 236 tokens, and 16 later
    assert [bool((late.members(step, 4) >= 0).any()) for step in range(60)] == [False] * 35 + [True] * 25


def test_members_are_unknown_if_the_method_does_not_report_them(trace, monkeypatch):
    method = kvviz.methods.create("centroidkv", **SMALL)
    merged = type(method).merged
    monkeypatch.setattr(type(method), "merged", lambda self, state: replace(merged(self, state), members=None))
    recording = kvviz.replay(trace, method, queries=3)
    assert (recording.events[4].merged == 44).all()
    assert recording.members(0, 4) is None


def test_members_that_change_between_merges_are_stored_again(trace, monkeypatch):
    method = kvviz.methods.create("centroidkv", **SMALL)
    merged = type(method).merged

    def renumbered(self, state):
        original = merged(self, state)
        reversed_order = torch.where(original.members < 0, -1, 43 - original.members)
        return replace(original, members=reversed_order) if state.length == 259 else original

    monkeypatch.setattr(type(method), "merged", renumbered)
    recording = kvviz.replay(trace, method, queries=4)
    assert recording.events[4].members_of_step.tolist() == [0, 0, 1, 2]
    first, reversed_members, last = (recording.members(step, 4)[:, :257] for step in (1, 2, 3))
    np.testing.assert_array_equal(first, last)
    np.testing.assert_array_equal(reversed_members, np.where(first < 0, -1, 43 - first))


def test_members_move_with_left_padding():
    def members(rows, starts):
        layer = LayerCache(DETAILED, kvviz.methods.create("centroidkv", **SMALL))
        keys, values = (torch.cat(parts) for parts in zip(*rows, strict=True))
        layer.store.append(keys[:, :, :-1], values[:, :, :-1])
        layer.build(starts)
        layer.store.append(keys[:, :, -1:], values[:, :, -1:])
        layer.decode(torch.ones(len(rows), 6, 16))
        return layer.last.merged.members

    long, short = tensors(221)[1:], tensors(191, seed=1)[1:]
    padded = [pad(tensor, (0, 0, 30, 0)) for tensor in short]
    alone = pad(members([short], None)[0], (30, 0), value=-1)
    assert torch.equal(members([padded], [30])[0], alone)
    assert torch.equal(members([long, padded], [0, 30]), torch.stack([members([long], None)[0], alone]))


def test_a_row_without_centroids_leaves_the_members_of_the_others():
    keys = torch.randn(1, 2, 3, 4)
    members = torch.tensor([[[0, 1, -1, 2, 0], [1, 1, 2, 0, -1]]], dtype=torch.int32)
    merged = Merged(keys, keys, torch.tensor([[[2, 1, 1], [1, 2, 1]]], dtype=torch.int32), members)
    stacked = stack_merged([None, merged], [3, 1])
    assert stacked.degree.tolist() == [[[0] * 3] * 2, merged.degree[0].tolist()]
    assert stacked.members.tolist() == [[[-1] * 6] * 2, pad(members, (1, 0), value=-1)[0].tolist()]
    assert stack_merged([replace(merged, members=None), merged], [0, 0]).members is None


def merging(**changes):
    """A recording: layer 2 merges tokens 4 to 99 into 3 centroids before step 1, and 4 to 109 again before step 4."""
    recording = synthetic.recording()
    members = np.full((2, 2, 126), -1, np.int32)
    members[0, :, 4:100], members[1, :, 4:110] = np.arange(96) // 32, np.arange(106) // 36
    merged = np.full((6, 2), 3, np.int32)
    merged[0] = 0
    fields = {"merged": merged, "members": members, "members_of_step": np.array([-1, 0, 0, 0, 1, 1], np.int32)}
    share = np.where(members[fields["members_of_step"]] >= 0, 0.25, 0).astype(np.float16)
    share[0] = 0
    fields["merged_share"] = share
    return recording.replace(events=recording.events | {2: replace(recording.events[2], **fields | changes)})


def test_members_are_saved_and_files_without_them_still_load(tmp_path):
    recording = merging()
    loaded = Recording.load(recording.save(tmp_path / "new"))
    assert mapped(loaded.events[2].members)
    for step, index in enumerate((None, 0, 0, 0, 1, 1)):
        expected = np.full((2, 126), -1) if index is None else recording.events[2].members[index]
        np.testing.assert_array_equal(loaded.members(step, 2), expected[:, : 121 + step])
        np.testing.assert_array_equal(loaded.members(step, 3), np.full((2, 121 + step), -1))
    unknown = {"members": None, "members_of_step": None, "merged_share": None}
    old = Recording.load(merging(**unknown).save(tmp_path / "old"))
    assert old.members(0, 2).max() == -1
    assert old.members(1, 2) is None, "merged tokens, but unknown which"
    attended = member_mask(old.indices(3, 2), 124)
    alone = [weights[chosen].sum() for weights, chosen in zip(old.attention(3, 2), attended, strict=True)]
    np.testing.assert_allclose(old.attention_mass(3, 2), alone, rtol=1e-6)
    shares = 6 * 2 * 126 * 2
    assert (tmp_path / "new").stat().st_size - (tmp_path / "old").stat().st_size < 2 * 2 * 126 * 4 + shares + 500


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"merged_share": np.full((6, 2, 126), 1.5, np.float16)}, "0 to 1"),
        ({"merged_share": np.zeros((6, 2, 125), np.float16)}, "merged_share: got"),
        ({"members_of_step": None}, "both or neither"),
        ({"members": None}, "both or neither"),
        ({"members": np.zeros((2, 2, 125), np.int32)}, r"members: got int32 \[2, 2, 125\]"),
        ({"members": np.zeros((), np.int32)}, r"members: got int32 \[\]"),
        ({"members_of_step": np.zeros(5, np.int32)}, "members_of_step: got"),
        ({"members_of_step": np.full(6, 2, np.int32)}, "wanted -1 to 1"),
        ({"members_of_step": np.zeros(6, np.int32)}, "not attended"),  # step 0 attends to no centroid
        ({"members": np.full((2, 2, 126), -2, np.int32)}, "not attended"),
        ({"members": np.full((2, 2, 126), 3, np.int32)}, "not attended"),
        ({"members": np.zeros((2, 2, 126), np.int32)}, "centroid of visible tokens"),  # token 125 before the last step
    ],
)
def test_inconsistent_members_are_refused(changes, message):
    with pytest.raises(IncompatibleFileError, match=rf"events\[2\].*{message}"):
        merging(**changes)


def test_a_cut_equals_the_same_steps_of_the_whole():
    whole = merging().replace(question_length=3)
    part = whole.cut(2, 5)
    assert (part.prompt_length, part.question_length, part.steps) == (122, 1, 3)
    assert part.tokens == whole.tokens[:125]
    assert part.next_tokens == whole.next_tokens[2:5]
    slots = part.events[2].indices.shape[-1]
    assert slots == (whole.events[2].indices[4] >= 0).sum(-1).max() < whole.events[2].indices.shape[-1]
    for step, layer in itertools.product(range(3), (2, 3)):
        for name in ("indices", "groups", "scores"):
            np.testing.assert_array_equal(
                getattr(part, name)(step, layer), getattr(whole, name)(step + 2, layer)[:, :slots]
            )
        for name in ("visible", "attention", "members", "merged_share", "recall", "attended_tokens"):
            layers = () if name == "visible" else (layer,)
            np.testing.assert_array_equal(getattr(part, name)(step, *layers), getattr(whole, name)(step + 2, *layers))
    assert whole.cut(0, 1).events[2].members is None
    assert whole.cut(5, 6).events[2].members.shape == (1, 2, 126)
    for start, stop in ((-1, 2), (3, 3), (4, 7)):
        with pytest.raises(
            InvalidInputError, match=f"cut of a recording: got {start} to {stop}; wanted a part of 0 to 6"
        ):
            whole.cut(start, stop)
