"""What a row of the model's contract is, and which rows a TensorRT-LLM version knows."""

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
        kind: how the backend reads the string; ``ints`` are comma-separated.
        default: what our ``config.pbtxt`` holds. Blank leaves the choice to the backend; None
            keeps the key out, because the backend would act on a blank value or knows no such key.
        choices: the only accepted words, if the backend has such a list.
        minimum: the smallest number, of integers 0 if it is None. A fraction lies between 0 and 1,
            without both if it is None, from it to 1 otherwise.
        since: first release that has it.
        until: first release that no longer has it.
        instead: what replaced it then, as a sentence.
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
    """Selects the rows that a TensorRT-LLM version knows; None, an unknown version, selects all.

    The rendered ``config.pbtxt`` and the requests both follow this one function, since Triton
    refuses an input that its ``config.pbtxt`` does not declare.
    """
    if version is None:
        return tuple(rows)
    release = parse_release(version)
    return tuple(r for r in rows if r.since <= release and (r.until is None or release < r.until))


def parse_release(version: str) -> Release:
    """Reads ``(major, minor)`` from a version such as ``0.17.0.post1`` or ``1.2.0rc3``.

    Raises:
        ValueError: the version does not begin with two numbers.
    """
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
