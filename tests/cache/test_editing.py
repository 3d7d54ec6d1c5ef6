"""Edits of what decode steps attend to, for every method, against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

import kvviz
from kvviz import drop, exact, group, only, pin, replace
from kvviz.errors import InvalidInputError
from kvviz.generation.teacher_forcing import ForcedAnswer
from kvviz.methods import checks
from tests.tiny_models import letters_tokenizer, make, prompt

LENGTH, STEPS, LAYERS, HEADS = 150, 6, 4, 2
PINNED = (37, 38, 90)
METHODS = [name for name in kvviz.methods.names() if name not in ("full", "minference")]
MERGING = [name for name in METHODS if kvviz.methods.get(name).kind == "merging"]


@pytest.fixture(scope="module")
def tiny():
    return kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")


def smallest(name):
    """The smallest budget that the common checks give a method, with some room, and no dense layers."""
    if name == "ctkvr":  # its default sinks and window would cover the prompt
        return kvviz.methods.create(name, budget=40, sinks=4, recent=8)
    method = checks.smallest(kvviz.methods.get(name))
    budget = method.budget + 8 if isinstance(method.budget, int) else 40
    return kvviz.methods.create(name, **{**method.config, "budget": budget, "dense_layers": 0})


@pytest.fixture(scope="module")
def trace(tiny):
    return kvviz.capture(tiny, prompt(LENGTH + STEPS))


def recorded(trace, method, edit=None):
    """The recording of some steps, whose queries do not depend on the edit."""
    return kvviz.replay(trace, method, queries=STEPS, edit=edit)


def cells(recording):
    return [(step, layer) for layer in recording.layers for step in range(recording.steps)]


def row(tokens, number):
    """The attended positions of one row, without pads."""
    return tokens[number][tokens[number] >= 0]


@pytest.mark.parametrize("name", METHODS)
def test_pinned_tokens_displace_the_lowest_ranked(trace, name):
    method = smallest(name)
    plain, pinned = recorded(trace, method), recorded(trace, method, pin(PINNED))
    assert pinned.edit == pin(PINNED)
    for step, layer in cells(plain):
        scores, indices = plain.scores(step, layer), plain.indices(step, layer)
        for number in range(len(indices)):
            before, after = set(row(indices, number)), set(row(pinned.indices(step, layer), number))
            lost, missing = before - after, len(set(PINNED) - before)
            assert set(PINNED) <= after
            assert len(lost) == missing
            score = dict(zip(indices[number].tolist(), scores[number].tolist(), strict=True))
            unranked = {token for token in before if np.isnan(score[token])}
            ranked = sorted(score[token] for token in before - unranked - set(PINNED) - {LENGTH + step})
            assert sorted(score[token] for token in lost - unranked) == ranked[:missing]
            assert not lost & {*range(method.sinks), LENGTH + step}  # sinks and the step's own token stay


@pytest.mark.parametrize("name", METHODS)
def test_extra_pins_come_on_top_in_some_layers_heads_and_steps(trace, name):
    method = smallest(name)
    edit = pin(PINNED, layers=[1], heads=[1], steps=[2], budget="extra")
    plain, pinned = recorded(trace, method), recorded(trace, method, edit)
    rows = len(plain.indices(2, 1))
    for cell in cells(plain):
        for number in range(rows):
            added = set(PINNED) if cell == (2, 1) and number >= rows // 2 else set()
            assert set(row(pinned.indices(*cell), number)) == set(row(plain.indices(*cell), number)) | added


@pytest.mark.parametrize("name", ["full", *METHODS])
def test_dropped_tokens_are_not_attended_to(trace, name):
    method = kvviz.methods.create("full") if name == "full" else smallest(name)
    dropped = range(LENGTH - 40, LENGTH - 2)
    recording = recorded(trace, method, drop(dropped))
    assert recording.layers == tuple(range(LAYERS))
    for cell in cells(recording):
        assert not set(dropped) & set(recording.indices(*cell).ravel())
        members = recording.members(*cell)
        assert members is None or (members[:, list(dropped)] == -1).all()


STAGED = [(name, stage) for name in METHODS for stage in kvviz.methods.get(name).stages]


@pytest.mark.parametrize(("name", "stage"), STAGED)
def test_a_replaced_stage_attends_to_as_many_tokens_in_these_heads_only(trace, name, stage):
    method = smallest(name)
    plain = recorded(trace, method)
    replaced = recorded(trace, method, replace(stage, layers=[1, 2], heads=[0]))
    rows = len(plain.indices(0, 1)) // HEADS
    oracle = recorded(trace, method, exact(layers=[1, 2], heads=[0]))
    for step, layer in cells(plain):
        before, after = plain.indices(step, layer), replaced.indices(step, layer)
        for number in range(len(before)):
            was, now = set(row(before, number)), set(row(after, number))
            if layer not in (1, 2) or number >= rows:
                assert now == was
            elif stage == "trimming":
                assert now >= was
            elif stage == "kept":
                assert now == set(row(oracle.indices(step, layer), number))
            elif not plain.members(step, layer).max() >= 0:
                assert len(now) == len(was)


@pytest.mark.parametrize("name", ["pqcache", "quest", "clusterkv", "ctkvr"])
def test_replaced_stages_rank_by_exact_scores(trace, name):
    """Against NumPy: the best single tokens by the exact score that the method's own stands for."""
    method = smallest(name)
    stage = "ranking" if name == "pqcache" else "grouping"
    plain, replaced = recorded(trace, method), recorded(trace, method, replace(stage))
    group = trace.geometry.n_heads // trace.geometry.n_kv_heads
    for step, layer in cells(plain):
        now = LENGTH + step
        query, keys = (tensor.astype(np.float64) for tensor in (trace.queries[layer][:, now], trace.keys[layer]))
        logits = np.einsum("qd,hnd->qhn", query, keys[:, : now + 1]) / trace.geometry.head_dim**0.5
        for head in range(HEADS):
            own = logits[head * group : (head + 1) * group, head]
            weights = np.exp(own - own.max(-1, keepdims=True))
            score = weights / weights.sum(-1, keepdims=True) if name in ("pqcache", "ctkvr") else own
            score = {"mean": score.mean(0), "max": score.max(0), "sum": score.sum(0)}[method.group]
            ranked = ~np.isnan(plain.scores(step, layer)[head])
            was, count = plain.indices(step, layer)[head], ranked.sum()
            always = set(was[~ranked & (was >= 0)].tolist())
            free = [place for place in range(now + 1) if place not in always]
            if name == "ctkvr":  # the window's tokens are not ranked either, even where the lists are short
                free = [place for place in free if place < now + 1 - method.recent or place in was]
            best = sorted(free, key=lambda place: -score[place])[:count]
            found = set(row(replaced.indices(step, layer), head).tolist()) - always
            assert len(found) == count
            assert score[list(found)].min() >= score[best[-1]] - 1e-2 * abs(score[best[-1]])  # 16 bits in the trace


@pytest.mark.parametrize("name", METHODS)
def test_a_stage_that_a_method_does_not_have_is_refused(trace, name):
    missing = sorted({"kept", "grouping", "ranking", "trimming"} - set(kvviz.methods.get(name).stages))
    for stage in missing:
        with pytest.raises(InvalidInputError, match=f"replace: stage: got '{stage}'; wanted .*the stages of {name}"):
            recorded(trace, smallest(name), replace(stage))


def logits_of_steps(lm, ids, hidden):
    """transformers' own logits of the steps, which do not see the `hidden` positions; the prompt does."""
    length, n = LENGTH, ids.shape[1]
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    seen[length:, list(hidden)] = False
    with torch.no_grad():
        return lm.model(ids, attention_mask=seen[None, None]).logits[0, length - 1 :].double().log_softmax(-1)


@pytest.mark.parametrize("hidden", [(), (5,), range(30, 80)])
def test_full_attention_with_dropped_tokens_is_that_of_transformers_with_a_mask(tiny, hidden):
    answer = "sixteen"
    ids = torch.cat([prompt(LENGTH), tiny.encode(answer)], dim=1)
    expected = logits_of_steps(tiny, ids, hidden)
    score = kvviz.score(tiny, prompt(LENGTH), answer, "full", edit=drop(hidden) if hidden else None)
    true = [float(expected[place, token]) for place, token in enumerate(ids[0, LENGTH:].tolist())]
    np.testing.assert_allclose(score.logprobs, true, atol=1e-5)
    assert score.tokens == list(answer)
    assert score.total == pytest.approx(sum(true))


@pytest.mark.parametrize("name", METHODS)
def test_exact_heads_give_full_attentions_log_probabilities(tiny, name):
    forced = ForcedAnswer(tiny, prompt(LENGTH), "nine", " code is ")
    method, full = smallest(name), forced.score(kvviz.methods.create("full")).logprobs
    np.testing.assert_allclose(forced.score(method, exact(by="full")).logprobs, full, atol=1e-4)
    np.testing.assert_allclose(forced.score(method, only(layers=[3], heads=[0], steps=[999])).logprobs,
                               forced.score(method).logprobs, atol=1e-6)  # fmt: skip
    both = exact(layers=[0, 1], by="full") | exact(layers=[2, 3], heads=[0, 1], by="full")
    np.testing.assert_allclose(forced.score(method, both).logprobs, full, atol=1e-4)
    assert np.abs(forced.score(method).logprobs - full).max() > 1e-3  # the method does lose something here


@pytest.mark.parametrize("name", METHODS)
def test_the_oracle_in_one_head(trace, name):
    recording = recorded(trace, smallest(name), exact(layers=[1], heads=[1]))
    for step in range(recording.steps):
        rows = range(len(recording.indices(step, 1)))
        for number in rows[len(rows) // 2 :]:
            got = row(recording.indices(step, 1), number)
            weights = recording.attention(step, 1)[number]
            assert set(got) == set(np.argsort(-weights, kind="stable")[: len(got)])
    assert recording.merged_share(0, 1)[rows[len(rows) // 2 :]].max() == 0


@pytest.mark.parametrize("name", METHODS)
def test_only_leaves_the_method_its_heads(trace, name):
    method = smallest(name)
    plain, edited = recorded(trace, method), recorded(trace, method, only(layers=[0], heads=[1]))
    for step, layer in cells(edited):
        indices = edited.indices(step, layer)
        for number in range(len(indices)):
            if layer == 0 and number >= len(indices) // 2:
                assert set(row(indices, number)) == set(row(plain.indices(step, 0), number))
            else:
                assert row(indices, number).tolist() == list(range(edited.visible(step)))


@pytest.mark.parametrize("name", MERGING)
def test_a_pinned_token_leaves_its_centroid(trace, name):
    method = smallest(name)
    plain = recorded(trace, method)
    token = int(np.flatnonzero(plain.members(0, 0)[0] >= 0)[5])
    pinned = recorded(trace, method, pin([token], budget="extra"))
    for step in range(STEPS):
        members = plain.members(step, 0)[0]
        others = [other for other in np.flatnonzero(members == members[token]) if other != token]
        left = pinned.members(step, 0)[0]
        assert left[token] == -1
        assert token in pinned.indices(step, 0)[0]
        assert len({*left[others]}) == bool(others)
        assert (left >= 0).sum() == (members >= 0).sum() - 1


def test_a_centroid_without_a_token_is_the_mean_of_the_others():
    from kvviz.cache.edited_choice import _without
    from kvviz.clustering.merged import Merged
    from kvviz.offload.device_store import DeviceStore

    rng = torch.Generator().manual_seed(0)
    keys, values = torch.randn(1, 2, 9, 4, generator=rng), torch.randn(1, 2, 9, 4, generator=rng)
    members = torch.tensor([[0, 0, 1, 0, 2, -1, 1, -1], [1, 0, 0, 2, 2, 2, -1, -1]], dtype=torch.int32)[None]

    def merge(members):
        """Means and degrees by brute force, empty centroids left out."""
        found = [
            [(keys[0, head, of == c].mean(0), values[0, head, of == c].mean(0), int((of == c).sum())) for c in range(3)]
            for head, of in enumerate(torch.nn.functional.pad(members[0], (0, 1), value=-1))
        ]
        return [[entry for entry in head if entry[2]] for head in found]

    means = merge(members)
    merged = Merged(
        *(torch.stack([torch.stack([entry[part] for entry in head]) for head in means])[None] for part in (0, 1)),
        torch.tensor([[entry[2] for entry in head] for head in means], dtype=torch.int32)[None],
        members,
    )
    out = torch.zeros(1, 2, 9, dtype=torch.bool)
    out[0, 0, [1, 4, 5]] = True  # one of three, the only one of its centroid, and one that is in none
    out[0, 1, [0, 8]] = True
    store = DeviceStore()
    store.append(keys, values)
    left = _without(merged, out, store)
    expected = merge(torch.where(out[..., :8], -1, members))
    for head in range(2):
        real = left.degree[0, head] > 0
        assert left.degree[0, head, real].tolist() == [entry[2] for entry in expected[head]]
        torch.testing.assert_close(left.keys[0, head, real], torch.stack([entry[0] for entry in expected[head]]))
        torch.testing.assert_close(left.values[0, head, real], torch.stack([entry[1] for entry in expected[head]]))
        for token, number in enumerate(left.members[0, head].tolist()):
            assert number == -1 or left.degree[0, head, number] > 0
            assert (number == -1) == (out[0, head, token] or members[0, head, token] == -1)


@pytest.mark.parametrize("name", ["snapkv", "h2o", "streaming_llm", "centroidkv"])
def test_pinned_tokens_are_kept_when_others_are_freed(tiny, name):
    method = smallest(name)
    cache = kvviz.SelectiveCache(tiny.model, method, edit=pin(PINNED, layers=[1]))
    kvviz.attach(tiny.model)
    try:
        tiny.model.generate(prompt(LENGTH), past_key_values=cache, max_new_tokens=80, do_sample=False, pad_token_id=0)
    finally:
        kvviz.detach(tiny.model)
    with_pins, without = (cache.selective_layers[layer].store for layer in (1, 0))
    assert without.used <= with_pins.used <= without.used + len(PINNED) < with_pins.length


def in_a_batch(lm, method, rows, edit, *, new=8):
    """What each prompt is answered in a batch, padded on the left, as lists of ids."""
    longest = max(row.shape[1] for row in rows)
    pads = [longest - row.shape[1] for row in rows]
    padded = torch.cat([torch.nn.functional.pad(row, (pad, 0)) for row, pad in zip(rows, pads, strict=True)])
    mask = torch.stack([(torch.arange(longest) >= pad).long() for pad in pads])
    kvviz.attach(lm.model)
    try:
        out = lm.model.generate(
            padded, attention_mask=mask, past_key_values=kvviz.SelectiveCache(lm.model, method, edit=edit),
            max_new_tokens=new, do_sample=False, pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
    finally:
        kvviz.detach(lm.model)
    return out[:, longest:].tolist()


@pytest.mark.parametrize("name", ["clusterkv", "snapkv", "centroidkv", "quest"])
def test_rows_of_a_batch_are_edited_from_their_first_real_token(tiny, name):
    method = smallest(name)
    edit = pin(PINNED, layers=[0, 1]) | drop([20, 21, 22]) | exact(layers=[3], heads=[0])
    edit |= replace(method.stages[-1], layers=[2])
    rows = [prompt(LENGTH), prompt(LENGTH - 13, seed=2)]
    alone = [in_a_batch(tiny, method, [row], edit)[0] for row in rows]
    assert in_a_batch(tiny, method, rows, edit) == alone


@pytest.mark.parametrize("padding", [0, 13])
@pytest.mark.parametrize("name", ["clusterkv", "snapkv", "h2o", "centroidkv", "squeezed_attention", "ctkvr"])
def test_each_row_of_a_batch_has_its_own_edit(tiny, name, padding):
    method = smallest(name)
    room = method.budget_tokens(LENGTH) - method.sinks - 1

    def placed(*where):
        one = pin(range(40, 40 + room), layers=[0, 1], **where[0]) | exact([3], [1], **where[0])
        two = pin(range(90, 90 + room), layers=[0, 1], **where[-1]) | drop(range(100, 140), layers=[2], **where[-1])
        return one, two | replace(method.stages[0], layers=[3], **where[-1])

    rows = [prompt(LENGTH), prompt(LENGTH - padding, seed=2), prompt(LENGTH, seed=3)]
    apart = placed({})
    alone = [in_a_batch(tiny, method, [row], edit)[0] for row, edit in zip(rows, [*apart, None], strict=True)]
    assert alone[0] != in_a_batch(tiny, method, rows[:1], None)[0]
    assert alone[1] != in_a_batch(tiny, method, rows[1:2], None)[0]
    one, two = placed({"rows": [0]}, {"rows": [1]})
    assert in_a_batch(tiny, method, rows, one | two) == alone


def test_a_row_outside_the_batch_is_refused(tiny):
    rows = [prompt(LENGTH), prompt(LENGTH, seed=2)]
    with pytest.raises(InvalidInputError, match=r"drop: rows: got 2; wanted 0 to 1: the batch has 2 sequences"):
        in_a_batch(tiny, "full", rows, drop([20], rows=[2]))
    crowded = pin(range(40, 90), layers=[2], rows=[1])
    with pytest.raises(InvalidInputError, match=r"pin: got 50 tokens in layer 2, head 0, row 1; wanted at most"):
        in_a_batch(tiny, kvviz.methods.create("snapkv", budget=40, sinks=3, recent=8), rows, crowded)


@pytest.mark.parametrize("store", ["host", "disk"])
@pytest.mark.parametrize("name", ["clusterkv", "pqcache", "ctkvr", "infllm"])
def test_edits_are_the_same_with_offloaded_tokens(tiny, name, store):
    edit = pin(PINNED, layers=[0]) | drop([60], heads=[0]) | exact(layers=[2], by="full")
    method = smallest(name)
    outs = [
        kvviz.generate(tiny, prompt(LENGTH), method, max_new_tokens=5, store=place, record=True, edit=edit).recording
        for place in ("device", store)
    ]
    for cell in cells(outs[0]):
        np.testing.assert_array_equal(outs[0].indices(*cell), outs[1].indices(*cell))


def test_more_pins_than_budget_are_refused_before_decoding(tiny):
    edit = pin(range(40, 90), layers=[2])
    wanted = r"pin: got 50 tokens in layer 2, head 0; wanted at most 36 of a budget of 40, or budget='extra'"
    with pytest.raises(InvalidInputError, match=wanted):
        kvviz.generate(tiny, prompt(LENGTH), "snapkv", 40, sinks=3, recent=8, edit=edit)
    kvviz.generate(tiny, prompt(LENGTH), "snapkv", 40, sinks=3, recent=8, max_new_tokens=2,
                   edit=pin(range(40, 90), layers=[2], budget="extra"))  # fmt: skip


def test_text_needs_a_prompt_and_is_found_by_what_has_one(tiny):
    text = "".join(tiny.tokens(prompt(LENGTH)))
    wanted = text[50:56]
    with pytest.raises(InvalidInputError, match="SelectiveCache: edit: got tokens given as text"):
        kvviz.SelectiveCache(tiny.model, "quest", edit=pin(wanted))
    out = kvviz.generate(tiny, prompt(LENGTH), smallest("quest"), max_new_tokens=2, record=True, edit=pin(wanted))
    assert out.recording.edit == pin(range(50, 56))


@pytest.mark.parametrize("name", ["clusterkv", "quest", "ctkvr"])
def test_a_group_is_that_of_the_recording(tiny, trace, name):
    """The tokens that a recording shows of a group are among those of `group`, and all of these are attended to."""
    method = smallest(name)
    out = kvviz.generate(tiny, prompt(LENGTH), method, max_new_tokens=3, record=True).recording
    layer, head = 2, 1
    groups, indices = out.groups(0, layer)[head], out.indices(0, layer)[head]
    named = group(layer, head, int(groups.max()))
    members = set(indices[groups == named.number].tolist())
    edit = pin(named, layers=[0, 1], budget="extra")
    pinned = kvviz.generate(tiny, prompt(LENGTH), method, max_new_tokens=3, record=True, edit=edit).recording
    (part,) = pinned.edit.parts
    assert members <= set(part.tokens)
    for step in range(pinned.steps):
        for other in (0, 1):
            for number in range(len(pinned.indices(step, other))):
                assert set(part.tokens) <= set(row(pinned.indices(step, other), number))
    dropped = kvviz.score(tiny, prompt(LENGTH), "four", method, edit=drop(named))
    by_position = kvviz.score(tiny, prompt(LENGTH), "four", method, edit=drop(part.tokens))
    np.testing.assert_array_equal(dropped.logprobs, by_position.logprobs)
    assert recorded(trace, method, drop(named)).edit == drop(part.tokens)  # the same text, captured


def test_groups_that_do_not_exist_are_refused(tiny, trace):
    with pytest.raises(InvalidInputError, match="group: got number 9999 in layer 2, head 1, of quest"):
        recorded(trace, smallest("quest"), pin(group(2, 1, 9999)))
    with pytest.raises(InvalidInputError, match="group: got number 0 in layer 2, head 0, of snapkv; wanted a group"):
        kvviz.generate(tiny, prompt(LENGTH), smallest("snapkv"), edit=pin(group(2, 0, 0)))
    with pytest.raises(InvalidInputError, match="group: heads: got 2; wanted 0 to 1"):
        kvviz.generate(tiny, prompt(LENGTH), smallest("quest"), edit=pin(group(2, 2, 0)))
    with pytest.raises(InvalidInputError, match="group: layer: got -1"):
        group(-1, 0, 0)
    with pytest.raises(InvalidInputError, match="got tokens given as"):
        kvviz.SelectiveCache(tiny.model, "quest", edit=pin(group(2, 0, 0)))


def test_a_recording_keeps_its_edit_in_a_file(trace, tmp_path):
    edit = pin(PINNED, steps=[1]) | exact(layers=[3])
    recording = recorded(trace, smallest("quest"), edit)
    assert kvviz.Recording.load(recording.save(tmp_path / "edited.safetensors")).edit == edit


def test_compare_edits_every_method(tiny):
    table = kvviz.compare(tiny, prompt(LENGTH), ["full", "quest"], [48], max_new_tokens=3, edit=drop(range(30, 60)))
    for recording in table.recordings.values():
        for cell in cells(recording):
            assert not set(range(30, 60)) & set(recording.indices(*cell).ravel())


def test_a_reset_cache_keeps_its_edit(tiny):
    cache = kvviz.SelectiveCache(tiny.model, "full", edit=drop([7], layers=[1]))
    cache.reset()
    assert [layer.edit is not None for layer in cache.selective_layers] == [False, True, False, False]
    assert isinstance(cache, transformers.Cache)
