"""Panics of libraries that are written in Rust, as errors that `except Exception` catches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_PYO3 = "pyo3_runtime"  # its PanicException can be imported from nowhere


class LibraryPanic(RuntimeError):
    """A library has panicked: a defect of its own, or data that it does not expect."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raises `LibraryPanic` for a panic in the block, or in the function that it decorates.

    PyO3 derives its exception from `BaseException`.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as panic:
        if type(panic).__module__ != _PYO3:
            raise
        raise LibraryPanic(f"a library panicked: {panic}") from None
