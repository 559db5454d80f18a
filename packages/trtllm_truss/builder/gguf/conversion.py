"""Convert a Llama checkpoint to one GGUF file: ``python -m trtllm_truss.builder.gguf.conversion``.

The build runs this module as a child process. The `gguf` package of llama.cpp names the tensors,
quantizes and writes; this module reorders the rows of query and key, because llama.cpp rotates
neighbours where Hugging Face rotates halves.
Source: ``convert_hf_to_gguf.py`` and ``gguf-py`` in https://github.com/ggml-org/llama.cpp.

One tensor is in memory at a time, as float32.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from trtllm_truss.builder.gguf.safetensors_files import StoredTensor, find_tensors
from trtllm_truss.builder.gguf.vocabulary import add_vocabulary
from trtllm_truss.engines.model_config import CONFIG_FILE, Checkpoint, parse_checkpoint
from trtllm_truss.errors import ArtifactError

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
        name: in GGUF.
        kind: the data type in GGUF.
        rotated_heads: heads whose rows are reordered; 0 for none.
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
        folder: the checkpoint.
        output: the file; it appears only when complete.
        weights: type of the matrices: ``F16``, ``Q8_0`` or ``Q4_0``. Embeddings and logits keep 8
            bits. (``Q4_1`` would be finer, but OpenVINO rounds its offsets.)
        context: maximum tokens of prompt and answer together; None is the model's limit.

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
