"""Runs every press of kvpress as a method of kvviz, beside the same press in transformers' own cache."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from kvviz import LanguageModel

BUDGET, NEW_TOKENS = 256, 16
# Bases, which do nothing alone, and presses that work while decoding: those are no choice made of a prompt.
LEFT_OUT = (
    "BasePress", "ScorerPress", "DecodingPress", "CompressionRatioDecodingPress", "PrefillDecodingPress", "CAMPress",
)  # fmt: skip
EAGER = ("ObservedAttentionPress",)


def as_methods(lm: LanguageModel, ids: torch.Tensor, seed: int) -> list[dict[str, Any]]:
    """A row a press: how many tokens a head keeps, and whether kvviz writes what transformers writes under the press.

    `refused` is kvviz's reason, or kvpress's, not to run it.
    """
    import kvpress

    names = [name for name in sorted(dir(kvpress)) if name.endswith("Press") and name not in LEFT_OUT]
    return [{"press": name, **_row(lm, ids, name, seed)} for name in names]


def _row(lm: LanguageModel, ids: torch.Tensor, name: str, seed: int) -> dict[str, Any]:
    import torch

    import kvviz
    from kvviz.cache.kvpress import as_method, kept_positions
    from kvviz.errors import KVVizError

    attention = "eager" if name in EAGER else "sdpa"
    try:
        method = as_method(_made(name), BUDGET, attention)
        press = _made(name)
        press.compression_ratio = 1 - (BUDGET + 0.25) / ids.shape[1]
        torch.manual_seed(seed)
        kept = kept_positions(lm.model, ids, press, attention)
        torch.manual_seed(seed)
        ours = kvviz.generate(lm, ids, method, max_new_tokens=NEW_TOKENS).token_ids
        torch.manual_seed(seed)
        theirs = _written(lm, ids, press, attention)
    except KVVizError as error:
        return {"refused": f"kvviz: {error}"}
    except Exception as error:  # whatever a press raises, the others are to be run
        return {"refused": f"kvpress: {_said(lm, error)}"}
    counts = [int((heads >= 0).sum(-1).float().mean()) for heads in kept.values()]
    same = sum(mine == other for mine, other in zip(ours, theirs, strict=False))
    return {"kept": counts, "tokens": len(ours), "same_tokens": same}


def _said(lm: LanguageModel, error: Exception) -> str:
    """The first sentence of an error, without addresses and the folder that the model was read from."""
    folder = lm.model.config._name_or_path
    text = str(error).replace(folder, lm.name).replace(folder.replace("/", "_"), lm.name)
    text = re.sub(r"https?://\S+", "a web page", text.strip("'\" \n"))
    return f"{type(error).__name__}: {re.split(r'(?<=[.!?]) ', text)[0].partition(chr(10))[0][:150]}"


def _made(name: str) -> Any:
    """A press with its defaults; one that wraps another gets a SnapKVPress."""
    import kvpress

    kind = getattr(kvpress, name)
    needed = [
        field.name
        for field in dataclasses.fields(kind)
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    takes = inspect.signature(kind).parameters
    wrapped = {"press": kvpress.SnapKVPress()} if "press" in needed or takes.get("press") else {}
    missing = [field for field in needed if field not in wrapped]
    others = {"presses": [kvpress.SnapKVPress(), kvpress.KnormPress()], "compression_ratios": [0.75] * 30}
    return kind(**wrapped, **{field: others[field] for field in missing})


def _written(lm: LanguageModel, ids: torch.Tensor, press: Any, attention: str) -> list[int]:
    """Greedy tokens of transformers' own cache after a prefill under the press."""
    import torch
    from transformers import DynamicCache

    cache, before = DynamicCache(config=lm.model.config), lm.model.config._attn_implementation
    lm.model.set_attn_implementation(attention)
    try:
        with torch.no_grad():
            with press(lm.model):
                logits = lm.model(ids, past_key_values=cache, logits_to_keep=1).logits
            found = [int(logits[0, -1].argmax())]
            while len(found) < NEW_TOKENS:
                at = torch.tensor([[ids.shape[1] + len(found) - 1]])
                logits = lm.model(torch.tensor([found[-1:]]), past_key_values=cache, position_ids=at).logits
                found.append(int(logits[0, -1].argmax()))
    finally:
        lm.model.set_attn_implementation(before)
    return found
