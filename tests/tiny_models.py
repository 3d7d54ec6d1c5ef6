"""Tiny random models of the architectures that kvviz supports."""

from __future__ import annotations

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 6, "max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip

ARCHITECTURES = {
    "llama": ("Llama", {"num_key_value_heads": 2}),
    "llama_mqa": ("Llama", {"num_key_value_heads": 1}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 3, "head_dim": 8}),
    "mistral": ("Mistral", {"num_key_value_heads": 2, "sliding_window": 16}),
    "gemma2": (
        "Gemma2",
        {"num_key_value_heads": 2, "sliding_window": 16, "head_dim": 8, "attn_logit_softcapping": 2.0},
    ),
    "gemma3": ("Gemma3", {"num_key_value_heads": 2, "sliding_window": 16, "head_dim": 8, "sliding_window_pattern": 2}),
    "phi3": ("Phi3", {"num_key_value_heads": 2}),
    "gpt_neox": ("GPTNeoX", {}),
}
SLIDING_LAYERS = {"mistral": (0, 1, 2, 3), "gemma2": (0, 2), "gemma3": (0, 2)}


def make(name: str, seed: int = 0, layers: int = 4) -> PreTrainedModel:
    """A random model of an architecture, with weights large enough that attention matters."""
    family, extra = ARCHITECTURES[name]
    config_class = getattr(transformers, f"{family}TextConfig" if family == "Gemma3" else f"{family}Config")
    torch.manual_seed(seed)
    config = config_class(**{**SIZES, "num_hidden_layers": layers}, **extra, initializer_range=0.2)
    # SDPA has no soft cap: the reference for Gemma 2 is its eager attention
    config._attn_implementation = "eager" if name == "gemma2" else "sdpa"
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def prompt(length: int, batch: int = 1, seed: int = 1) -> torch.Tensor:
    """Random token ids [batch, length], none of them special."""
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def letters_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer for the tiny models: one token per printable ASCII character."""
    letters = {chr(32 + number): 3 + number for number in range(VOCABULARY - 3)}
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, **letters}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="?"
    )
