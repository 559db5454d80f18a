"""Read an engine's files into the page cache before Triton does."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from trtllm_truss.machine.describe import read_limits

logger = logging.getLogger(__name__)


_THREADS = 8


_BLOCK_BYTES = 8 << 20


_SHARE_OF_FREE = 0.75
"""The rest is for the processes of the start; the kernel would evict these pages for them."""


_LEAST_LOGGED_BYTES = 50_000_000


_NULL = "/dev/null"


_Block = tuple[int, int, int]


def free_memory() -> int | None:
    return read_limits().memory_free_bytes


class ReadAhead:
    """Reads files into the page cache in parallel from their beginnings, as the ranks read them.

    Triton and its backend take seconds, or half a minute with TensorRT-LLM's imports, before they
    open the first file; then one thread per rank reads it. Here several threads start as soon as
    the folder is known. They `sendfile` to ``/dev/null``, which fills the page cache without
    copying: for 4 GB, a tenth of the CPU time of `pread`. ``POSIX_FADV_WILLNEED`` omitted a fifth
    of the pages.

    Args:
        free_bytes: returns the memory available for files, None if unknown.

    Attributes:
        done_bytes: bytes read so far.
    """

    def __init__(self, free_bytes: Callable[[], int | None] = free_memory) -> None:
        self._free_bytes = free_bytes
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.done_bytes = 0

    def begin(self, files: Collection[Path]) -> None:
        """Start reading, up to a share of the free memory; return at once."""
        opened, sizes = ExitStack(), {}
        for file in files:
            with contextlib.suppress(OSError):  # reported by the code that needs the file
                descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, descriptor)
                sizes[descriptor] = os.fstat(descriptor).st_size
        wanted, free = sum(sizes.values()), self._free_bytes()
        limit = wanted if free is None else min(wanted, int(free * _SHARE_OF_FREE))
        blocks = _blocks(sizes, limit)
        thread = threading.Thread(
            target=self._run, args=(opened, blocks, wanted), name="read-ahead", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Stop; a thread that waits for the disk stops after its block."""
        self._stopping.set()

    def wait(self) -> None:
        """Wait for the last block."""
        for thread in self._threads:
            thread.join()

    def _run(self, opened: ExitStack, blocks: Sequence[_Block], wanted: int) -> None:
        started = time.monotonic()
        with opened:
            null = os.open(_NULL, os.O_WRONLY | os.O_CLOEXEC)
            opened.callback(os.close, null)
            rest = iter(blocks)
            helpers = [
                threading.Thread(target=self._read, args=(null, rest), daemon=True)
                for _ in range(min(_THREADS, len(blocks)))
            ]
            for helper in helpers:
                helper.start()
            for helper in helpers:
                helper.join()
        if wanted >= _LEAST_LOGGED_BYTES:
            of = f" of {wanted / 1e9:.1f}" if self.done_bytes < wanted else ""
            why = "" if not of else "; more does not fit into memory"
            why = "; the engine is ready" if self._stopping.is_set() else why
            spent_s = time.monotonic() - started
            logger.info("read ahead %.1f%s GB in %.1f s%s", self.done_bytes / 1e9, of, spent_s, why)

    def _read(self, null: int, rest: Iterator[_Block]) -> None:
        while not self._stopping.is_set():
            with self._lock:
                block = next(rest, None)
            if block is None:
                return
            with contextlib.suppress(OSError):  # the engine meets the same error and reports it
                done = _read_block(null, *block)
                with self._lock:
                    self.done_bytes += done


def _blocks(sizes: Mapping[int, int], limit: int) -> list[_Block]:
    """Return descriptor, offset and length of blocks, first blocks of all files first."""
    blocks = []
    for start in range(0, max(sizes.values(), default=0), _BLOCK_BYTES):
        for descriptor, size in sizes.items():
            count = min(_BLOCK_BYTES, size - start, limit)
            if count > 0:
                limit -= count
                blocks.append((descriptor, start, count))
    return blocks


def _read_block(null: int, descriptor: int, start: int, count: int) -> int:
    """Read a block with `sendfile`, or with `pread` if the file system does not support it."""
    done = 0
    try:
        while done < count and (sent := os.sendfile(null, descriptor, start + done, count - done)):
            done += sent
    except OSError:
        with mmap.mmap(-1, count) as buffer:
            done = os.preadv(descriptor, [buffer], start)
    return done
