"""Errors of a request body that name the caller's field."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from pydantic import ValidationError

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.validation import SHOWN_CHARACTERS, broken_rule, did_you_mean, shown_name


def invalid_request(error: ValidationError, known: Iterable[str]) -> InvalidRequest:
    """Build the error of a failed validation from its first finding.

    Args:
        error: the findings.
        known: the names of the fields that exist, for suggestions.
    """
    finding: dict[str, Any] = dict(error.errors(include_url=False)[0])
    location = [str(part)[:SHOWN_CHARACTERS] for part in finding["loc"]]
    field, path = location[0] if location else "", _path(location)
    if finding["type"] == "extra_forbidden":
        return unknown_field(path, known)
    if finding["type"] == "missing":
        return InvalidRequest(f"{path} is missing.", param=path)
    return InvalidRequest(f"{broken_rule(finding, path)}.", param=field or None)


def check_length(name: str, items: Sized, most: int, *, param: str, unit: str = "items") -> None:
    """Refuse a list or text that is too long.

    Raises:
        InvalidRequest: it has more than `most` of `unit`.
    """
    if len(items) > most:
        raise InvalidRequest(
            f"{name} has {len(items)} {unit}; it must have at most {most} {unit}.",
            param=param,
        )


def unknown_field(name: str, known: Iterable[str]) -> InvalidRequest:
    """Build the error that refuses a field by name."""
    names = sorted(known)
    close = did_you_mean(name, names)
    hint = f"did you mean {close}?" if close else f"the fields are {', '.join(names)}."
    return InvalidRequest(
        f"{shown_name(name)} is not a field of this request; {hint}", param=name[:SHOWN_CHARACTERS]
    )


def _path(location: list[str]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if part.isdigit() else f".{part}" if path else part
    return path
