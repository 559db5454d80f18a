"""Tables by TensorRT-LLM release, read from this folder's TOML files.

A section of a file is a table, and each of its keys the name of a row::

    [inputs]
    "*" = { since = "0.7", source = "config.pbtxt in NVIDIA/TensorRT-LLM" }
    min_tokens = { dtype = "INT32", dims = [1], since = "0.20" }

The row ``"*"`` holds the columns of all rows of its section that do not set them, the section
``"*"`` those of a file. ``since`` is the first release with the fact, ``until`` the first without
it. A fact that changed is a list of rows, one per range of releases. ``source`` is the place in
NVIDIA's files or documentation that the row was read from.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trtllm_truss.releases.versions import Release, dotted, exact_release, release

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
COMMON = "*"
_RELEASES = ("since", "until")


class _Versioned(Protocol):
    @property
    def since(self) -> Release: ...
    @property
    def until(self) -> Release | None: ...


Row = TypeVar("Row")
VersionedRow = TypeVar("VersionedRow", bound=_Versioned)


def read_table(
    file: str, section: str, row: Callable[..., Row], key: str = "name"
) -> tuple[Row, ...]:
    """Read a section of a file, in its order.

    Args:
        file: the name without its ending.
        section: the name of the table.
        row: the type of a row; its fields are the columns.
        key: the column of the names.
    """
    sections = read_file(file)
    names = dict(sections[section])
    common = {**sections.get(COMMON, {}), **names.pop(COMMON, {})}
    return tuple(
        row(**{key: name}, **_columns({**common, **columns}))
        for name, given in names.items()
        for columns in (given if isinstance(given, list) else [given])
    )


@functools.cache
def read_file(file: str) -> dict[str, Any]:
    """Read a file once; do not change the result."""
    content: dict[str, Any] = tomllib.loads((FOLDER / f"{file}.toml").read_text(encoding="utf-8"))
    return content


def _columns(given: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _numbers(value) if name.endswith(_RELEASES) else _frozen(value)
        for name, value in given.items()
    }


def _numbers(version: str) -> Release:
    """Return ``(1, 3)`` for ``1.3``, and ``(1, 3, 0, 2)`` for its pre-release ``1.3.0rc2``."""
    return exact_release(version) if "rc" in version else release(version)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def rows_for(rows: Iterable[VersionedRow], version: str | None) -> tuple[VersionedRow, ...]:
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
        return f"{dotted(row.since)} and later"
    return f"before {dotted(row.until)}"
