"""A random two-layer Llama and its tokenizers: in memory and as a .gguf file."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SIZES = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip


def byte_level(**special: str) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer with one token per byte; ids in the order of GPT-2's byte alphabet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def tiny_llama() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def write_gguf(path: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĠĠ"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["Ġ Ġ"])
    for name, index in {"bos": 1, "eos": 2, "unk": 0, "pad": 2}.items():
        getattr(writer, f"add_{name}_token_id")(index)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    shapes = {"token_embd": (len(tokens), 32), "output_norm": (32,)}
    for layer in range(2):
        shapes |= {
            f"blk.{layer}.attn_q": (32, 32), f"blk.{layer}.attn_k": (16, 32), f"blk.{layer}.attn_v": (16, 32),
            f"blk.{layer}.attn_output": (32, 32), f"blk.{layer}.attn_norm": (32,), f"blk.{layer}.ffn_norm": (32,),
            f"blk.{layer}.ffn_gate": (48, 32), f"blk.{layer}.ffn_up": (48, 32), f"blk.{layer}.ffn_down": (32, 48),
        }  # fmt: skip
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def same_weights(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    weights, others = first.state_dict(), second.state_dict()
    return weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)
