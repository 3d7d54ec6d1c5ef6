"""DuoAttention: what each head attends to, against masks and SDPA; gates; streaming heads over other methods."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import kvviz
from kvviz.cache.attachment import attached
from kvviz.cache.layer_cache import LayerCache
from kvviz.errors import IncompatibleFileError, InvalidInputError
from kvviz.generation.teacher_forcing import ForcedAnswer
from kvviz.methods import Method, checks, create, get
from kvviz.methods.checks.steps import build_state, decode_step, random_tensors
from kvviz.methods.duo_attention import retrieval_heads
from kvviz.methods.selection import member_mask
from kvviz.methods.stages import step_stages
from kvviz.models.provenance import model_hash
from kvviz.tasks.needle import needle_samples
from kvviz.trace.head_gates import HeadGates
from tests import tiny_models
from tests.methods.stepped import HEADS, SCALE, context, softmax, stepped, tensors

ROOT = Path(__file__).parents[2]
SINKS, RECENT = 4, 12
LAYER, LAYERS = 4, 8  # of `context`
OTHERS = (
    "quest",
    "clusterkv",
    "oracle",
    "sparq",
    "magicpig",
    "pqcache",
    "ctkvr",
    "infinigen",
    "twilight(quest)",
    "retroinfer",
    "multipole",
)


def gates_of(n_kv_heads: int, retrieving: set[int]) -> list[list[float]]:
    """Gates of 1 for these heads of the tested layer, and for as many heads of others that half of all are 1."""
    gates = [[0.0] * n_kv_heads for _ in range(LAYERS)]
    gates[LAYER] = [float(head in retrieving) for head in range(n_kv_heads)]
    free = [(layer, head) for layer in range(LAYERS) if layer != LAYER for head in range(n_kv_heads)]
    for layer, head in free[: LAYERS * n_kv_heads // 2 - len(retrieving)]:
        gates[layer][head] = 1.0
    return gates


def made(name: str = "full", **fields):
    return create("duo_attention", over=name, **{"budget": 96, "sinks": SINKS, "recent": RECENT, **fields})


def kinds(n_kv_heads: int) -> list[set[int]]:
    """Every other head, none, and all of them."""
    return [set(range(0, n_kv_heads, 2)), set(), set(range(n_kv_heads))]


def output_of(method: Method, n_heads: int, n_kv_heads: int, length: int = 300):
    """What a layer's decode step returns [Q, D], its selection, and the queries, keys and values it saw."""
    q, k, v = tensors(n_heads, n_kv_heads, length + 1)
    layer = LayerCache(context(n_heads, n_kv_heads), method)
    layer.store.append(k[:, :, :length], v[:, :, :length])
    layer.keep_queries(q[:, :, :length])
    layer.build()
    layer.store.append(k[:, :, length:], v[:, :, length:])
    return layer.decode(q[:, :, length])[0], layer.last, q[0, :, length], k[0], v[0]


def attended_by(q, keys, values, mask):
    """SDPA of one query head over the tokens in a mask bool [L]."""
    return scaled_dot_product_attention(q[None], keys, values, mask[None], scale=SCALE)[0]


@pytest.mark.parametrize("group", ["mean", "each"])
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), HEADS)
def test_each_head_attends_to_its_tokens(n_heads, n_kv_heads, group):
    for retrieving in kinds(n_kv_heads):
        method = made(gates=gates_of(n_kv_heads, retrieving), group=group)
        if len(retrieving) == n_kv_heads:
            assert method.is_dense(LAYER), "the model's own attention does all of it"
            continue
        output, selection, q, k, v = output_of(method, n_heads, n_kv_heads)
        for head in range(n_heads):
            kv_head = head // (n_heads // n_kv_heads)
            mask = torch.zeros(301, dtype=torch.bool)
            if kv_head in retrieving:
                mask[:] = True
            mask[:SINKS] = mask[301 - RECENT :] = True
            torch.testing.assert_close(output[head], attended_by(q[head], k[kv_head], v[kv_head], mask))
        if not retrieving:
            assert selection.indices.shape[-1] == SINKS + RECENT, "only what is attended to is read"


def per_kv_head(indices, n_kv_heads):
    """Which of 301 tokens the query heads of each KV head attend to, bool [H, 301]."""
    return member_mask(indices, 301)[0].unflatten(0, (n_kv_heads, -1)).any(1)


@pytest.mark.parametrize("group", ["mean", "each"])
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), HEADS)
def test_streaming_heads_are_the_same_over_every_method(name, n_heads, n_kv_heads, group):
    """No bias, value correction or centroid of the wrapped method reaches them; retrieval heads have its choice."""
    fields = {"mean_value": True, "group": group} if name == "sparq" else {"group": group}
    retrieving = kinds(n_kv_heads)[0]
    method = made(name, gates=gates_of(n_kv_heads, retrieving), **fields)
    output, selection, q, k, v = output_of(method, n_heads, n_kv_heads)
    streamed = torch.zeros(301, dtype=torch.bool)
    streamed[:SINKS] = streamed[301 - RECENT :] = True
    plain = create(name, budget=96, sinks=SINKS, recent=RECENT, **fields)
    expected, chosen, *_ = output_of(plain, n_heads, n_kv_heads)
    tokens = per_kv_head(selection.indices, n_kv_heads)
    for head in range(n_heads):
        kv_head = head // (n_heads // n_kv_heads)
        if kv_head not in retrieving:
            torch.testing.assert_close(output[head], attended_by(q[head], k[kv_head], v[kv_head], streamed))
            assert torch.equal(tokens[kv_head], streamed)
            continue
        torch.testing.assert_close(output[head], expected[head], rtol=1e-4, atol=1e-5)
        assert torch.equal(tokens[kv_head], per_kv_head(chosen.indices, n_kv_heads)[kv_head])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.75, 1.0])
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), HEADS)
def test_without_gates_heads_that_look_far_back_are_retrieval_heads(n_heads, n_kv_heads, share):
    """The heads of the most attention outside sinks and all windows of the last 64 queries, by loops in NumPy."""
    method, state, q, k, _ = stepped("duo_attention", n_heads, n_kv_heads, 200, sinks=SINKS, recent=RECENT, share=share)
    q, k = q[0].double().numpy(), k[0].double().numpy()
    outside = np.zeros(n_kv_heads)
    for head in range(n_heads):
        kv_head = head // (n_heads // n_kv_heads)
        for position in range(200 - 64, 200):
            weights = softmax(k[kv_head, : position + 1] @ q[head, position] * SCALE)
            outside[kv_head] += weights[SINKS : 200 - 64 - RECENT + 1].sum()
    count = -(-round(share * n_kv_heads * 100) // 100)
    best = set(np.argsort(-outside, kind="stable")[:count].tolist())
    lengths = (method.select(state, torch.zeros(1, n_heads, 16)).indices[0] >= 0).sum(-1).tolist()
    assert lengths == [201 if head in best else SINKS + RECENT for head in range(n_kv_heads)]


def test_every_prompt_of_a_batch_has_its_own_retrieval_heads():
    q, k, v = tensors(4, 4, 200, batch=2)
    k[0, 0] = k[1, 3] = 0  # even attention, most of it outside the window
    k[0, 1:], k[1, :3] = 0, 0
    k[0, 1:, -70:] = k[1, :3, -70:] = 3 * q[:1, :1, -1:].abs()
    q = q.abs()
    method = made(share=0.25)
    state = method.build(context(4, 4), q, k, v)
    chosen = method.select(state, q[:, :, -1])
    counts = (chosen.indices >= 0).sum(-1)
    assert counts.argmax(-1).tolist() == [0, 3]
    assert (counts == 200).sum(-1).tolist() == [1, 1]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5, 0.52, 1.0])
def test_the_share_of_all_heads_with_the_largest_gates(share):
    gates = np.random.default_rng(0).integers(0, 4, (5, 3)) / 3  # many ties
    heads = sorted((-gates[i, j], i, j) for i in range(5) for j in range(3))
    wanted = {(i, j) for _, i, j in heads[: int(share * 15 + 0.5)]}
    told = retrieval_heads(tuple(map(tuple, gates.tolist())), share)
    assert {(i, j) for i in range(5) for j in range(3) if told[i][j]} == wanted


class TestGates:
    GATES = ((0.25, 1.0), (0.5, 0.0))

    def stored(self, gates=GATES) -> HeadGates:
        return HeadGates(gates, "tiny", "0" * 16, 3, {"steps": 2}, {"torch": "2"})

    def test_numbers_objects_and_files_are_the_same(self, tmp_path):
        path = self.stored().save(tmp_path / "gates.json")
        given = (self.GATES, [[0.25, 1], [0.5, 0]], self.stored(), path, str(path))
        methods = [create("duo_attention", gates=gates) for gates in given]
        assert all(method == methods[0] for method in methods)
        assert methods[0].gates == self.GATES, "the numbers are kept, not the path"
        assert create("duo_attention", **json.loads(json.dumps(methods[0].config))) == methods[0]

    @pytest.mark.parametrize(
        ("gates", "said"),
        [
            ([], "one list of numbers"),
            ([0.5, 0.5], "one list of numbers"),
            ([[0.5], [0.5, 0.5]], "layers of different lengths"),
            ([[0.5, 1.5]], "got 1.5 in layer 0, head 1"),
            ([[0.5], [float("nan")]], "got nan in layer 1, head 0"),
            ([[True]], "got True"),
            (0.5, "got float 0.5"),
        ],
    )
    def test_what_is_no_gate_is_refused(self, gates, said):
        with pytest.raises(InvalidInputError, match=said):
            create("duo_attention", gates=gates)

    def test_a_file_of_another_kind_is_refused(self, tmp_path):
        (tmp_path / "gates.json").write_text('{"kind": "poem"}')
        with pytest.raises(IncompatibleFileError, match="another kind"):
            create("duo_attention", gates=tmp_path / "gates.json")
        with pytest.raises(FileNotFoundError, match=r"none\.json"):
            create("duo_attention", gates="none.json")

    def test_gates_of_another_model_are_refused(self):
        method = create("duo_attention", gates=self.GATES)
        with pytest.raises(InvalidInputError, match="got 2 layers of 2 heads; wanted the model's 8 of 2 KV heads"):
            build_state(method, *random_tensors(6, 2, 20))

    def test_a_layer_of_retrieval_heads_only_is_dense_over_full_attention(self):
        full, quest = ([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]] for _ in range(2))
        assert [made(gates=full).is_dense(layer) for layer in range(3)] == [True, False, False]
        assert [made("quest", gates=quest, dense_layers=1).is_dense(layer) for layer in range(3)] == [
            True,
            False,
            False,
        ]

    def test_queries_are_needed_only_without_gates(self):
        assert made().needs_queries
        assert not made(gates=self.GATES).needs_queries
        assert made("ctkvr", gates=self.GATES, budget=512).needs_queries


def test_the_official_window_leaves_out_the_steps_own_token():
    """256 cached tokens and the new one, after 64 sinks."""
    for preset, window in (("paper", 256), ("official", 257)):
        method = create("duo_attention", preset=preset, share=0.0)
        _, selection = decode_step(method, build_state(method, *random_tensors(6, 2, 500)), 6, 2, seed=0)
        assert selection.indices[0, 0].tolist() == [*range(64), *range(501 - window, 501)]


def test_a_streaming_head_has_no_room_for_other_tokens():
    """A diagnosis says of a wanted token that sinks and window crowded it out; retrieval heads attend to it."""
    for name in ("full", "quest"):
        method = made(name, gates=gates_of(2, {0}))
        q, k, v = tensors(6, 2, 301)
        k[:, :, 150] = 4 * q[:, ::3, 300]  # wanted by all
        q[:, 1:3, 300], q[:, 4:, 300] = q[:, :1, 300], q[:, 3:4, 300]
        state = method.build(context(6, 2), q[:, :, :300], k[:, :, :300], v[:, :, :300])
        state = method.extend(state, q[:, :, 300:], k[:, :, 300:], v[:, :, 300:])
        query, layer = q[:, :, 300], state.layer
        logits = torch.einsum("bhgd,bhld->bhgl", query.unflatten(1, (2, 3)), k) * layer.scale
        weights = logits.softmax(-1).flatten(1, 2)
        (stages,) = step_stages(method, state, query, k, method.select(state, query), weights)
        assert stages.outcome([0, 150]).tolist() == [["attended", "attended"], ["attended", "crowded out"]], name


def test_a_window_that_holds_all_tokens_leaves_nothing_to_rank():
    """Quest then has no page."""
    method = made("quest", gates=gates_of(2, {0}), recent=200, budget=400)
    q, k, v = tensors(6, 2, 100)
    state = method.build(context(6, 2), q, k, v)
    assert method.select(state, q[:, :, -1]).indices.tolist() == [[list(range(100))] * 2]
    assert bool(method.ranking(state, q[:, :, -1], k).scores.isnan().all())


def test_a_later_prompt_keeps_the_heads():
    method = made("pqcache", cluster_each_turn=True)
    q, k, v = random_tensors(6, 2, 400)
    state = build_state(method, q[:, :, :300], k[:, :, :300], v[:, :, :300])
    heads = state.extras["duo_attention"].clone()
    later = method.continue_prompt(state, q[:, :, 300:], k[:, :, 300:], v[:, :, 300:])
    assert torch.equal(later.extras["duo_attention"], heads)


@pytest.mark.parametrize("name", ["full", "quest", "clusterkv", "pqcache", "twilight(quest)"])
def test_common_checks_with_a_window_that_is_smaller_than_the_prompts(name):
    """The default window holds the checks' prompts; what a streaming head must leave out is expected to fail."""
    outer = get(f"duo_attention({name})")

    @dataclass
    class Small(outer):
        sinks: int = SINKS
        recent: int = RECENT

        expected_failures: ClassVar = {
            **outer.expected_failures,
            "full_budget_attends_everything": "streaming heads leave tokens out at any budget",
            "extension_equals_one_build": "the last queries of the prompt decide which heads retrieve",
        }
        presets: ClassVar = {"paper": {"sinks": SINKS, "recent": RECENT}}
        builds_for_any_budget = outer.builds_for_any_budget

    checks.run(Small)


@pytest.mark.parametrize("name", ["snapkv", "streaming_llm", "centroidkv", "minference", "adakv"])
def test_what_makes_no_choice_per_step_is_refused(name):
    with pytest.raises(InvalidInputError, match="a method that chooses among all tokens"):
        create("duo_attention", over=name)


@pytest.mark.parametrize("name", ["duo_attention", "duo_attention(quest)"])
def test_a_model_generates_the_same_from_the_host_and_in_a_padded_batch(name):
    lm = kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer())
    method = create(name, budget=128, sinks=SINKS, recent=RECENT)
    ids = tiny_models.prompt(300)
    device, host = (
        kvviz.generate(lm, ids, method=method, store=store, max_new_tokens=8) for store in ("device", "host")
    )
    assert device.token_ids == host.token_ids
    assert host.ledger.moved_bytes > 0
    batch = torch.cat([torch.cat([torch.zeros(1, 50, dtype=ids.dtype), ids[:, 50:]], 1), ids])
    mask = torch.ones_like(batch)
    mask[0, :50] = 0
    alone = [ids[:, 50:], ids]
    with attached(lm.model):
        caches = [kvviz.SelectiveCache(lm.model, method) for _ in range(3)]
        options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
        together = lm.model.generate(batch, attention_mask=mask, past_key_values=caches[0], **options)
        for row in range(2):
            expected = lm.model.generate(alone[row], past_key_values=caches[1 + row], **options)
            assert together[row, -8:].tolist() == expected[0, -8:].tolist()


@pytest.mark.model
def test_heads_found_by_the_calibration_answer_where_as_many_others_do_not(lm, prose):
    """The log-probability of a number hidden in 700 tokens, with half of the heads retrieving: by the stored gates, by
    the same gates given to random heads, and by the other half of the heads."""
    stored = HeadGates.load(ROOT / "data" / "gates" / "smollm2-135m.json")
    assert stored.model_hash == model_hash(lm.model)
    shape = np.shape(stored.gates)
    shuffled = [np.random.default_rng(seed).permutation(np.ravel(stored.gates)).reshape(shape) for seed in range(3)]
    other_gates = [gates.tolist() for gates in (1 - np.array(stored.gates), *shuffled)]
    distances = []
    for sample in needle_samples(lm, prose, count=2, tokens=700, seed=5):
        forced = ForcedAnswer(lm, sample.context, sample.answer, sample.question, retain_queries=False)
        full = forced.score(create("full")).total
        methods = [create("duo_attention", gates=gates, sinks=SINKS, recent=32) for gates in (stored, *other_gates)]
        distances.append([abs(forced.score(method).total - full) for method in methods])
    by_gates, others = np.array(distances)[:, 0], np.array(distances)[:, 1:]
    assert by_gates.max() < 1, distances
    assert (by_gates < others.min(1)).all(), distances
    assert others.mean() > 8, distances
