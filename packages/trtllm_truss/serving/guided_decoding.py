"""What guided decoding in TensorRT-LLM needs of the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from trtllm_truss.text.tokenizer_files import read_tokenizer_folder

INFO_FILE = "xgrammar_tokenizer_info.json"


def write_tokenizer_info(
    tokenizer_dir: Path, file: Path, *, trust_remote_code: bool = False
) -> None:
    """Writes what `xgrammar_tokenizer_info_path` names, all that the C++ backend reads.

    Keys: `encoded_vocab`, tokens by id as the tokenizer spells them, blank where an id has none;
    `tokenizer_str`, the `tokenizer.json`; `stop_token_ids`, one of which ends an answer. Source:
    `examples/generate_xgrammar_tokenizer_info.py` in NVIDIA/TensorRT-LLM (1.0).

    Args:
        tokenizer_dir: the tokenizer's files.
        file: what to write.
        trust_remote_code: whether a tokenizer that is a program may run.

    Raises:
        ArtifactError: the tokenizer cannot be read.
    """
    parts = read_tokenizer_folder(tokenizer_dir, trust_remote_code=trust_remote_code)
    ids = parts.backend.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(ids.values()) + 1)
    for token, token_id in ids.items():
        tokens[token_id] = token
    info = {
        "encoded_vocab": tokens,
        "tokenizer_str": parts.backend.to_str(),
        "stop_token_ids": list(parts.eos_ids),
    }
    file.write_text(json.dumps(info), encoding="utf-8")
