"""A guide, and the errors of its check."""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple

Language = Literal["json_schema", "regex", "ebnf_grammar"]
"""Names of `guided_decoding_guide_type`."""

MAX_CHARACTERS = 1 << 16

GUIDE_BYTES = "guide_bytes"
"""Parameter of a Triton request: the memory of the compiled guide in bytes, as its check measured
it. The CPU engine then does not check the guide itself."""


class Guide(NamedTuple):
    """A JSON schema, a regular expression or an EBNF grammar."""

    language: Language
    text: str

    def digest(self) -> bytes:
        text = "\0".join(self).encode("utf-8", "surrogatepass")
        return hashlib.sha256(text).digest()


class GuideFault(ValueError):
    """The guide is invalid; the message has the reason and starts with "it"."""


class TooManyGuides(RuntimeError):
    """The queue of unchecked guides is full."""


class CheckFailed(RuntimeError):
    """The check failed for a reason other than the guide."""
