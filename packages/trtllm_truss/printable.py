"""Foreign text on a terminal: no character moves the cursor, reorders the line or begins one."""

from __future__ import annotations

_KEPT = "\t\n"
_INVISIBLE = (0x061C, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Separators of lines and paragraphs, and bidirectional controls, of which right-to-left text
itself needs none."""

_REPLACEMENTS = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in _KEPT},
    0x7F: "\u2421",
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
    **{code: f"\\u{code:04x}" for code in _INVISIBLE},
}
_NEW_LINE = "\u240a"


def printable(text: str) -> str:
    """Replace control characters, such as those of escape sequences, by visible ones.

    Tabs and line feeds stay.
    """
    if text.isprintable():  # nearly every line of a log
        return text
    return text.translate(_REPLACEMENTS).encode("utf-8", "replace").decode()


def one_line(text: str) -> str:
    """Do the same, and replace line feeds too."""
    return printable(text).replace("\n", _NEW_LINE)
