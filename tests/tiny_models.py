"""Tiny random models: of architectures that kvviz supports, of more that one test tries, and of refused ones."""

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

LINEAR = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 12, "mamba_d_head": 8, "mamba_d_state": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MORE_ARCHITECTURES = {
    "phi": ("Phi", {"num_key_value_heads": 2}),
    "granite": ("Granite", {"num_key_value_heads": 2}),
    "olmo2": ("Olmo2", {"num_key_value_heads": 2}),
    "olmo3": ("Olmo3", {"num_key_value_heads": 2, "sliding_window": 16}),
    "starcoder2": ("Starcoder2", {"num_key_value_heads": 2, "sliding_window": None}),
    "stablelm": ("StableLm", {"num_key_value_heads": 2}),
    "cohere": ("Cohere", {"num_key_value_heads": 2}),
    "cohere2": ("Cohere2", {"num_key_value_heads": 2, "sliding_window": 16}),
    "glm": ("Glm", {"num_key_value_heads": 2, "head_dim": 8}),
    "smollm3": ("SmolLM3", {"num_key_value_heads": 2}),
    "nemotron": ("Nemotron", {"num_key_value_heads": 2}),
    "mixtral": ("Mixtral", {"num_key_value_heads": 2, "num_local_experts": 4}),
    "llama4": (
        "Llama4",
        {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "attention_chunk_size": 16},
    ),
    "gemma3n": (
        "Gemma3n",
        {
            "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 16, "num_kv_shared_layers": 2,
            "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention"] * 2,
            "activation_sparsity_pattern": [0.0] * 8, "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8, "num_hidden_layers": 8,
        },
    ),
    "qwen3_next": (
        "Qwen3Next",
        {
            "num_key_value_heads": 2, "head_dim": 8, **LINEAR, **EXPERTS, "shared_expert_intermediate_size": 16,
            "layer_types": ["linear_attention", "full_attention"] * 2,
        },
    ),
    "bamba": ("Bamba", {"num_key_value_heads": 2, "attn_layer_indices": [1, 3], "mamba_n_groups": 1, **MAMBA}),
    "falcon_h1": ("FalconH1", {"num_key_value_heads": 2, "mamba_d_ssm": 96, **MAMBA}),
    "lfm2": ("Lfm2", {"num_key_value_heads": 2, "full_attn_idxs": [1, 3]}),
}  # fmt: skip
EXACT_LAYERS = SLIDING_LAYERS | {
    "olmo3": (0, 1, 2), "cohere2": (0, 1, 2), "llama4": (0, 1, 2), "gemma3n": (2, 5, 6, 7), "qwen3_next": (0, 2),
    "bamba": (0, 2), "falcon_h1": (0, 1, 2, 3), "lfm2": (0, 2),
}  # fmt: skip
REFUSED_ARCHITECTURES = {
    "gpt2": ("GPT2", {}, "without rotary position embedding"),
    "opt": ("OPT", {"ffn_dim": 64}, "without rotary position embedding"),
    "jamba": (
        "Jamba",
        {"num_key_value_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2},
        "without rotary position embedding",
    ),
    "mamba2": ("Mamba2", {"num_heads": 12, "head_dim": 8, "state_size": 8}, "no attention layer"),
    "deepseek_v3": (
        "DeepseekV3",
        {
            "num_key_value_heads": 6, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 4,
        },
        "latent attention",
    ),
    "gemma4": (
        "Gemma4",
        {
            "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 16, "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCABULARY,
        },
        "layers differ in head_dim",
    ),
    "falcon": ("Falcon", {}, "does not use transformers' AttentionInterface"),
    "gpt_oss": (
        "GptOss",
        {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4, "sliding_window": 16},
        "learned attention sinks",
    ),
    "diffllama": ("DiffLlama", {"num_key_value_heads": 2}, "changes the cached values"),
}  # fmt: skip


def make(name: str, seed: int = 0, layers: int = 4) -> PreTrainedModel:
    """A random model of an architecture, with weights large enough that attention matters."""
    family, extra, *_ = {**ARCHITECTURES, **MORE_ARCHITECTURES, **REFUSED_ARCHITECTURES}[name]
    config_class = getattr(transformers, f"{family}TextConfig", None) or getattr(transformers, f"{family}Config")
    torch.manual_seed(seed)
    config = config_class(**{**SIZES, "num_hidden_layers": layers, **extra}, initializer_range=0.2)
    # SDPA has no soft cap: the reference for Gemma 2 is its eager attention
    config._attn_implementation = "eager" if name in ("gemma2", "gpt_oss", "mamba2") else "sdpa"
    if name == "gpt2":
        return transformers.GPT2LMHeadModel(config).eval()
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
