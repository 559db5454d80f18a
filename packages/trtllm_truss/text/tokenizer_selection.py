"""Which files of a repository are its tokenizer, and which of them must not be touched.

Only files that are data are ever fetched. A tokenizer that is a program (``tokenization_*.py``,
named by ``auto_map``) or a pickle would run whatever its author wrote: the first needs
`trust_remote_code`, the second is refused always. A model's own weights and code in the same
repository are of no concern here and left where they are.
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
    """The files to fetch.

    Args:
        sizes: bytes of every file in the tokenizer's folder, by its name below it.
        trust_remote_code: whether a tokenizer that is a program may run here.

    Returns:
        Their names: `tokenizer.json` and what goes with it; without that what it can be made
        from; without that a GGUF file.

    Raises:
        ArtifactError: there is none, or it comes as a pickle or a program.
    """
    dangerous = _matching(sizes, (*_PICKLES, *_PROGRAMS))
    if dangerous:
        raise ArtifactError(
            f"{', '.join(dangerous)} would run code of its author's when loaded and belongs in no "
            "tokenizer repository; remove it, or name another tokenizer_repository."
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
        f"there is no tokenizer: no {FAST}, no vocabulary that one could be made from, and "
        f"{len(ggufs)} .gguf files; name a tokenizer_repository that holds one "
        "(`AutoTokenizer.from_pretrained(…).save_pretrained(…)` of transformers writes it)."
    )


def tokenizer_files(names: Iterable[str]) -> list[str]:
    """Return the files of a tokenizer among those of a model, without the model's `config.json`.

    Args:
        names: files by their name below the folder.
    """
    return _matching((name for name in names if name != "config.json"), (*_ALWAYS, *_SLOW))


def _matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The names right in the folder that match a pattern; one with a folder needs that folder."""
    return [
        name
        for name in sorted(names)
        if any(
            fnmatch.fnmatchcase(name, pattern) and name.count("/") == pattern.count("/")
            for pattern in patterns
        )
    ]
