"""Write the header of a GGUF file."""

from __future__ import annotations

import struct
from typing import Any

_CODES = {"B": 0, "b": 1, "H": 2, "h": 3, "I": 4, "i": 5, "f": 6, "?": 7, "Q": 10, "q": 11, "d": 12}


class Typed:
    """A number or a list of numbers with its GGUF type."""

    def __init__(self, code: str, value: Any) -> None:
        self.code = code
        self.value = value


def header(metadata: dict[str, Any], version: int = 3, magic: bytes = b"GGUF") -> bytes:
    """Return a file without tensors; untyped values are strings and lists of strings."""
    start = struct.pack("<4sIQQ", magic, version, 0, len(metadata))
    return start + b"".join(_string(key) + _value(value) for key, value in metadata.items())


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
    kind = _CODES[value.code]
    if isinstance(value.value, list):
        count = len(value.value)
        return struct.pack(f"<IIQ{count}{value.code}", 9, kind, count, *value.value)
    return struct.pack(f"<I{value.code}", kind, value.value)
