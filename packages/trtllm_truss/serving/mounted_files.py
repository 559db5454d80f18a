"""Compare a platform's mounted files with their recorded hashes.

They are trusted for the start, so that no byte is read twice before readiness.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from trtllm_truss.engines.manifest import MANIFEST_FILE

logger = logging.getLogger(__name__)


_CHUNK_BYTES = 4 << 20


_BYTES_PER_S = 100e6  # for 70 GB: 12 minutes, and a fifth of one core


_LOWEST_PRIORITY = 19


_PATIENCE_S = 5.0  # for a read from a mount that hangs


_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}


_IOPRIO_WHO_PROCESS = 1


_IOPRIO_CLASS_IDLE = 3 << 13


class MountedFiles:
    """Reads each file once, in one thread of the lowest priority, at a limited rate.

    Args:
        hashes: SHA-256 by file.
        on_difference: called once, from the thread, after the first file that differs.
        rest: waits for seconds, or until the check is stopped; returns True if it is stopped.

    Attributes:
        unchecked_bytes: bytes still to be read.
        differing: files that differ from their hash or cannot be read.
    """

    def __init__(
        self,
        hashes: Mapping[Path, str],
        on_difference: Callable[[], object] = lambda: None,
        rest: Callable[[float], bool] | None = None,
    ) -> None:
        self._hashes = dict(hashes)
        self._on_difference = on_difference
        self._stopping = threading.Event()
        self._rest = rest or self._stopping.wait
        self.unchecked_bytes = sum(_size(file) for file in self._hashes)
        self.differing: tuple[Path, ...] = ()
        self._thread = threading.Thread(target=self._run, name="mounted-files", daemon=True)

    @contextlib.contextmanager
    def checking(self) -> Iterator[MountedFiles]:
        """Check the files inside this context; leaving it stops the check."""
        if self._hashes:
            self._thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            self.wait(_PATIENCE_S)

    def wait(self, limit_s: float | None = None) -> None:
        """Wait until the check has finished."""
        if self._thread.is_alive():
            self._thread.join(limit_s)

    def _run(self) -> None:
        _lower_priority()
        for file, expected in self._hashes.items():
            found = self._sha256(file)
            if self._stopping.is_set():
                return
            if found != expected:
                self._report(file, found)
        if not self.differing:
            logger.info("%d mounted files are as %s says", len(self._hashes), MANIFEST_FILE)

    def _sha256(self, file: Path) -> str:
        digest = hashlib.sha256()
        try:
            with file.open("rb", buffering=0) as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    self.unchecked_bytes = max(0, self.unchecked_bytes - len(chunk))
                    if self._rest(len(chunk) / _BYTES_PER_S):
                        break
        except OSError as error:
            return f"unreadable ({error.strerror})"
        return digest.hexdigest()

    def _report(self, file: Path, found: str) -> None:
        self.differing = (*self.differing, file)  # before the line that reports it
        logger.error(
            "%s differs from %s: its SHA-256 is %s, not %s; this server is unhealthy from now on. "
            "Upload the build again and push, so that the platform delivers it anew.",
            *(file, MANIFEST_FILE, found, self._hashes[file]),
        )
        if len(self.differing) == 1:
            self._on_difference()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _lower_priority() -> None:
    """Let this thread run and read only when nothing else wants to; the kernel may refuse."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, _LOWEST_PRIORITY)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, thread, _IOPRIO_CLASS_IDLE)
