"""What a signal does to a command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def unwinding() -> Iterator[None]:
    """Has SIGTERM end the block as an exception does, so that what it has made is removed.

    A second SIGTERM does not disturb that.
    """
    before = signal.signal(signal.SIGTERM, _unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _unwind(number: int, frame: FrameType | None) -> None:
    signal.signal(number, lambda *_: None)
    raise SystemExit(128 + number)
