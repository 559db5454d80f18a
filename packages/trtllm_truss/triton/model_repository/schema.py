"""Rows of the model's contract, and the rows of one TensorRT-LLM version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

Release = tuple[int, int]
ParameterKind = Literal["bool", "int", "ints", "float", "text", "path"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the model.

    Attributes:
        name: as in ``config.pbtxt``.
        dtype: Triton's data type without the ``TYPE_`` prefix.
        dims: shape without the batch dimension; -1 is variable.
        optional: a request may leave the input out (meaningless for outputs).
        scalar: one value per request; the backend sees it reshaped to ``[batch]``.
        ragged: requests of different lengths may share a batch.
        since: first release that has it.
        until: first release that no longer has it.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool = True
    scalar: bool = False
    ragged: bool = False
    since: Release = (0, 7)
    until: Release | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """One key of the model's ``parameters``; on the wire every value is a string.

    Attributes:
        name: the key.
        kind: type as which the backend parses the string; ``ints`` are comma-separated.
        default: value in our ``config.pbtxt``. Blank leaves the choice to the backend; None omits
            the key, because the backend would act on a blank value or does not know the key.
        choices: the only accepted words, if the backend has such a list.
        minimum: the smallest number; None means 0 for integers. A fraction lies strictly between 0
            and 1 if it is None, else from it to 1 inclusive.
        since: first release that has it.
        until: first release that no longer has it.
        instead: replacement in later releases, as a sentence.
    """

    name: str
    kind: ParameterKind
    default: str | None = ""
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    since: Release = (0, 7)
    until: Release | None = None
    instead: str = ""


Row = TypeVar("Row", Tensor, Parameter)


def rows_for(rows: Iterable[Row], version: str | None) -> tuple[Row, ...]:
    """Return the rows that a TensorRT-LLM version knows; all rows for None, an unknown version.

    The rendered ``config.pbtxt`` and the requests both follow this one function, since Triton
    refuses an input that its ``config.pbtxt`` does not declare.
    """
    if version is None:
        return tuple(rows)
    release = parse_release(version)
    return tuple(r for r in rows if r.since <= release and (r.until is None or release < r.until))


def parse_release(version: str) -> Release:
    """Parse ``(major, minor)`` of a version such as ``0.17.0.post1`` or ``1.2.0rc3``.

    Raises:
        ValueError: the version does not begin with two numbers.
    """
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
