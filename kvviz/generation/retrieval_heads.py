"""find_retrieval_heads(): gates of a model's KV heads, trained on passkeys. DuoAttention (arXiv 2410.10819)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..cache.attachment import attention_replaced
from ..cache.exact import exact_attention
from ..errors import InvalidInputError
from ..models import LanguageModel
from ..models.encoding import fed_ids
from ..models.provenance import installed, model_hash
from ..trace.head_gates import HeadGates

__all__ = ["find_retrieval_heads"]

OPERATION = "find_retrieval_heads"
WORDS = (
    "apple", "bridge", "candle", "desert", "engine", "forest", "garden", "hammer", "island", "jacket", "kitten",
    "ladder", "mirror", "needle", "orange", "pencil", "rabbit", "silver", "tunnel", "umbrella", "violin", "window",
)  # fmt: skip
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
DEPTHS = (0.05, 0.95)  # where in the text passkeys are hidden
SLOWEST = 0.1  # the least share of the learning rate, in the first and last fifth of the steps


def find_retrieval_heads(
    lm: LanguageModel,
    text: str,
    *,
    steps: int = 80,
    lengths: tuple[int, int] = (192, 256),
    passkeys: int = 3,
    words: int = 6,
    sinks: int = 4,
    recent: int = 24,
    penalty: float = 0.3,
    learning_rate: float = 0.05,
    seed: int = 0,
    progress: bool = True,
) -> HeadGates:
    """The gates of all KV heads of a model, for `duo_attention`: near 1 for heads that other tokens cannot replace.

    In every head, a gate α mixes the outputs of full attention and of attention to `sinks` and `recent` window:
    α · full + (1 − α) · streaming. All gates start at 1. Each of the `steps` feeds a prompt of `lengths` tokens: a
    stretch of `text` with `passkeys` of `words` random words hidden in it, followed by each one's introduction and its
    words again. The loss is the squared distance between the last hidden states of the mixed and of the full model at
    the repeated passkeys, plus `penalty` · gates. The weights of the model do not change, and its attention is restored
    at the end.

    Source: DuoAttention (arXiv 2410.10819), section 2.2, with its 2,000 steps on prompts of 1,000 to 32,000 tokens with
    10 passkeys of 32 words, 128 sinks and a window of 256, λ = 0.05, and AdamW with a learning rate of 0.02 that grows
    over the first fifth of the steps and falls over the last. The defaults here are scaled to what a CPU does in a few
    minutes; `penalty` is such that about half of SmolLM2-135M's gates end below 0.5. As in the published code, both
    terms of the loss are means, over channels and tokens and over heads.

    Deviations: both outputs of a head come from the states of the mixed model, as in the paper's equation 1; the
    published code takes full attention from the full model. The published code compares the introductions too.

    Measured with SmolLM2-135M: three numbers hidden in 700 tokens, half of the heads retrieving, 4 sinks and a window
    of 32. By its gates the log-probability of the answer stays within 0.2 of full attention's; with as many random
    heads (four draws) it falls by 5 to 17, with the other half of the heads by 13 to 16.

    Raises InvalidInputError for a number that is too small, more passkeys than ordinals, or a text too short for the
    prompts.
    """
    settings = {
        "steps": steps, "lengths": list(lengths), "passkeys": passkeys, "words": words, "sinks": sinks,
        "recent": recent, "penalty": penalty, "learning_rate": learning_rate,
    }  # fmt: skip
    _check(settings, lm.geometry.max_positions)
    rng = random.Random(seed)
    haystack = fed_ids(lm, text)
    geometry = lm.geometry
    gates = torch.ones(geometry.n_layers, geometry.n_kv_heads, device=lm.device, requires_grad=True)
    optimizer = torch.optim.AdamW([gates], lr=learning_rate, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _pace(step, steps))
    distances: list[float] = []
    with frozen(lm.model), torch.enable_grad(), tqdm(total=steps, desc="retrieval heads", disable=not progress) as bar:
        for _ in range(steps):
            prompt = passkey_prompt(lm, haystack, rng.randint(*lengths), passkeys, words, rng)
            distance = _distance(lm, prompt, gates, sinks, recent)
            optimizer.zero_grad()
            (distance + penalty * gates.mean()).backward()
            optimizer.step()
            scheduler.step()
            with torch.no_grad():
                gates.clamp_(0, 1)
            distances.append(float(distance.detach()))
            bar.set_postfix_str(f"distance {distances[-1]:.4f}, mean gate {float(gates.detach().mean()):.2f}")
            bar.update()
    last = distances[-max(steps // 10, 1) :]
    return HeadGates(
        tuple(tuple(round(gate, 4) for gate in layer) for layer in gates.tolist()),
        lm.name,
        model_hash(lm.model),
        seed,
        settings | {"text_hash": text_hash(text), "distance": round(sum(last) / len(last), 5)},
        {package: installed(package) for package in ("kvviz", "torch", "transformers")},
    )


@dataclass(frozen=True)
class PasskeyPrompt:
    """Token ids int64 [1, L] of a prompt, and the positions int64 [n] of its repeated passkeys."""

    ids: Tensor
    answers: Tensor


def passkey_prompt(
    lm: LanguageModel, haystack: list[int], length: int, passkeys: int, words: int, rng: random.Random
) -> PasskeyPrompt:
    """A prompt of `length` tokens: part of the haystack with passkeys hidden in it, and the passkeys once more.

    Raises InvalidInputError if the haystack or the length is too short.
    """
    intros = [fed_ids(lm, f"\n\nThe {ORDINALS[number]} passkey is:") for number in range(passkeys)]
    keys = [fed_ids(lm, "".join(f" {rng.choice(WORDS)}" for _ in range(words))) for _ in range(passkeys)]
    end, before = fed_ids(lm, ".\n\n"), lm.encode("")[0].tolist()
    needles = [[*intro, *key, *end] for intro, key in zip(intros, keys, strict=True)]
    questions = sum(len(intro) + len(key) for intro, key in zip(intros, keys, strict=True))
    room = length - len(before) - sum(map(len, needles)) - questions
    if not 2 * passkeys <= room <= len(haystack):
        wanted = f"a length of more than {length - room + 2 * passkeys} tokens, and a text of {max(room, 0)} or more"
        raise InvalidInputError(OPERATION, f"length {length} and a text of {len(haystack)} tokens", wanted)
    start = rng.randrange(len(haystack) - room + 1)
    places = sorted(rng.sample(range(int(DEPTHS[0] * room), max(int(DEPTHS[1] * room), passkeys)), passkeys))
    ids, previous = list(before), 0
    for place, needle in zip(places, needles, strict=True):
        ids += [*haystack[start + previous : start + place], *needle]
        previous = place
    ids += haystack[start + previous : start + room]
    answers: list[int] = []
    for number in rng.sample(range(passkeys), passkeys):
        ids += intros[number]
        answers += range(len(ids) - 1, len(ids) + len(keys[number]) - 1)  # what predicts each word of the passkey
        ids += keys[number]
    return PasskeyPrompt(torch.tensor([ids], device=lm.device), torch.tensor(answers, device=lm.device))


def text_hash(text: str) -> str:
    """BLAKE2b hash of a text: 16 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def mixed_attention(gates: Tensor, sinks: int, recent: int) -> Any:
    """An attention function that mixes full and streaming attention in each head by its gate; gates [layers, H]."""

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *args: Any, **kwargs: Any
    ) -> Tensor:
        visible = streaming_mask(query.shape[2], key.shape[2], sinks, recent, query.device)
        visible = visible if mask is None else visible & mask
        full = exact_attention(module, query, key, value, mask, *args, **kwargs)
        streaming = exact_attention(module, query, key, value, visible, *args, **kwargs)
        layer: Any = module.layer_idx
        gate = gates[layer].repeat_interleave(query.shape[1] // key.shape[1])[:, None].to(full.dtype)  # [Q, 1]
        return gate * full + (1 - gate) * streaming

    return attend


def streaming_mask(new: int, length: int, sinks: int, recent: int, device: torch.device) -> Tensor:
    """Which keys the last `new` queries attend to, bool [1, 1, new, length]: sinks and the last `recent`, causally."""
    keys = torch.arange(length, device=device)
    queries = torch.arange(length - new, length, device=device)[:, None]
    return ((keys <= queries) & ((keys < sinks) | (keys > queries - recent)))[None, None]


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No parameter of the model gets a gradient within the block."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def _distance(lm: LanguageModel, prompt: PasskeyPrompt, gates: Tensor, sinks: int, recent: int) -> Tensor:
    """Mean squared distance between the last hidden states of mixed and of full attention, at the passkeys."""
    backbone = lm.model.base_model
    with torch.no_grad():
        full = backbone(prompt.ids, use_cache=False).last_hidden_state[0, prompt.answers]
    with attention_replaced(lm.model, mixed_attention(gates, sinks, recent)):
        mixed = backbone(prompt.ids, use_cache=False).last_hidden_state[0, prompt.answers]
    distance: Tensor = (mixed.float() - full.float()).pow(2).mean()
    return distance


def _pace(step: int, steps: int) -> float:
    """The share of the learning rate at a step: it grows over the first fifth and falls over the last."""
    fifth = max(steps // 5, 1)
    return min(1.0, max((step + 1) / fifth, SLOWEST), max((steps - step) / fifth, SLOWEST))


def _check(settings: dict[str, Any], max_positions: int) -> None:
    least = {"steps": 1, "passkeys": 1, "words": 1, "sinks": 0, "recent": 1, "penalty": 0, "learning_rate": 0}
    for name, lowest in least.items():
        if not settings[name] >= lowest:
            raise InvalidInputError(f"{OPERATION}: {name}", settings[name], f"at least {lowest}")
    if settings["passkeys"] > len(ORDINALS):
        raise InvalidInputError(f"{OPERATION}: passkeys", settings["passkeys"], f"at most {len(ORDINALS)}")
    shortest, longest = settings["lengths"]
    if not shortest <= longest <= max_positions:
        wanted = f"the shortest and the longest, at most the model's {max_positions} positions"
        raise InvalidInputError(f"{OPERATION}: lengths", settings["lengths"], wanted)
