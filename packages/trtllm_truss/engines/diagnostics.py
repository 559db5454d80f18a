"""A mismatch and its remedy in one message."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

_SHOWN_NAMES = 4


class Severity(enum.Enum):
    ERROR = "error"
    """The engine would not start, or not serve as configured."""

    WARNING = "warning"
    """The engine starts, with a probable mistake."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A mismatch between two things that must be compatible.

    Attributes:
        code: a stable identifier for programs, such as ``version_mismatch``.
        severity: an error blocks the start.
        message: both values and the remedy, for the operator.
    """

    code: str
    severity: Severity
    message: str


def error(code: str, message: str) -> Diagnostic:
    return Diagnostic(code, Severity.ERROR, message)


def warning(code: str, message: str) -> Diagnostic:
    return Diagnostic(code, Severity.WARNING, message)


def shortlist(names: Sequence[str]) -> str:
    shown, more = ", ".join(names[:_SHOWN_NAMES]), len(names) - _SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
