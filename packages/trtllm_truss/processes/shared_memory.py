"""Closes the shared memory of a server to other users of the machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_FOLDER = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory


def make_private(prefix: str) -> None:
    """Leaves the segments whose names begin with ``prefix`` to their owner alone.

    Triton's Python backend passes prompts and answers through them. It creates each with mode 0644,
    whatever the umask is (Boost's default).
    """
    for segment in _FOLDER.glob(f"{prefix}*"):
        with suppress(OSError):  # it may just have been removed
            segment.chmod(0o600)
