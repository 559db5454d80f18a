"""Spellings: booleans in NVIDIA's files, tokens of vocabularies, and foreign text on a terminal.

No character of foreign text can move the cursor, reorder the line or start a new one.
"""

from __future__ import annotations

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
"""Booleans in ``config.pbtxt`` and in LMI's options, in lower case."""


def counted_tokens(number: int | str) -> str:
    """Return ``1 token`` or ``2 tokens``.

    The number may also be a bound, such as ``at least 9``.
    """
    return f"{number} token" if number in (1, "1") else f"{number} tokens"


def token_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level BPE token; other tokens are plain text."""
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()


def _byte_of() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 maps to itself, other bytes to U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + place): byte for place, byte in enumerate(others)},
    }


_BYTE_OF = _byte_of()

_KEPT = "\t\n"
_INVISIBLE = (0x061C, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Line and paragraph separators, and bidirectional controls; right-to-left text needs neither."""

_REPLACEMENTS = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in _KEPT},
    0x7F: "\u2421",
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
    **{code: f"\\u{code:04x}" for code in _INVISIBLE},
}
_NEW_LINE = "\u240a"


def printable(text: str) -> str:
    """Replace control characters, such as those in escape sequences, with visible ones.

    Tabs and line feeds are kept.
    """
    if text.isprintable():  # nearly every line of a log
        return text
    return text.translate(_REPLACEMENTS).encode("utf-8", "replace").decode()


def one_line(text: str) -> str:
    """As `printable`, but replace line feeds too."""
    return printable(text).replace("\n", _NEW_LINE)
