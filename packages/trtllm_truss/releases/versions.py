"""Versions of NVIDIA's software as numbers that compare."""

from __future__ import annotations

import re

Release = tuple[int, ...]
_NUMBERS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})*")
_PRE_RELEASE = re.compile(r"[0-9](a|b|rc)([0-9]{1,8})")
_LAST = 10**9


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


def dotted(numbers: Release) -> str:
    return ".".join(map(str, numbers))
