"""The differences between TensorRT-LLM's releases, as one data file per table.

A new release changes these files, not the code. The module that reads a section defines the type of
its rows; `tests/releases/test_tables.py` lists these modules. Each section of a file is a table,
whose keys are the names of rows::

    [inputs]
    "*" = { since = "0.7", source = "config.pbtxt in NVIDIA/TensorRT-LLM" }
    min_tokens = { dtype = "INT32", dims = [1], since = "0.20" }

The row ``"*"`` contains default columns for all rows of its section, and the section ``"*"`` those
of a file. ``since`` is the first release with the fact, ``until`` the first without it. A fact that
changed is a list of rows, one per range of releases. ``source`` is the place in NVIDIA's files or
documentation where the row was read.

`facts.toml` contains facts that code looks up by name. `contract.toml` contains the contract of
Triton's ``tensorrt_llm`` model: its inputs and outputs by release.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

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

    A final release sorts after its pre-releases; a missing version sorts last.
    """
    numbers = (*release(version), 0, 0, 0)[:3]
    if not release(version):
        return (_LAST,)
    found = _PRE_RELEASE.search(version)
    last = _LAST if found is None else int(found[2]) if found[1] == "rc" else -1
    return (*numbers, last)


def dotted(numbers: Release) -> str:
    """Return a release as text, ``1.3.0rc22`` for ``(1, 3, 0, 22)``."""
    pre_release = "".join(f"rc{number}" for number in numbers[3:])
    return ".".join(map(str, numbers[:3])) + pre_release


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
    """Read a section of a file, in file order.

    Args:
        file: name without the suffix.
        row: type of a row; its fields are the columns.
        key: column of the names.
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
    """Select the rows of a table that apply to a TensorRT-LLM version.

    Args:
        rows: each with its first release and the first release without it.
        version: None, an unknown version, selects all rows.

    Raises:
        ValueError: the version does not start with a number.
    """
    if version is None:
        return tuple(rows)
    if not release(version):
        raise ValueError(f"{version} is not a version")
    return tuple(row for row in rows if _includes(row, version))


_WITH_PRE_RELEASE = 4


def _includes(row: _Versioned, version: str) -> bool:
    """Also compare the pre-release if a bound of the row has one."""
    exact = _WITH_PRE_RELEASE in {len(row.since), len(row.until or ())}
    here = exact_release(version) if exact else release(version)
    return row.since <= here and (row.until is None or here < row.until)


def describe_releases(row: _Versioned) -> str:
    """Return the releases that a row applies to, ``1.1 and later`` or ``before 1.3``."""
    if row.until is None:
        return f"{dotted(row.since)} and later"
    return f"before {dotted(row.until)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact that holds in a range of releases."""

    name: str
    since: Release
    until: Release | None = None
    source: str

    def holds(self, version: str | Release | None, *, unknown: bool = True) -> bool:
        """Return True if the fact holds in a release.

        Args:
            version: of TensorRT-LLM, as text or numbers. A text without a number is older than all
                releases.
            unknown: the result if the version is None.
        """
        if version is None:
            return unknown
        if isinstance(version, str):
            return _includes(self, version)
        return self.since <= version and (self.until is None or version < self.until)


def read_facts(file: str, section: str) -> dict[str, Fact]:
    """Read a section whose rows are facts about things, by name."""
    return {fact.name: fact for fact in read_table(file, section, Fact)}


FACTS = read_facts("facts", "facts")


def holds(name: str, version: str | Release | None, *, unknown: bool = True) -> bool:
    """Return True if a row of `facts.toml` holds in a release (`Fact.holds`)."""
    return FACTS[name].holds(version, unknown=unknown)


MODEL_NAME = "tensorrt_llm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of the model; `releases/contract.toml` explains the columns."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool = True
    scalar: bool = False
    ragged: bool = False
    since: Release
    until: Release | None = None
    optional_since: Release = ()
    scalar_since: Release = ()
    source: str


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The output tensor that reports a prompt's cached tokens.

    Attributes:
        output: name of the tensor.
        unit_tokens: tokens per unit of its value.
    """

    output: str
    unit_tokens: int


INPUTS = read_table("contract", "inputs", Tensor)
OUTPUTS = read_table("contract", "outputs", Tensor)
OWN_INPUTS = read_table("contract", "own_inputs", Tensor)
OWN_OUTPUTS = read_table("contract", "own_outputs", Tensor)
"""Further tensors of this project's backends."""

(CACHED_TOKENS,) = (row for row in OWN_OUTPUTS if row.name == "cached_tokens")
"""Prompt tokens found in the KV cache; in one response."""
(REUSED_BLOCKS,) = (row for row in OUTPUTS if row.name == "kv_cache_reused_blocks")
"""KV cache blocks reused by the prompt; the last one may be partly used."""


def inputs_of(version: str | None) -> tuple[Tensor, ...]:
    """Return the inputs as a release declares them; None means all releases."""
    rows = rows_for(INPUTS, version)
    if version is None:
        return rows
    here = release(version)
    return tuple(
        replace(
            row,
            optional=row.optional and row.optional_since <= here,
            scalar=row.scalar and row.scalar_since <= here,
        )
        for row in rows
    )
