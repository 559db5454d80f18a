"""Booleans and versions as NVIDIA's files write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol, TypeVar

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
"""Booleans of a ``config.pbtxt`` and of LMI's options, in lower case."""

Release = tuple[int, ...]
_NUMBERS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})*")


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
