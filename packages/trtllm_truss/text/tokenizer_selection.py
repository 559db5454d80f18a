"""Selection of a repository's tokenizer files.

Only data files are fetched. A tokenizer that is a program (``tokenization_*.py``, named by
``auto_map``) or a pickle would run its author's code: the first needs `trust_remote_code`, the
second is always refused. A model's own weights and code in the same repository are ignored.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping

from trtllm_truss.errors import ArtifactError

FAST = "tokenizer.json"

_ALWAYS = (
    FAST, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "generation_config.json", "chat_template.jinja", "additional_chat_templates/*.jinja",
)  # fmt: skip
_SLOW = (
    "config.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json",
    "vocab.txt", "merges.txt", "*.tiktoken", "tiktoken.model",
)  # fmt: skip
_CODE = ("tokenization_*.py", "configuration_*.py")
_PICKLES = ("*.pkl", "*.pickle", "*.joblib", "*.dill", "tokenizer*.bin", "tokenizer*.pt")
_PROGRAMS = ("*.so", "*.pyd", "*.dll", "*.dylib", "*.exe", "*.sh", "*.bat")


def select_tokenizer(sizes: Mapping[str, int], *, trust_remote_code: bool) -> list[str]:
    """Return the names of the files to fetch.

    These are `tokenizer.json` and its companions; without it the files to build it from; without
    those a GGUF file.

    Args:
        sizes: bytes of every file in the tokenizer's folder, by its name below it.
        trust_remote_code: allow a tokenizer that is a program to run.

    Raises:
        ArtifactError: no tokenizer was found, or it is a pickle or a program.
    """
    dangerous = _matching(sizes, (*_PICKLES, *_PROGRAMS))
    if dangerous:
        raise ArtifactError(
            f"{', '.join(dangerous)} would run its author's code when loaded; remove it, or name "
            "another tokenizer_repository."
        )
    programs = _matching(sizes, _CODE[:1])
    if programs and not trust_remote_code:
        raise ArtifactError(
            f"the tokenizer is a program, {', '.join(programs)}; name a tokenizer_repository that "
            f"has only {FAST}, or set trust_remote_code: true if you trust its author."
        )
    if FAST in sizes:
        return _matching(sizes, _ALWAYS)
    slow = _matching(sizes, (*_ALWAYS, *_SLOW, *(_CODE if trust_remote_code else ())))
    if _matching(slow, _SLOW[1:]) or programs:
        return slow
    ggufs = _matching(sizes, ("*.gguf",))
    if len(ggufs) == 1:
        return ggufs
    raise ArtifactError(
        f"no tokenizer found: no {FAST}, no vocabulary to build one from, and "
        f"{len(ggufs)} .gguf files; name a tokenizer_repository that holds one "
        "(`AutoTokenizer.from_pretrained(…).save_pretrained(…)` of transformers writes it)."
    )


def tokenizer_files(names: Iterable[str]) -> list[str]:
    """Return a tokenizer's files among a model's, without the model's `config.json`."""
    return _matching((name for name in names if name != "config.json"), (*_ALWAYS, *_SLOW))


def _matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the names that match a pattern; a pattern with a folder matches only inside it."""
    return [
        name
        for name in sorted(names)
        if any(
            fnmatch.fnmatchcase(name, pattern) and name.count("/") == pattern.count("/")
            for pattern in patterns
        )
    ]
