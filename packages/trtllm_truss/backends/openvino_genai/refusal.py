"""The one exception by which a request is turned down."""

from __future__ import annotations


class UnsupportedRequest(ValueError):
    """The caller asked for something this engine cannot do.

    The message names the tensor, its value and the remedy; it never holds a prompt.
    """
