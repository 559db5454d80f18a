"""A tokenizer that is not stored as a fast one becomes one, once, by `transformers`.

It is part of NVIDIA's image. Elsewhere it is only needed for such tokenizers, and never imported
for others: that alone takes seconds.
"""

from __future__ import annotations

import os
from pathlib import Path

from tokenizers import Tokenizer

from trtllm_truss.errors import ArtifactError

_REMEDY = (
    "name a tokenizer_repository with a tokenizer.json "
    "(`AutoTokenizer.from_pretrained(…).save_pretrained(…)` of transformers writes it)"
)


def convert_tokenizer(folder: Path, *, trust_remote_code: bool) -> Tokenizer:
    """Makes a fast tokenizer from `tokenizer.model`, `vocab.json` and the like.

    Args:
        folder: where they are.
        trust_remote_code: whether a tokenizer that is a program may run.

    Raises:
        ArtifactError: `transformers` is not installed, or it cannot make one.
    """
    # tiktoken keeps what it reads under the file's name in /tmp, where anybody may have put it.
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", "")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ArtifactError(
            f"{folder} has no tokenizer.json, and to make one takes transformers, which is not "
            f"installed here; {_REMEDY}."
        ) from error
    try:
        converted = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # it raises whatever its parts raise
        reason = str(error).strip().split("\n")[0]
        raise ArtifactError(
            f"transformers cannot make a fast tokenizer from {folder} ({reason}); {_REMEDY}."
        ) from error
    backend = getattr(converted, "backend_tokenizer", None)
    if backend is None:
        raise ArtifactError(
            f"the tokenizer in {folder}, a {type(converted).__name__}, has no fast form; {_REMEDY}."
        )
    if not backend.get_vocab_size(with_added_tokens=False):
        raise ArtifactError(f"the tokenizer in {folder} has no vocabulary; {_REMEDY}.")
    return Tokenizer.from_str(backend.to_str())
