"""The limits of guides, and the errors of their check."""

from __future__ import annotations

MAX_CHARACTERS = 1 << 16

GUIDE_BYTES = "guide_bytes"
"""Parameter of a Triton request: the memory of the compiled guide in bytes, as its check measured
it. The CPU engine then does not check the guide itself."""


class GuideFault(ValueError):
    """The guide is invalid; the message has the reason and starts with "it"."""


class TooManyGuides(RuntimeError):
    """The queue of unchecked guides is full."""


class CheckFailed(RuntimeError):
    """The check failed for a reason other than the guide."""
