"""Every press of kvpress run as a method of kvviz, and the same press in transformers' own cache."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from kvviz import LanguageModel

BUDGET, NEW_TOKENS = 256, 16
# Base classes, and presses that work during decoding, which do not select tokens of a prompt.
LEFT_OUT = (
    "BasePress", "ScorerPress", "DecodingPress", "CompressionRatioDecodingPress", "PrefillDecodingPress", "CAMPress",
)  # fmt: skip
EAGER = ("ObservedAttentionPress",)


def as_methods(lm: LanguageModel, ids: torch.Tensor, seed: int) -> list[dict[str, Any]]:
    """One row per press: tokens kept per head, and how many tokens kvviz generates as transformers does.

    `refused` is the reason of kvviz or kvpress for not running it.
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
        kvviz_ids = kvviz.generate(lm, ids, method, max_new_tokens=NEW_TOKENS).token_ids
        torch.manual_seed(seed)
        transformers_ids = _generated(lm, ids, press, attention)
    except KVVizError as error:
        return {"refused": f"kvviz: {error}"}
    except Exception as error:  # whatever a press raises, the other presses must still run
        return {"refused": f"kvpress: {_said(lm, error)}"}
    counts = [int((heads >= 0).sum(-1).float().mean()) for heads in kept.values()]
    same = sum(first == second for first, second in zip(kvviz_ids, transformers_ids, strict=False))
    return {"kept": counts, "tokens": len(kvviz_ids), "same_tokens": same}


def _said(lm: LanguageModel, error: Exception) -> str:
    """The first sentence of an error, without web addresses and the model's folder."""
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
    parameters = inspect.signature(kind).parameters
    wrapped = {"press": kvpress.SnapKVPress()} if "press" in needed or parameters.get("press") else {}
    missing = [field for field in needed if field not in wrapped]
    others = {"presses": [kvpress.SnapKVPress(), kvpress.KnormPress()], "compression_ratios": [0.75] * 30}
    return kind(**wrapped, **{field: others[field] for field in missing})


def _generated(lm: LanguageModel, ids: torch.Tensor, press: Any, attention: str) -> list[int]:
    """Greedy tokens from transformers' own cache after a prefill under the press."""
    import torch
    from transformers import DynamicCache

    cache, implementation = DynamicCache(config=lm.model.config), lm.model.config._attn_implementation
    lm.model.set_attn_implementation(attention)
    try:
        with torch.no_grad():
            with press(lm.model):
                logits = lm.model(ids, past_key_values=cache, logits_to_keep=1).logits
            written = [int(logits[0, -1].argmax())]
            while len(written) < NEW_TOKENS:
                position = torch.tensor([[ids.shape[1] + len(written) - 1]])
                logits = lm.model(torch.tensor([written[-1:]]), past_key_values=cache, position_ids=position).logits
                written.append(int(logits[0, -1].argmax()))
    finally:
        lm.model.set_attn_implementation(implementation)
    return written
