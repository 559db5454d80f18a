"""Shared libraries for x86-64, written without a compiler.

Layout: the `System V ABI <https://gitlab.com/x86-psABIs/x86-64-ABI>`_ for AMD64, reduced to what
the loader reads.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

_HEADER, _SEGMENT, _SYMBOL = 64, 56, 24
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ_WRITE, _ALL = 6, 7
_FUNCTION = 0x12  # global
_HASH, _STRINGS, _SYMBOLS, _STRINGS_SIZE, _SYMBOL_SIZE = 4, 5, 6, 10, 11


def write_library(file: Path, functions: Mapping[str, int]) -> Path:
    """Write a library whose functions take anything and return these 32-bit integers."""
    file.parent.mkdir(parents=True, exist_ok=True)
    code_at = _HEADER + 3 * _SEGMENT
    code, names, symbols = b"", b"\0", bytes(_SYMBOL)
    for name, value in functions.items():
        place = code_at + len(code)
        symbols += struct.pack("<IBBHQQ", len(names), _FUNCTION, 0, 1, place, 6)
        code += b"\xb8" + struct.pack("<I", value) + b"\xc3"  # mov eax, value; ret
        names += name.encode() + b"\0"
    parts = {_SYMBOLS: symbols, _HASH: _hash_table(len(functions)), _STRINGS: names}
    places, body = {}, code
    for tag, part in parts.items():
        body += bytes(-len(body) % 8)
        places[tag] = code_at + len(body)
        body += part
    sizes = {_STRINGS_SIZE: len(names), _SYMBOL_SIZE: _SYMBOL, 0: 0}
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in {**places, **sizes}.items())
    body += bytes(-len(body) % 8)
    dynamic_at = code_at + len(body)
    body += dynamic
    total = code_at + len(body)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, _HEADER, 0, 0, _HEADER, _SEGMENT, 3, 0, 0, 0
    )
    segments = (
        _segment(_LOAD, _ALL, 0, total, 0x1000)
        + _segment(_DYNAMIC, _READ_WRITE, dynamic_at, len(dynamic), 8)
        + _segment(_STACK, _READ_WRITE, 0, 0, 16)
    )
    file.write_bytes(header + segments + body)
    return file


def _segment(kind: int, flags: int, place: int, size: int, alignment: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, place, place, place, size, size, alignment)


def _hash_table(count: int) -> bytes:
    """Return a table with one bucket, whose chain holds every symbol."""
    chain = [0, *range(2, count + 1), 0]
    return struct.pack(f"<{4 + len(chain) - 1}I", 1, count + 1, 1, *chain)
