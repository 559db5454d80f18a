"""A tokenizer as stored on disk, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer as stored on disk.

    Attributes:
        backend: tokenizer of the `tokenizers` library, with its special tokens marked.
        eos_ids: all EOS ids, the tokenizer's own first.
        bos_id: BOS id, if any.
        pad_id: padding id, if any.
        named_tokens: contents by role (`bos_token`, `eos_token` …), for chat templates.
        chat_templates: Jinja sources by name; the main one is called `default`.
        sampling: the authors' sampling defaults, by the names of `transformers` (`temperature`,
            `top_p` …); not validated.
    """

    backend: Tokenizer
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    pad_id: int | None = None
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)


ROLES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
"""Named special tokens that chat templates use."""


MAX_TOKEN_CHARACTERS = 4096


MAX_ADDED_TOKENS = 65_536
"""This many take seconds of a start. Current models have up to 6,500."""


MAX_AROUND_TOKENS = 64
"""Maximum special tokens that a tokenizer adds to each prompt."""


MAX_END_IDS = 64
"""Maximum EOS ids; each request sends all of them to the engine."""
