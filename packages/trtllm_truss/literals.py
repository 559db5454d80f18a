"""Booleans and versions as NVIDIA's files write them, and tokens as vocabularies do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol, TypeVar

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
"""Booleans of a ``config.pbtxt`` and of LMI's options, in lower case."""

Release = tuple[int, ...]
_NUMBERS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})*")
_PRE_RELEASE = re.compile(r"[0-9](a|b|rc)([0-9]{1,8})")
_LAST = 10**9


class _Versioned(Protocol):
    @property
    def since(self) -> Release: ...
    @property
    def until(self) -> Release | None: ...


Row = TypeVar("Row", bound=_Versioned)


def release(version: str) -> Release:
    """Return the leading numbers of a version, ``(0, 17, 0)`` for ``0.17.0.post1``, if any."""
    numbers = _NUMBERS.match(version)
    return tuple(int(number) for number in numbers[0].split(".")) if numbers else ()


def exact_release(version: str) -> Release:
    """Return a version with its pre-release, for comparison: ``(1, 3, 0, 22)`` for ``1.3.0rc22``.

    A final release comes after all of them, and an alpha or beta before; a missing version is last.
    """
    numbers = (*release(version), 0, 0, 0)[:3]
    if not release(version):
        return (_LAST,)
    found = _PRE_RELEASE.search(version)
    last = _LAST if found is None else int(found[2]) if found[1] == "rc" else -1
    return (*numbers, last)


def rows_for(rows: Iterable[Row], version: str | None) -> tuple[Row, ...]:
    """Select the rows of a table that a TensorRT-LLM version knows.

    Args:
        rows: each with its first release and the first that no longer has it.
        version: None, an unknown version, selects all.

    Raises:
        ValueError: the version does not begin with a number.
    """
    if version is None:
        return tuple(rows)
    numbers = release(version)
    if not numbers:
        raise ValueError(f"{version} is not a version")
    return tuple(r for r in rows if r.since <= numbers and (r.until is None or numbers < r.until))


def describe_releases(row: _Versioned) -> str:
    """Return the releases that know a row of a table, ``1.1 and later`` or ``before 1.3``."""
    if row.until is None:
        return f"{'.'.join(map(str, row.since))} and later"
    return f"before {'.'.join(map(str, row.until))}"


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
