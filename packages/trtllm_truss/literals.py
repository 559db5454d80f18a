"""Booleans as NVIDIA's files write them, and tokens as vocabularies do."""

from __future__ import annotations

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
"""Booleans of a ``config.pbtxt`` and of LMI's options, in lower case."""


def token_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level BPE token; one with other characters is plain text."""
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()


def _byte_of() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 is itself, other bytes are U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + place): byte for place, byte in enumerate(others)},
    }


_BYTE_OF = _byte_of()
