"""Where a token was lost: known causes come out as what they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kvviz.methods import create, get, names
from kvviz.methods.attention import attention_weights
from kvviz.methods.checks import smallest
from kvviz.methods.checks.explaining import the_ranking_explains_the_selection
from kvviz.methods.checks.steps import build_state, random_tensors
from kvviz.methods.ranking import Ranking
from kvviz.methods.selection import member_mask, reduce_group
from kvviz.methods.stages import StepStages, take
from kvviz.trace.outcomes import OUTCOMES

LENGTH = 257


def seen(method, spoil=None, keys=None, budget=None):
    """The stages of one step, after `spoil(state)`; and its exact weights [R, N]."""
    queries, random_keys, values = random_tensors(6, 2, LENGTH + 1)
    keys = random_keys if keys is None else keys
    state = build_state(method, queries[:, :, :LENGTH], keys[:, :, :LENGTH], values[:, :, :LENGTH])
    if spoil is not None:
        state = spoil(state) or state
    state = method.extend(state, queries[:, :, LENGTH:], keys[:, :, LENGTH:], values[:, :, LENGTH:])
    query = queries[:, :, LENGTH]
    selection = method.select(state, query)
    kept = method.keeps(state)
    attended = member_mask(selection.indices, LENGTH + 1)[0]
    kept = torch.ones_like(attended) if kept is None else member_mask(kept, LENGTH + 1)[0]
    weights = reduce_group(attention_weights(query, keys, state.layer.scale), 2, "mean")
    scores = torch.where(attended, selection.scores.new_zeros(()), -torch.inf)[None]
    ranking = method.ranking(state, query, keys) or Ranking(scores, weights, weights)
    return StepStages(ranking, attended, kept, weights[0], attended.sum(-1)), state


def wanted(stages):
    """The wanted tokens that were not attended to, by row."""
    best = take(stages.weights, torch.ones_like(stages.kept), stages.entries)
    return [np.flatnonzero(row) for row in (best & ~stages.attended).numpy()]


def outcomes(stages):
    """How often each outcome befell the wanted tokens that were lost."""
    everything = stages.outcome(list(range(LENGTH + 1)))
    lost = np.concatenate([everything[row, tokens] for row, tokens in enumerate(wanted(stages))])
    return {name: int((lost == name).sum()) for name in OUTCOMES if (lost == name).any()}


def test_evicted_tokens_are_not_kept():
    method = create("snapkv", budget=60, recent=16)
    assert list(outcomes(seen(method)[0])) == ["not kept"]


def test_tokens_that_the_window_leaves_no_room_for_are_crowded_out():
    roomy = create("pqcache", budget=60, sinks=4, recent=8, recent_share=0.0, n_bits=8, n_partitions=8, max_iter=50)
    crowded = replace(roomy, recent=48)
    assert outcomes(seen(crowded)[0]).get("crowded out", 0) > 3 * outcomes(seen(roomy)[0]).get("crowded out", 0)


def test_clusters_that_are_shuffled_group_badly():
    method = create("clusterkv", budget=80, dense_layers=0, n_clusters=16)

    def shuffle(state):
        """Other tokens in each cluster, whose centroids are the means of these."""
        _, keys, _ = random_tensors(6, 2, LENGTH + 1)
        state.order = state.order[..., torch.randperm(state.clustered, generator=torch.Generator().manual_seed(3))]
        ranking = method.ranking(state, torch.zeros(1, 6, 16), keys[:, :, :LENGTH])
        for head in range(2):
            for cluster in range(16):
                members = keys[0, head, :LENGTH][ranking.groups[0, head] == cluster]
                state.centroids[0, head, cluster] = members.mean(0)

    found = outcomes(seen(method, shuffle)[0])
    # the rest: the mean of logits over the group ranks them lower than the mean of weights does
    assert found["badly grouped"] > 3 * found.get("badly scored", 0), found
    assert found["badly grouped"] > outcomes(seen(method)[0])["badly grouped"]


def test_centroids_of_other_clusters_score_badly():
    method = create("clusterkv", budget=80, dense_layers=0, n_clusters=16)

    def stale(state):
        state.centroids = state.centroids.flip(2)

    assert outcomes(seen(method, stale)[0])["badly scored"] > outcomes(seen(method)[0]).get("badly scored", 0)


def test_noise_on_codes_scores_badly():
    method = create("pqcache", budget=60, sinks=4, recent=8, recent_share=0.0, n_bits=8, n_partitions=8, max_iter=50)

    def noise(state):
        (book,) = state.books
        generator = torch.Generator().manual_seed(0)
        book.codes.copy_(torch.randint(0, 250, book.codes.shape, generator=generator))

    plain, noisy = (outcomes(seen(method, spoil)[0]) for spoil in (None, noise))
    assert noisy["badly scored"] > 2 * plain.get("badly scored", 0)
    assert set(noisy) <= {"badly scored", "crowded out"}


def test_a_budget_one_below_trims_the_last_token_of_the_last_cluster():
    method = create("clusterkv", budget=80, dense_layers=0, n_clusters=16)
    stages, state = seen(method)
    ranking, ranked = stages.ranking, stages.ranked
    whole = take(ranking.scores[0], ranked, (stages.attended & ranked).sum(-1), ranking.groups[0], trim=False)
    size = int((whole & ranked)[0].sum())  # with so many ranked tokens, the last cluster of head 0 is whole
    fixed = 80 - int((stages.attended & ranked)[0].sum())
    for budget, outcome in ((fixed + size, "attended"), (fixed + size - 1, "trimmed")):
        again, _ = seen(replace(method, budget=budget))
        last = np.flatnonzero((whole & ranked)[0] & (ranking.groups[0, 0] == last_group(stages)))[-1]
        heavy = again.weights.clone()
        heavy[0, last] = 2.0  # wanted, whatever its key
        assert replace(again, weights=heavy).outcome([int(last)])[0, 0] == outcome
    assert state.clustered > 200


def last_group(stages):
    """The lowest-ranked cluster that head 0 attends to."""
    scores = torch.where(stages.attended[0] & stages.ranked[0], stages.ranking.scores[0, 0], torch.inf)
    return stages.ranking.groups[0, 0, scores.argmin()]


@pytest.mark.parametrize("stage", ["grouping", "ranking"])
def test_exact_pages_by_brute_force(stage):
    method = create("quest", budget=96, dense_layers=0, page_size=8)
    stages, _ = seen(method)
    ranking = stages.ranking
    for row in range(2):
        ranked = np.flatnonzero(stages.ranked[row])
        count = int((stages.attended & stages.ranked)[row].sum())
        if stage == "grouping":
            best = sorted(ranked, key=lambda token: (-float(ranking.alone[0, row, token]), token))[:count]
        else:
            pages = sorted({int(ranking.groups[0, row, token]) for token in ranked},
                           key=lambda page: -float(ranking.exact[0, row, page * 8]))  # fmt: skip
            best = [token for page in pages[: count // 8] for token in range(page * 8, page * 8 + 8)]
        expected = {*best} | {*np.flatnonzero(stages.attended[row] & ~stages.ranked[row])}
        assert {*np.flatnonzero(stages.exact_at(stage)[row])} == expected


def test_everything_exact_is_the_oracle():
    stages, _ = seen(create("snapkv", budget=60, recent=16))
    best = take(stages.weights, torch.ones_like(stages.kept), stages.entries)
    assert torch.equal(stages.exact_at("kept"), best)


def test_scores_ranks_and_cuts_by_brute_force():
    stages, _ = seen(create("pqcache", budget=60))
    tokens = [0, 30, 99, LENGTH]
    scores, ranks, cuts = stages.ranks(tokens)
    for row in range(2):
        own = stages.ranking.scores[0, row].double().numpy()
        chosen = (stages.attended & stages.ranked)[row].numpy()
        assert np.isnan(scores[row, [0, 3]]).all()  # a sink and the newest token
        assert np.isnan(ranks[row, [0, 3]]).all()
        for place in (1, 2):
            assert ranks[row, place] == 1 + (own > own[tokens[place]]).sum()
            assert scores[row, place] == own[tokens[place]]
            assert cuts[row, place] == own[chosen].min()


def test_a_ranking_that_says_otherwise_is_found():
    class Wrong(get("pqcache")):
        def ranking(self, state, queries, keys):
            ranking = super().ranking(state, queries, keys)
            return replace(ranking, scores=-ranking.scores)

    with pytest.raises(AssertionError, match="other tokens than its ranking says"):
        the_ranking_explains_the_selection(Wrong)


def test_stages_are_known_names():
    assert {stage for name in names() for stage in get(name).stages} == {"kept", "grouping", "ranking", "trimming"}


@pytest.mark.parametrize("name", [name for name in names() if get(name).kind == "retrieval"])
def test_every_retrieval_method_tells_its_ranking(name):
    method = smallest(get(name))
    queries, keys, values = random_tensors(6, 2, LENGTH)
    state = build_state(method, queries, keys, values)
    last = queries[:, :, -1]
    method.select(state, last)
    assert method.ranking(state, last, keys) is not None
