"""Compare the tokens that kvviz's eviction methods keep with those that NVIDIA's kvpress keeps, layer by layer.

    make agreement

kvpress 0.5.5 requires transformers>=4.56.0,<5.3 and kvviz transformers>=5.0,<6, so the command makes a separate
environment with both (in build/). It writes kvpress.json and README.md next to this script.

One prompt, the first tokens of Python's reference manual, is prefilled on SmolLM2-135M in float32: once through kvviz's
cache, and once under each press. The tokens that a press kept are found from the keys and values that it left in the
cache (`kvviz.cache.kvpress.kept_positions`). Agreement, by layer and KV head, is the share of the smaller of the two
sets that is in the larger one.

The known differences are these. For each of them, a pair without it is measured too:

- `snapkv` and SnapKVPress have the same window (64), average pooling over 5 and mean over the query heads of a KV head.
  kvpress averages over the window's queries where kvviz sums; both give the same ranking.
- `streaming_llm` and StreamingLLMPress keep 4 sinks and the most recent tokens.
- `pyramidkv` and PyramidKVPress have the same ranking but different budgets per layer, so that the smaller set is part
  of the larger one. kvviz distributes the budget without the window; kvpress distributes the whole budget, so that its
  pyramid is steeper, but gives all layers the same budget if the last one would get less than the window. "window 8"
  makes both windows smaller, so that this happens only at smaller budgets; "budgets of the press" uses kvviz's ranking
  with the press's budget for each layer.
- `h2o` and ObservedAttentionPress are only related. kvpress divides the accumulated attention of a token by the number
  of queries that attend to it, which favours late tokens. kvviz uses the paper's sum, which favours early tokens, and
  keeps half of the budget for the most recent tokens. "no window" omits that half; "no window, mean" also divides h2o's
  sums as kvpress does.
- `tova` and TOVAPress have the same ranking, the last query's weights averaged over all heads, and both keep the last
  token.
- `keydiff` follows the paper's blocks of 128 tokens, as BlockPress does around KeyDiffPress, and keeps the last token
  of the prompt, since each generated token is to take the place of another. "on top" drops nothing while decoding, and
  so keeps no token for that reason. "at once" (preset="kvpress") ranks the whole prompt by one mean, as KeyDiffPress
  does alone.
- `expected_attention` and ExpectedAttentionPress have an epsilon of 0 by default. With "epsilon 0.02", far above the
  expected weights of a prompt of this length, the norm of the value decides for most tokens.
- `kvzip` and KVzipPress share one budget among all heads of all layers; their scores are equal bit for bit if the model
  is fed the same. But the press takes the first tokens of any prompt for the beginning of the chat template, which it
  does not repeat and drops except for 4 sinks. This prompt is plain text. The press also asks in the words of the
  template. `kvzip` keeps 4 sinks, which it does not repeat, and asks in plain text. "no template, no sinks" gives the
  press a tokenizer without a template, and neither of them sinks.

The pairs of the last four were measured later than the others, at budgets of 128 and 256 only.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    import torch

    from kvviz import LanguageModel, Method

HERE = Path(__file__).resolve().parent
MODEL, TOKENS, BUDGETS, SEED = "smollm2-135m", 1024, (128, 256, 512), 0
Kept = list[list[set[int]]]  # positions by layer and KV head
Keeping = Callable[["LanguageModel", "torch.Tensor"], Kept]


def main() -> int:
    """Compare, write the results, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE, help="the folder for kvpress.json and README.md")
    folder = parser.parse_args().out
    import torch
    from page import page
    from presses import as_methods

    import kvviz
    from notebooks.runs.recipes import manual

    lm = kvviz.load(MODEL, device="cpu", dtype=torch.float32)
    ids = lm.encode(manual())[:, :TOKENS]
    results = {**provenance(lm), "pairs": agreements(lm, ids), "presses": as_methods(lm, ids, SEED)}
    (folder / "kvpress.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "README.md").write_text(page(results, text()))
    print((folder / "README.md").read_text())
    return 0


def text() -> str:
    """How the comparison works and what differs: this file's docstring from its third paragraph on."""
    return (__doc__ or "").split("\n\n", 2)[2]


def provenance(lm: LanguageModel) -> dict[str, Any]:
    """The model, seed, hardware and versions of the results."""
    import kvviz
    from kvviz.models.provenance import commit, hardware, installed, model_hash

    packages = {name: installed(name) for name in ("kvpress", "transformers", "torch", "numpy")}
    return {
        "model": lm.name, "model_hash": model_hash(lm.model), "dtype": "float32", "prompt_tokens": TOKENS, "seed": SEED,
        "hardware": hardware("cpu"), "kvviz": kvviz.__version__, "commit": commit(), **packages,
    }  # fmt: skip


def agreements(lm: LanguageModel, ids: torch.Tensor) -> list[dict[str, Any]]:
    """One row per pair and budget: the agreement of every layer and head, and the tokens kept per layer.

    The latter is the mean over the layer's heads, rounded.
    """
    rows = []
    for budget in BUDGETS:
        by_press = {name: keeping(lm, ids) for name, keeping in presses(budget).items()}
        for (method, press), keeping in methods(budget, by_press).items():
            kept, kept_by_press = keeping(lm, ids), by_press[press]
            shares = [
                [agreement(ours, theirs) for ours, theirs in zip(*heads, strict=True)]
                for heads in zip(kept, kept_by_press, strict=True)
            ]
            sizes = {"kept": mean_sizes(kept), "kept_by_press": mean_sizes(kept_by_press)}
            rows.append({"method": method, "press": press, "budget": budget, "agreement": shares, **sizes})
    return rows


def agreement(ours: set[int], theirs: set[int]) -> float:
    """The share of the smaller set that is in the larger one; 1 if one is empty."""
    return len(ours & theirs) / min(len(ours), len(theirs)) if ours and theirs else 1.0


def mean_sizes(kept: Kept) -> list[int]:
    """The tokens that a head keeps in each layer, mean over its heads."""
    return [round(sum(map(len, layer)) / len(layer)) for layer in kept]


def presses(budget: int) -> Mapping[str, Keeping]:
    """The presses, by name, at one budget."""
    import kvpress

    from kvviz.cache.kvpress import MARGIN

    ratio = 1 - (budget + MARGIN) / TOKENS
    return {
        "SnapKVPress": pressed(kvpress.SnapKVPress(ratio)),
        "PyramidKVPress": pressed(kvpress.PyramidKVPress(ratio)),
        "PyramidKVPress, window 8": pressed(kvpress.PyramidKVPress(ratio, window_size=8)),
        "StreamingLLMPress": pressed(kvpress.StreamingLLMPress(ratio)),
        "TOVAPress": pressed(kvpress.TOVAPress(ratio)),
        "KeyDiffPress": pressed(kvpress.KeyDiffPress(ratio)),
        "KeyDiffPress in blocks": pressed(kvpress.BlockPress(kvpress.KeyDiffPress(ratio), block_size=128)),
        "ExpectedAttentionPress": pressed(kvpress.ExpectedAttentionPress(ratio)),
        "ExpectedAttentionPress, epsilon 0.02": pressed(kvpress.ExpectedAttentionPress(ratio, epsilon=0.02)),
        "KVzipPress": pressed(kvpress.KVzipPress(ratio)),
        "KVzipPress, no template, no sinks": without_template(pressed(kvpress.KVzipPress(ratio, n_sink=0))),
        "ObservedAttentionPress": pressed(kvpress.ObservedAttentionPress(ratio), "eager"),
    }


def methods(budget: int, by_press: Mapping[str, Kept]) -> Mapping[tuple[str, str], Keeping]:
    """kvviz's methods at one budget, by their name and the name of the press they are compared with."""
    from kvviz.methods import create

    def at(name: str, **fields: Any) -> Keeping:
        return kept_by(create(name, budget=budget, **fields))

    def of_press(press: str, **fields: Any) -> Keeping:
        return by_layer([create("snapkv", budget=len(layer[0]), **fields) for layer in by_press[press]])

    wide, narrow, observed = "PyramidKVPress", "PyramidKVPress, window 8", "ObservedAttentionPress"
    return {
        ("snapkv", "SnapKVPress"): at("snapkv"),
        ("streaming_llm", "StreamingLLMPress"): at("streaming_llm"),
        ("pyramidkv", wide): at("pyramidkv"),
        ("pyramidkv, budgets of the press", wide): of_press(wide),
        ("pyramidkv, window 8", narrow): at("pyramidkv", recent=8),
        ("pyramidkv, window 8, budgets of the press", narrow): of_press(narrow, recent=8),
        ("h2o", observed): at("h2o"),
        ("h2o, no window", observed): at("h2o", recent_share=0.0),
        ("h2o, no window, mean", observed): by_mean_received(budget),
        ("tova", "TOVAPress"): at("tova"),
        ("keydiff", "KeyDiffPress in blocks"): at("keydiff"),
        ("keydiff, on top", "KeyDiffPress in blocks"): at("keydiff", generated="on_top"),
        ("keydiff, at once", "KeyDiffPress"): at("keydiff", preset="kvpress"),
        ("expected_attention", "ExpectedAttentionPress"): at("expected_attention"),
        ("expected_attention, epsilon 0.02", "ExpectedAttentionPress, epsilon 0.02"): at(
            "expected_attention", epsilon=0.02
        ),
        ("kvzip", "KVzipPress"): at("kvzip"),
        ("kvzip, no sinks", "KVzipPress, no template, no sinks"): at("kvzip", sinks=0),
    }


def kept_by(method: Method) -> Keeping:
    """A function that returns the tokens of a prompt that a kvviz method keeps."""

    def kept(lm: LanguageModel, ids: torch.Tensor) -> Kept:
        return [positions(layer.method.keeps(layer.states[0])) for layer in prefilled(lm, ids, method).selective_layers]

    return kept


def by_layer(layer_methods: list[Method]) -> Keeping:
    """A function that returns the tokens that methods keep, one method per layer."""

    def kept(lm: LanguageModel, ids: torch.Tensor) -> Kept:
        whole = prefilled(lm, ids, "full", retain_queries=True).selective_layers
        forks = [layer.fork(method) for layer, method in zip(whole, layer_methods, strict=True)]
        return [positions(fork.method.keeps(fork.states[0])) for fork in forks]

    return kept


def by_mean_received(budget: int) -> Keeping:
    """A function that returns the tokens with the most attention per query, from h2o's sums at a full budget."""

    def kept(lm: LanguageModel, ids: torch.Tensor) -> Kept:
        import torch

        from kvviz.methods import create

        cache, length = prefilled(lm, ids, create("h2o", budget=ids.shape[1])), ids.shape[1]
        best_positions = []
        for layer in cache.selective_layers:
            received = layer.states[0].received / torch.arange(length, 0, -1)
            means = received.unflatten(1, (layer.context.n_kv_heads, -1)).mean(2)
            best_positions.append(positions(means.topk(budget).indices))
        return best_positions

    return kept


def prefilled(lm: LanguageModel, ids: torch.Tensor, method: str | Method, **options: Any) -> Any:
    """A SelectiveCache after the prefill of the prompt."""
    import torch

    import kvviz
    from kvviz.cache.attachment import attached
    from kvviz.generation.generating import fill

    cache = kvviz.SelectiveCache(lm.model, method, **options)
    with torch.no_grad(), attached(lm.model):
        fill(lm, cache, ids)  # it tells KVzip the prompt
    return cache


def pressed(press: Any, attention: str = "sdpa") -> Keeping:
    """A function that returns the tokens of a prompt that a press keeps."""

    def kept(lm: LanguageModel, ids: torch.Tensor) -> Kept:
        from kvviz.cache.kvpress import kept_positions

        layers = kept_positions(lm.model, ids, press, attention)
        return [positions(layers[layer]) for layer in sorted(layers)]

    return kept


def without_template(keeping: Keeping) -> Keeping:
    """The same, while KVzipPress finds a tokenizer without a chat template."""

    def kept(lm: LanguageModel, ids: torch.Tensor) -> Kept:
        from kvpress.presses import kvzip_press

        plain = copy.deepcopy(lm.tokenizer)
        plain.chat_template = None
        with mock.patch.object(kvzip_press.AutoTokenizer, "from_pretrained", return_value=plain):
            return keeping(lm, ids)

    return kept


def positions(kept: torch.Tensor) -> list[set[int]]:
    """The positions [1, H, K] of each head as a set, without padding."""
    return [set(head) - {-1} for head in kept[0].tolist()]


if __name__ == "__main__":
    sys.exit(main())
