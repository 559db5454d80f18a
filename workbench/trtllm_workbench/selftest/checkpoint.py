"""A tiny Llama of random weights as a Hugging Face checkpoint.

Its tokenizer has the 256 bytes and pairs of letters. The rows of the bytes in the output layer are
zero, so that greedy answers contain none: random weights would otherwise emit halves of characters.
"""

from __future__ import annotations

import json
import random
import string
import struct
from array import array
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_LAYERS = 2
_HEADS = 8
_HEAD_SIZE = 64
_HIDDEN = _HEADS * _HEAD_SIZE
_INNER = 2 * _HIDDEN
_VOCABULARY = 1024
_POSITIONS = 4096
_SCALE = 0.06
_SPARE_VALUES = 4099
_SPACE = "Ġ"
"""A space in a byte-level vocabulary."""

_SPECIAL = ("<pad>", "<s>", "</s>")
_SILENT_IDS = len(_SPECIAL) + 256
_EMBEDDING, _OUTPUT_LAYER = "transformer.vocab_embedding", "lm_head"
_SAME_NAMES = (
    *("vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size", "hidden_act"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
)
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

Shapes = dict[str, tuple[int, ...]]


def write_checkpoint(folder: Path) -> Path:
    """Write ``config.json``, weights in BF16 and the tokenizer; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _config())
    layer = {
        "input_layernorm": (_HIDDEN,),
        "mlp.down_proj": (_HIDDEN, _INNER),
        "mlp.gate_proj": (_INNER, _HIDDEN),
        "mlp.up_proj": (_INNER, _HIDDEN),
        "post_attention_layernorm": (_HIDDEN,),
        **{f"self_attn.{name}_proj": (_HIDDEN, _HIDDEN) for name in "qkvo"},
    }
    shapes: Shapes = {
        "model.embed_tokens": (_VOCABULARY, _HIDDEN),
        **{f"model.layers.{n}.{name}": layer[name] for n in range(_LAYERS) for name in layer},
        "model.norm": (_HIDDEN,),
        _OUTPUT_LAYER: (_VOCABULARY, _HIDDEN),
    }
    _write_weights(folder / "model.safetensors", shapes, 0)
    write_tokenizer(folder)
    return folder


def write_converted_checkpoint(folder: Path, ranks: int) -> Path:
    """Write another such model in TensorRT-LLM's own format, which ``trtllm-build`` reads.

    Format: "TensorRT-LLM Checkpoint" in NVIDIA's documentation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hf = _config()
    content = {
        "architecture": hf["architectures"][0],
        "dtype": hf["torch_dtype"],
        "logits_dtype": "float32",
        **{name: hf[name] for name in _SAME_NAMES},
        "head_size": _HEAD_SIZE,
        "norm_epsilon": hf["rms_norm_eps"],
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": hf["rope_theta"],
        "use_parallel_embedding": False,
        "mapping": {"world_size": ranks, "tp_size": ranks, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }
    _write_json(folder / "config.json", content)
    layer = {
        "input_layernorm": (_HIDDEN,),
        "attention.qkv": (3 * _HIDDEN // ranks, _HIDDEN),
        "attention.dense": (_HIDDEN, _HIDDEN // ranks),
        "post_layernorm": (_HIDDEN,),
        "mlp.fc": (_INNER // ranks, _HIDDEN),
        "mlp.gate": (_INNER // ranks, _HIDDEN),
        "mlp.proj": (_HIDDEN, _INNER // ranks),
    }
    shapes: Shapes = {
        _EMBEDDING: (_VOCABULARY, _HIDDEN),
        **{f"transformer.layers.{n}.{name}": layer[name] for n in range(_LAYERS) for name in layer},
        "transformer.ln_f": (_HIDDEN,),
        _OUTPUT_LAYER: (_VOCABULARY // ranks, _HIDDEN),
    }
    for rank in range(ranks):
        _write_weights(folder / f"rank{rank}.safetensors", shapes, rank)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write the model's tokenizer as Hugging Face's files."""
    _tokenizer().save(str(folder / "tokenizer.json"))
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": _CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", content)


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2), encoding="utf-8")


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "head_dim": _HEAD_SIZE,
        "vocab_size": _VOCABULARY,
        "max_position_embeddings": _POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": _SCALE,
        "tie_word_embeddings": False,
        "bos_token_id": _SPECIAL.index("<s>"),
        "eos_token_id": _SPECIAL.index("</s>"),
    }


def _tokenizer() -> Tokenizer:
    letters = string.ascii_lowercase
    names = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pairs = [(first, second) for first in _SPACE + letters for second in letters]
    merges = pairs[: _VOCABULARY - len(names)]
    names += [first + second for first, second in merges]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in _SPECIAL])
    return tokenizer


def _write_weights(file: Path, shapes: Shapes, rank: int) -> None:
    """Write a safetensors file.

    Format: https://github.com/huggingface/safetensors#format.
    """
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    position = 0
    for name, shape in shapes.items():
        data = _values(name, shape, rank)
        header[f"{name}.weight"] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [position, position + len(data)],
        }
        parts.append(data)
        position += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as output:
        output.write(struct.pack("<Q", len(text)))
        output.writelines([text, *parts])


def _values(name: str, shape: tuple[int, ...], rank: int) -> bytes:
    """Return random values; all ranks have the same embedding and norms."""
    if len(shape) == 1:  # norms
        return _bfloat16(array("f", [1.0]) * shape[0])
    rows, columns = shape
    generator = random.Random(f"{name} {0 if name == _EMBEDDING else rank}")  # noqa: S311
    pool = array("f", (generator.gauss(0, _SCALE) for _ in range(columns + _SPARE_VALUES)))
    values = array("f")
    for _ in range(rows):
        start = generator.randrange(_SPARE_VALUES)
        values.extend(pool[start : start + columns])
    if name == _OUTPUT_LAYER:
        silent = columns * max(0, min(rows, _SILENT_IDS - rank * rows))
        values[:silent] = array("f", bytes(4 * silent))
    return _bfloat16(values)


def _bfloat16(values: array[float]) -> bytes:
    """Return the upper halves of 32-bit floats, which are BF16."""
    return array("H", values.tobytes())[1::2].tobytes()
