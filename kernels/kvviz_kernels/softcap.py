"""The bound that some models put on their attention logits: Gemma 2, `attn_logit_softcapping`."""

from __future__ import annotations

from torch import Tensor


def softcap_(logits: Tensor, softcap: float | None) -> Tensor:
    """The logits, changed in place to softcap · tanh(logits / softcap); unchanged where `softcap` is None."""
    return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)
