"""Text of a model on a terminal: no character moves the cursor or reorders the line."""

from __future__ import annotations

_KEPT = "\t\n"
_REORDERING = (0x061C, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Bidirectional controls; right-to-left text itself needs none of them."""

_REPLACEMENTS = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in _KEPT},
    0x7F: "\u2421",
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
    **{code: f"\\u{code:04x}" for code in _REORDERING},
}


def printable(text: str) -> str:
    """Replace control characters, such as those of escape sequences, by visible ones."""
    return text.translate(_REPLACEMENTS).encode("utf-8", "replace").decode()
