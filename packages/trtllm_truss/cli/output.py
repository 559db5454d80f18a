"""Output of the commands, in which foreign text cannot act on a terminal."""

from __future__ import annotations

import sys
from contextlib import suppress

from trtllm_truss.printable import one_line, printable


def echo(*lines: str) -> None:
    """Write whole lines to standard error, from any thread; drop them once it is closed.

    print() writes the text and the newline separately, so that threads interleave.
    """
    for line in lines:
        with suppress(OSError):
            sys.stderr.write(f"{one_line(line)}\n")
            sys.stderr.flush()


def report(*lines: str) -> None:
    """Write whole lines to standard output."""
    for line in lines:
        sys.stdout.write(f"{one_line(line)}\n")
    sys.stdout.flush()


def write(text: str) -> None:
    """Write a text to standard output: exactly, unless it goes to a terminal."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
