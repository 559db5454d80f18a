"""What commands tell their user beside their results."""

from __future__ import annotations

import sys
from contextlib import suppress


def tell(*lines: str) -> None:
    """Writes lines to standard error at once, each of them whole, from any thread.

    print() writes a line and its end apart, so that another thread's line can come between. When
    nobody reads standard error any more, lines are dropped: the command goes on.
    """
    for line in lines:
        with suppress(OSError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
