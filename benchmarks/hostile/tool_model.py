"""A model with tools, reasoning and 1,000 special tokens, on the tests' fake engine."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.engine.folder import write_engine
from benchmarks.paths import smollm2_file
from benchmarks.servers.configuration import write_config
from trtllm_truss.text.gguf_tokenizer import read_gguf_tokenizer

_SPECIAL_TOKENS = 1000
_TEMPLATE = Path(__file__).with_name("tool_template.jinja")


def write_tool_model(folder: Path) -> Path:
    """Write an engine, its tokenizer and a configuration; return the configuration.

    The tokenizer is SmolLM2's with as many special tokens as Mistral's, and the template takes the
    variables of Llama 3.1's.

    Args:
        folder: created if missing.
    """
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir(parents=True, exist_ok=True)
    backend = read_gguf_tokenizer(smollm2_file()).backend
    backend.add_special_tokens([f"<SPECIAL_{number}>" for number in range(_SPECIAL_TOKENS)])
    (tokenizer / "tokenizer.json").write_text(backend.to_str())
    declared = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": _TEMPLATE.read_text(encoding="utf-8"),
    }
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(declared))
    engine = write_engine(folder / "engine", vocab_size=backend.get_vocab_size(), max_batch_size=64)
    return write_config(
        folder / "config.yaml",
        engine_repository=str(engine.resolve()),
        tokenizer_repository=str(tokenizer.resolve()),
    )
