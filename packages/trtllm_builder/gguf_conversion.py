"""Convert a Llama checkpoint to one GGUF file: ``python -m trtllm_builder.gguf_conversion``.

The build runs this module as a child process. The `gguf` package of llama.cpp names the tensors,
quantizes and writes; this module reorders the rows of query and key, because llama.cpp rotates
neighbouring values where Hugging Face rotates halves. Source: ``convert_hf_to_gguf.py`` and
``gguf-py`` in https://github.com/ggml-org/llama.cpp.

One tensor is in memory at a time, as float32; the `gguf` package reads the headers of safetensors
files (https://github.com/huggingface/safetensors#format). The file contains the vocabulary
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer), for which guides are
compiled. Texts are encoded by the ``tokenizer.json`` in the same folder.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.utility import LocalTensor, SafetensorsLocal
from numpy.typing import NDArray

from trtllm_truss.engines.engine_files import CONFIG_FILE
from trtllm_truss.engines.model_config import Checkpoint, parse_checkpoint
from trtllm_truss.errors import ArtifactError

_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor that has not been read yet.

    Attributes:
        name: name in the checkpoint.
        stored: location in the file.
    """

    name: str
    stored: LocalTensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions, contiguous one last."""
        return tuple(self.stored.shape)

    def read(self) -> NDArray[np.float32]:
        """Return the values as float32, which represents float16 and bfloat16 exactly."""
        stored = self.stored.mmap_bytes().view(_DTYPES[self.stored.dtype]).reshape(self.shape)
        if self.stored.dtype == "BF16":  # the upper half of a float32
            values: NDArray[np.float32] = (stored.astype(np.uint32) << 16).view(np.float32)
            return values
        return stored.astype(np.float32)


def find_tensors(folder: Path) -> list[StoredTensor]:
    """List the tensors of all safetensors files of a folder, by file and name.

    Raises:
        ArtifactError: there are no such files, a file is damaged, or a dtype is unsupported.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ArtifactError(f"{folder} has no .safetensors files, the only supported format.")
    tensors = [
        StoredTensor(name, stored) for file in files for name, stored in _header(file).items()
    ]
    for tensor in tensors:
        if tensor.stored.dtype not in _DTYPES:
            raise ArtifactError(
                f"the checkpoint's {tensor.name} is {tensor.stored.dtype}; use a checkpoint in "
                f"{', '.join(_DTYPES)}."
            )
    return tensors


def _header(file: Path) -> dict[str, LocalTensor]:
    try:
        tensors: dict[str, LocalTensor] = SafetensorsLocal(file).tensors
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{file} is not a safetensors file ({error}); fetch it again."
        ) from None
    end = max((t.data_range.offset + t.data_range.size for t in tensors.values()), default=0)
    if end > file.stat().st_size:
        raise ArtifactError(f"{file} is truncated; fetch it again.")
    return tensors


_BYTE_LEVEL_BPE = "gpt2"
_SENTENCEPIECE = "llama"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def add_vocabulary(
    writer: gguf.GGUFWriter, folder: Path, size: int, config: Mapping[str, Any]
) -> None:
    """Add tokens, their types, merges and the BOS and EOS ids.

    `folder` contains the ``tokenizer.json``. `size` counts the rows of the embedding table; unused
    ids become ``[PAD…]``.

    Raises:
        ArtifactError: ``tokenizer.json`` is missing or not BPE.
    """
    tokens = [f"[PAD{number}]" for number in range(size)]
    kinds = [gguf.TokenType.UNUSED] * size
    content = _read(folder / "tokenizer.json")
    model = content["model"]
    has_bytes = bool(model.get("byte_fallback"))
    for token, number in model["vocab"].items():
        if number < size:
            is_byte = has_bytes and _BYTE.fullmatch(token)
            tokens[number] = token
            kinds[number] = gguf.TokenType.BYTE if is_byte else gguf.TokenType.NORMAL
    for added in content.get("added_tokens") or ():
        if added["id"] < size:
            special = added.get("special")
            tokens[added["id"]] = added["content"]
            kinds[added["id"]] = gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    writer.add_tokenizer_model(_SENTENCEPIECE if has_bytes else _BYTE_LEVEL_BPE)
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(_first(config.get("eos_token_id")) or 0)
    if (bos := _first(config.get("bos_token_id"))) is not None:
        writer.add_bos_token_id(bos)


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
        if content["model"]["type"] == "BPE" and content["model"]["merges"]:
            return dict(content)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise ArtifactError(f"{file} is missing or not a BPE tokenizer; use a checkpoint with one.")


def _first(ids: object) -> int | None:
    value = ids[0] if isinstance(ids, list) and ids else ids
    return value if isinstance(value, int) else None


Weights = NDArray[np.float32]

_ARCHITECTURE = gguf.MODEL_ARCH.LLAMA
_FILE_TYPES = {
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}
_EMBEDDINGS = ("token_embd.weight", "output.weight")
_ROPE_THETA = 10_000.0  # the default of config.json
_COMPUTED = "rotary_emb.inv_freq"  # old checkpoints store it, although it follows from rope_theta


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor to convert.

    Attributes:
        name: name in GGUF.
        rotated_heads: number of heads whose rows are reordered; 0 for none.
    """

    name: str
    source: StoredTensor
    kind: gguf.GGMLQuantizationType
    rotated_heads: int

    def read(self) -> NDArray[Any]:
        values = self.source.read()
        if self.rotated_heads:
            values = reorder_rotated(values, self.rotated_heads)
        return gguf.quantize(values, self.kind)


def convert(folder: Path, output: Path, weights: str, context: int | None) -> None:
    """Write the GGUF file.

    Args:
        output: the file; it appears only once complete.
        weights: type of the matrices: ``F16``, ``Q8_0`` or ``Q4_0``. Embeddings and logits keep 8
            bits. (``Q4_1`` would be finer, but OpenVINO rounds its offsets.)
        context: maximum tokens of prompt and output together; None uses the model's limit.

    Raises:
        ArtifactError: a file is missing or invalid.
    """
    config = json.loads((folder / CONFIG_FILE).read_bytes())
    checkpoint = parse_checkpoint(config)
    tensors = list(_tensors(folder, checkpoint, weights))
    partial = output.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, gguf.MODEL_ARCH_NAMES[_ARCHITECTURE])
    _add_sizes(writer, config, checkpoint, context)
    writer.add_file_type(_FILE_TYPES[weights])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_vocabulary(writer, folder, checkpoint.vocab_size, config)
    for tensor in tensors:
        shape, dtype = _stored(tensor)
        writer.add_tensor_info(
            tensor.name, shape, dtype, int(np.prod(shape)) * dtype.itemsize, tensor.kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, tensor in enumerate(tensors, 1):
        writer.write_tensor_data(tensor.read())
        sys.stdout.write(f"tensor {number} of {len(tensors)}: {tensor.name}\n")
    writer.close()
    partial.replace(output)


def reorder_rotated(values: Weights, heads: int) -> Weights:
    """Reorder the rows of a query or key matrix from halves to neighbouring pairs."""
    rows = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(values.shape)


def _tensors(folder: Path, checkpoint: Checkpoint, weights: str) -> Iterator[_Tensor]:
    names = gguf.get_tensor_name_map(_ARCHITECTURE, checkpoint.layers)
    rotated = {"attn_q": checkpoint.heads, "attn_k": checkpoint.kv_heads}
    for source in find_tensors(folder):
        if source.name.endswith(_COMPUTED):
            continue
        name = names.get_name(source.name, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise ArtifactError(
                f"the checkpoint has a tensor {source.name}, which is not part of a Llama model; "
                "build another checkpoint."
            )
        if name == "output.weight" and checkpoint.tied_embeddings:
            continue
        role = name.split(".")[-2]
        yield _Tensor(name, source, _kind(name, source, weights), rotated.get(role, 0))


def _kind(name: str, source: StoredTensor, weights: str) -> gguf.GGMLQuantizationType:
    if len(source.shape) == 1:
        return gguf.GGMLQuantizationType.F32
    if name in _EMBEDDINGS and weights != "F16":
        return gguf.GGMLQuantizationType.Q8_0
    return gguf.GGMLQuantizationType[weights]


def _stored(tensor: _Tensor) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and element type of a tensor in GGUF; quantized ones are bytes."""
    if tensor.kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
        element = np.float32 if tensor.kind is gguf.GGMLQuantizationType.F32 else np.float16
        return tensor.source.shape, np.dtype(element)
    return gguf.quant_shape_to_byte_shape(tensor.source.shape, tensor.kind), np.dtype(np.uint8)


def _add_sizes(
    writer: gguf.GGUFWriter, config: dict[str, Any], checkpoint: Checkpoint, context: int | None
) -> None:
    positions = context or checkpoint.positions
    if positions is None:
        raise ArtifactError(
            f"{CONFIG_FILE} of the checkpoint has no context length; set build.max_seq_len."
        )
    rotary = config.get("rope_parameters") or config
    writer.add_block_count(checkpoint.layers)
    writer.add_context_length(positions)
    writer.add_embedding_length(checkpoint.hidden_size)
    writer.add_feed_forward_length(checkpoint.inner_size)
    writer.add_head_count(checkpoint.heads)
    writer.add_head_count_kv(checkpoint.kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rotary.get("rope_theta") or _ROPE_THETA)
    writer.add_rope_dimension_count(checkpoint.head_size)
    writer.add_vocab_size(checkpoint.vocab_size)


def main(arguments: list[str]) -> int:
    """Run the command line; on failure print one sentence to stderr and return 1."""
    parser = argparse.ArgumentParser(description="Convert a Llama checkpoint to GGUF.")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--weights", choices=sorted(_FILE_TYPES), required=True)
    parser.add_argument("--context", type=int)
    options = parser.parse_args(arguments)
    try:
        convert(options.checkpoint, options.output, options.weights, options.context)
    except ArtifactError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
