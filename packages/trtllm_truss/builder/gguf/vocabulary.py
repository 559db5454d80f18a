"""The vocabulary of a GGUF file.

Guides are compiled for its tokens. Texts are encoded by the ``tokenizer.json`` in the same folder.
Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf

from trtllm_truss.errors import ArtifactError

_BYTE_LEVEL_BPE = "gpt2"
_SENTENCEPIECE = "llama"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def add_vocabulary(
    writer: gguf.GGUFWriter, folder: Path, size: int, config: Mapping[str, Any]
) -> None:
    """Add tokens, their types, merges and the BOS and EOS ids.

    `folder` has the ``tokenizer.json``. `size` counts the rows of the embedding table; unused ids
    become ``[PAD…]``.

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
