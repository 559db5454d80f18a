"""One thing that does not fit, as one sentence with its remedy."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Severity(enum.Enum):
    """What a finding means for the start."""

    ERROR = "error"
    """The engine would not start, or not serve as the settings say."""

    WARNING = "warning"
    """It starts; somebody will wonder later."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A disagreement between two things that must fit together.

    Attributes:
        code: a stable word for programs, such as ``version_mismatch``.
        severity: whether it stops the start.
        sentence: both values and the remedy, for the operator.
    """

    code: str
    severity: Severity
    sentence: str


def error(code: str, sentence: str) -> Finding:
    """A finding that stops the start."""
    return Finding(code, Severity.ERROR, sentence)


def warning(code: str, sentence: str) -> Finding:
    """A finding that does not."""
    return Finding(code, Severity.WARNING, sentence)


def shortlist(names: Sequence[str], most: int = 4) -> str:
    """The first names with commas, and how many more there are."""
    shown, more = ", ".join(names[:most]), len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown
