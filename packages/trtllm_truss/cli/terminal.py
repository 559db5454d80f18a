"""What commands tell their user beside their results."""

from __future__ import annotations

import sys


def tell(*lines: str) -> None:
    """Writes lines to standard error at once, each of them whole, from any thread.

    print() writes a line and its end apart, so that another thread's line can come between.
    """
    for line in lines:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
