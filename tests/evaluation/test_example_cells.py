"""One sample of evaluate(): its cells give the answers of generate() and of a simple loop."""

from __future__ import annotations

import pytest
import torch

import kvviz
from kvviz import tasks
from kvviz.cache.attachment import attached
from kvviz.tasks.prompts import render
from tests.tiny_models import letters_tokenizer, make

METHODS = ("full", "quest", "clusterkv", "snapkv", "h2o", "streaming_llm", "pqcache", "centroidkv")
BUDGET, LENGTH = 160, 500
CHATML = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}{% if add_generation_prompt %}> {% endif %}"


@pytest.fixture
def tiny():
    tokenizer = letters_tokenizer()
    tokenizer.chat_template = CHATML
    model = make("llama")
    model.generation_config.eos_token_id = None  # a random model would end most answers at once
    return kvviz.LanguageModel(model, tokenizer, "tiny")


def method_of(name):
    return kvviz.methods.create(name, **({} if name == "full" else {"budget": BUDGET}))


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["after", "last"])
def test_answers_equal_generate(tiny, placement):
    task = tasks.create("needle", placement=placement)
    table = kvviz.evaluate(tiny, [task], METHODS, [BUDGET], [LENGTH], samples=1, seed=2)
    sample = task.sample(tiny, LENGTH, 0, 2)
    prompt, turn = render(tiny, sample, placement), sample.turns[0]
    rows = {row["method"]: row for row in table.to_dict("records")}
    assert set(rows) == set(METHODS)
    for name, row in rows.items():
        out = kvviz.generate(
            tiny, prompt.text, method_of(name), question=prompt.turns[0] or None, max_new_tokens=turn.max_new_tokens
        )
        assert row["text"] == out.text, name
        assert row["metadata_bytes"] == out.ledger.metadata_bytes, name
        assert (row["attended_tokens"], row["peak_bytes"]) == (out.ledger.attended, out.ledger.peak_bytes), name
        assert row["ttft_s"] > 0
        assert (row["tpot_s"] > 0) == (row["tt2t_s"] > row["ttft_s"]) == (len(out.token_ids) > 1)
        assert row["score"] == task.score(turn, out.text)
        assert row["depth"] == 0.05
    assert len({row["text"] for row in rows.values()}) > 3, "the methods should not all write the same"


class ByHand:
    """A loop that feeds tokens one by one to one cache."""

    def __init__(self, lm, method, prompt_ids):
        self.lm, self.cache = lm, kvviz.SelectiveCache(lm.model, method)
        self.logits = self.feed(prompt_ids)

    def feed(self, ids):
        tokens = torch.tensor([ids])
        self.logits = self.lm.model(tokens, past_key_values=self.cache, use_cache=True).logits[0, -1]
        return self.logits

    def feed_each(self, ids):
        for token in ids:
            self.feed([token])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ends", "placement"),
    [("full", False, "last"), ("quest", True, "after"), ("clusterkv", False, "after"), ("snapkv", True, "last")],
)
def test_turns_share_one_cache(tiny, name, ends, placement):
    task = tasks.create("needle_multi_turn", turns=3, placement=placement)
    sample = task.sample(tiny, LENGTH, 0, 0)
    prompt = render(tiny, sample, placement)
    ids = tiny.tokenizer(prompt.text).input_ids

    def answers(stop):
        token_ids = []
        with torch.no_grad(), attached(tiny.model):
            hand = ByHand(tiny, method_of(name), ids)
            for words, turn in zip(prompt.turns, sample.turns, strict=True):
                hand.feed_each(tiny.tokenizer(words).input_ids if words else [])
                written = [int(hand.logits.argmax())]
                while len(written) < turn.max_new_tokens and written[-1] != stop:
                    hand.feed([written[-1]])
                    written.append(int(hand.logits.argmax()))
                if written[-1] != stop:
                    hand.feed([written[-1]])  # the next turn reads the answer, but not its end token
                token_ids.append(written)
        return token_ids

    written = answers(None)
    if ends:  # a token of the first answer ends all answers
        tiny.model.generation_config.eos_token_id = written[0][3]
        written = answers(written[0][3])
        assert len(written[0]) <= 4
    expected = [tiny.tokenizer.decode(ids, skip_special_tokens=True) for ids in written]
    table = kvviz.evaluate(tiny, [task], [method_of(name)], [BUDGET], [LENGTH], samples=1)
    assert table["turn"].tolist() == [0, 1, 2]
    assert table["text"].tolist() == expected


@pytest.mark.parametrize("name", ["quest", "snapkv", "streaming_llm"])
def test_likelihood_equals_feeding_tokens_one_by_one(tiny, name):
    task = tasks.create("perplexity", tokens=12)
    (score,) = kvviz.evaluate(tiny, [task], [name], [BUDGET], [LENGTH], samples=1)["score"]
    sample = task.sample(tiny, LENGTH, 0, 0)
    *ids, last = tiny.tokenizer(sample.context).input_ids
    total = 0.0
    with torch.no_grad(), attached(tiny.model):
        hand = ByHand(tiny, method_of(name), ids)
        for token in tiny.tokenizer(sample.turns[0].answers[0]).input_ids:
            total -= hand.feed([last]).double().log_softmax(-1)[token].item()
            last = token
    assert score == pytest.approx(total / 12, abs=1e-5)
