"""The recorded data: one function per result, which `make data` and live notebooks call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvviz.models.provenance import hardware
from kvviz.trace import Recording, Trace

if TYPE_CHECKING:
    import pandas as pd

    from kvviz.methods.base import Method
    from kvviz.models import LanguageModel
    from kvviz.trace.timeline import Timeline

Kind = Literal["trace", "recordings", "diagnoses", "timelines", "table"]
SEVERAL: tuple[Kind, ...] = ("recordings", "diagnoses", "timelines")  # their recipes return several, by label

MODEL = "smollm2-135m"
MODEL_LICENCE = "Apache-2.0"
TEXT = "pydoc_data.topics, Python's reference manual, sections in alphabetical order"
TEXT_LICENCE = "PSF-2.0, copyright Python Software Foundation"
SEED = 0

PROSE_TOKENS, PROSE_LAYERS = 2048, (14,)
LAYERS_TOKENS, LAYERS = 640, (2, 8, 20, 26)
# In layers 21 and 23, some query heads give most of their attention to the hidden number while the model writes it.
# Steps before the first token of the answer are left out, to keep the files below 5 MB.
NEEDLE_LAYERS, NEEDLE_BUDGET, NEEDLE_STEPS, NEEDLE_NEW_TOKENS = (21, 23), 256, 15, 16
# All methods select per KV head and count question and answer in the budget, so that a KV head reads 256 tokens at most
# (more with CentroidKV, which merges every 64 steps). ClusterKV's preset "official" selects per query head.
NEEDLE_AFTER = 4500  # characters before the hidden sentence
NEEDLE_METHODS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "clusterkv, 400 clusters": ("clusterkv", {"n_clusters": 400, "decode_interval": None}),
    "clusterkv, L/80 clusters": ("clusterkv", {"decode_interval": None}),
    "pqcache": ("pqcache", {}),
    "ctkvr": ("ctkvr", {}),
    "centroidkv": ("centroidkv", {}),
    "quest": ("quest", {}),
    "streaming_llm": ("streaming_llm", {}),
}
DECODE_TOKENS, DECODE_LAYERS, DECODE_BUDGET, DECODE_STEPS = 1024, (14,), 128, 48
TABLE_TOKENS, TABLE_LAYERS, TABLE_STEPS, TABLE_BUDGET = 2048, (5, 15, 25), 32, 256
SYSTEMS = ("clusterkv", "pqcache", "ctkvr", "centroidkv", "quest")
NEEDLES_LENGTHS, NEEDLES_BUDGETS, NEEDLES_SAMPLES, NEEDLES_NEW_TOKENS = (500, 1000), (64, 128, 256), 6, 6
PERPLEXITY_METHODS = ("full", "clusterkv", "pqcache", "quest", "streaming_llm")
PERPLEXITY_TOKENS, PERPLEXITY_STEPS, PERPLEXITY_BUDGET = 768, 384, 128
OVERLAP_METHODS, OVERLAP_TOKENS, OVERLAP_BUDGET, OVERLAP_STEPS = ("clusterkv", "pqcache"), 2048, 256, 8


@dataclass(frozen=True)
class Recipe:
    """A recipe of one result: its kind, a one-line description, its source text, and its function."""

    kind: Kind
    description: str
    text: str
    make: Callable[[LanguageModel], Any]


RECIPES: dict[str, Recipe] = {}


def recipe(kind: Kind, text: str = TEXT) -> Callable[[Callable[[LanguageModel], Any]], Callable[[LanguageModel], Any]]:
    """A decorator that adds a function to RECIPES by its name; the first line of its docstring describes it."""

    def add(make: Callable[[LanguageModel], Any]) -> Callable[[LanguageModel], Any]:
        RECIPES[make.__name__] = Recipe(kind, (make.__doc__ or "").splitlines()[0].rstrip("."), text, make)
        return make

    return add


def manual() -> str:
    """English reference prose that comes with Python (`pydoc_data.topics`), sections in alphabetical order."""
    from kvviz.tasks.windows import manual as text  # loads torch, which a stored recording does not need

    return text()


@recipe("trace")
def prose(lm: LanguageModel) -> Trace:
    """2,048 tokens of reference prose, layer 14."""
    return _trace(lm, PROSE_TOKENS, PROSE_LAYERS)


@recipe("trace")
def layers(lm: LanguageModel) -> Trace:
    """640 tokens of reference prose, layers 2, 8, 20 and 26."""
    return _trace(lm, LAYERS_TOKENS, LAYERS)


@recipe("recordings", text=f"{TEXT} (sections assignment, numbers, with, yield); the hidden sentence is kvviz's own")
def needle(lm: LanguageModel) -> dict[str, Recording]:
    """A number hidden in 1,800 tokens of prose, seven methods at a budget of 256, layers 21 and 23.

    Two find the number, ClusterKV with 400 clusters and PQCache; `data/benchmarks/methods.md` has 32 others. The
    question follows the compressed prompt. Only the steps from the last token of the question on are kept, so that
    `prompt_length` includes the question's other tokens, and `question_length` is 1.
    """
    from kvviz import methods
    from kvviz.generation.comparing import compare

    prompt, question = needle_prompt(lm)
    chosen = {label: methods.create(name, **fields) for label, (name, fields) in NEEDLE_METHODS.items()}
    table = compare(
        lm, prompt, chosen, [NEEDLE_BUDGET], question, max_new_tokens=NEEDLE_NEW_TOKENS, layers=NEEDLE_LAYERS
    )
    return {label: answer_steps(recording, NEEDLE_STEPS) for (label, _), recording in table.recordings.items()}


@recipe("recordings")
def decode(lm: LanguageModel) -> dict[str, Recording]:
    """ClusterKV and Quest over 48 decode steps after 976 tokens of prose, budget 128, layer 14."""
    from kvviz.generation.replaying import replay

    trace = _trace(lm, DECODE_TOKENS, DECODE_LAYERS)
    return {
        name: replay(trace, name, queries=DECODE_STEPS, budget=DECODE_BUDGET, dense_layers=0)
        for name in ("clusterkv", "quest")
    }


@recipe("timelines")
def overlap(lm: LanguageModel) -> dict[str, Timeline]:
    """When ClusterKV and PQCache computed, clustered and moved: 2,048 tokens and 8 steps, keys in host memory.

    The times are from one run on one machine, named in each description.
    """
    import torch

    from kvviz.generation.generating import generate

    threads = f", threads: {torch.get_num_threads()}" if lm.device.type == "cpu" else ""
    where = f"{hardware(lm.device.type)}{threads}"
    ids, timelines = lm.encode(manual())[:, :OVERLAP_TOKENS], {}
    for name in OVERLAP_METHODS:
        out = generate(lm, ids, name, OVERLAP_BUDGET, max_new_tokens=OVERLAP_STEPS + 1, store="host", timeline=True)
        assert out.timeline is not None
        out.timeline.description += f" · {where}"
        timelines[name] = out.timeline
    return timelines


@recipe("table", text=f"{TEXT}; the hidden sentences are kvviz's own")
def needles(lm: LanguageModel) -> pd.DataFrame:
    """Needles found at 500 and 1,000 tokens, six depths each: five methods at budgets 64, 128 and 256, and `full`.

    One row per sample, method and budget; the question follows the compressed context. Budgets that are too small for a
    method's sinks and window (CentroidKV: 81 tokens, CTkvr: 129) have no rows.
    """
    from kvviz.generation.comparing import compare
    from kvviz.tasks import needle_samples

    cells = _needle_cells()
    rows: list[dict[str, Any]] = []
    for place, length in enumerate(NEEDLES_LENGTHS):
        first = SEED + place * NEEDLES_SAMPLES
        for sample in needle_samples(lm, manual(), count=NEEDLES_SAMPLES, tokens=length, seed=first):
            results = compare(
                lm, sample.context, cells, (), sample.question, sample.answer, max_new_tokens=NEEDLES_NEW_TOKENS,
                recordings=False,
            )  # fmt: skip
            about = {"sample": sample.seed, "length": length, "depth": sample.depth}
            for label, budget, correct in zip(results["method"], results["budget"], results["correct"], strict=True):
                rows.append({"method": cells[label].name, "budget": int(budget), **about, "correct": bool(correct)})
    return table_of(rows, lm)


@recipe("table")
def perplexity(lm: LanguageModel) -> pd.DataFrame:
    """Perplexity of each of 383 tokens of prose after a prompt of 768, four methods at a budget of 128, and `full`.

    The text's tokens are fed one by one, whatever the model predicts; `position` is that of the predicted token.
    """
    import torch

    from kvviz import methods
    from kvviz.cache.attachment import attached
    from kvviz.cache.selective_cache import SelectiveCache
    from kvviz.generation.generating import fill, wait_for_states
    from kvviz.generation.teacher_forcing import forced_logprobs

    ids = lm.encode(manual())[:, : PERPLEXITY_TOKENS + PERPLEXITY_STEPS]
    rows: list[dict[str, Any]] = []
    with torch.no_grad(), attached(lm.model):
        prompt = SelectiveCache(lm.model, "full")
        fill(lm, prompt, ids[:, :PERPLEXITY_TOKENS])
        for name in PERPLEXITY_METHODS:
            cache = prompt.fork(methods.create(name, budget=PERPLEXITY_BUDGET))
            wait_for_states(cache)
            logprobs = forced_logprobs(lm, cache, ids[0, PERPLEXITY_TOKENS:].tolist())
            rows += [
                {"method": name, "position": position, "perplexity": float(f"{math.exp(-logprob):.5g}")}
                for position, logprob in enumerate(logprobs, PERPLEXITY_TOKENS + 1)
            ]
    return table_of(rows, lm, prompt_length=PERPLEXITY_TOKENS, budget=PERPLEXITY_BUDGET)


def _needle_cells() -> dict[str, Method]:
    """`full`, and every method at every budget that it accepts, by label."""
    from kvviz import methods

    cells = {"full": methods.create("full")}
    for name in SYSTEMS:
        least = methods.create(name, budget=max(NEEDLES_BUDGETS)).reserved
        cells |= {
            f"{name}, {budget}": methods.create(name, budget=budget) for budget in NEEDLES_BUDGETS if budget >= least
        }
    return cells


def needle_prompt(lm: LanguageModel, after: int = NEEDLE_AFTER) -> tuple[str, str]:
    """The quickstart's prompt, which hides a sentence with a number, and the question about that number.

    The sentence stands behind the first paragraph that ends `after` so many characters.
    """
    from pydoc_data.topics import topics

    reference = "\n".join(topics[name] for name in ("assignment", "numbers", "with", "yield"))[:7600]
    cut = reference.find("\n\n", after)
    text = reference[:cut] + "\n\nThe special magic number is 7463." + reference[cut:]
    return lm.chat_parts(text, "\n\nWhat is the special magic number mentioned in the text?")


def answer_steps(recording: Recording, steps: int) -> Recording:
    """The steps from the last token of the question on, at most `steps`; earlier tokens become part of the prompt."""
    first = recording.question_length - 1
    return recording.cut(first, min(first + steps, recording.steps))


def table_of(rows: Sequence[Mapping[str, Any]], lm: LanguageModel, **attrs: Any) -> pd.DataFrame:
    """A DataFrame whose attrs hold the values for figure titles: the model, the seed, and `attrs`."""
    import pandas as pd

    table = pd.DataFrame([dict(row) for row in rows])
    table.attrs.update(model=lm.name, seed=SEED, **attrs)
    return table


def table_trace(lm: LanguageModel, tokens: int = TABLE_TOKENS) -> Trace:
    """The trace that the tables replay: prose, layers 5, 15 and 25."""
    return _trace(lm, tokens, TABLE_LAYERS)


def create(name: str, **fields: Any) -> Method:
    """A method that selects in every layer of a trace; `fields` as for `kvviz.methods.create`."""
    from kvviz import methods

    return methods.create(name, **{"dense_layers": 0, **fields})


def _trace(lm: LanguageModel, tokens: int, layers: Sequence[int]) -> Trace:
    from kvviz.generation.capturing import capture

    return capture(lm, manual(), layers=layers, max_tokens=tokens)
