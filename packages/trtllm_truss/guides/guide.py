"""A guide, and the errors of its check."""

from __future__ import annotations

from typing import Literal, NamedTuple

Language = Literal["json_schema", "regex", "ebnf_grammar"]
"""Names of `guided_decoding_guide_type`."""

MAX_CHARACTERS = 1 << 16

GUIDE_IS_CHECKED = "guide_is_checked"
"""Parameter of a Triton request: true skips the CPU engine's own check of the guide."""


class Guide(NamedTuple):
    """A JSON schema, a regular expression or an EBNF grammar."""

    language: Language
    text: str


class GuideFault(ValueError):
    """The guide is invalid; the message has the reason and starts with "it"."""


class TooManyGuides(RuntimeError):
    """The queue of unchecked guides is full."""


class CheckFailed(RuntimeError):
    """The check failed for a reason other than the guide."""
