"""Limit how much the steps of a tokenizer lengthen a text."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Protocol

MAX_GROWTH = 64
"""Largest accepted expansion of one character. SentencePiece's own rules reach 18, for U+FDFA."""


class Component(Protocol):
    def __getstate__(self) -> bytes: ...


def growth(component: Component | None) -> int:
    """Return an upper bound of a component's expansion of one character; 1 if it has none.

    Only texts from the file count, not Unicode's normalization forms.
    """
    return 1 if component is None else _growth(json.loads(component.__getstate__()))


def _growth(step: Mapping[str, Any]) -> int:
    """Source of the fields: `tokenizers`, `normalizers/` and `decoders/` (0.23)."""
    text = step.get("content") if step.get("type") == "Replace" else step.get("prepend")
    if isinstance(text, str):
        return len(text)
    if step.get("type") == "Precompiled":
        return _longest_replacement(step["precompiled_charsmap"])
    product = 1
    for part in (*step.get("normalizers", ()), *step.get("decoders", ())):
        product *= max(1, _growth(part))
    return product


def _longest_replacement(charsmap: str) -> int:
    """Return the length of the longest text in SentencePiece's character map.

    It consists of the size of a trie (4 bytes), the trie, and texts that end in NUL
    (https://github.com/google/sentencepiece, `src/normalizer.cc`, `DecodePrecompiledCharsMap`).
    """
    content = base64.b64decode(charsmap)
    texts = content[4 + int.from_bytes(content[:4], "little") :]
    return max(len(text.decode(errors="replace")) for text in texts.split(b"\0"))
