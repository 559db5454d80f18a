"""An unfinished file: its bytes so far, and the hash of those in order.

A file of one range holds its beginning only; its length is the count. A file of several ranges has
its full length from the start and a footer: the size of a range, then the count of bytes of each
range, 8 bytes each. A chunk is written before its count, so a killed process leaves no count
without its bytes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path

from trtllm_truss.artifacts.listing import File

RANGE_BYTES = 1 << 26
"""The size of one request for a file of 4 GiB or more."""

_LEAST_RANGE_BYTES = 1 << 24
_USUAL_RANGES = 64
_WORD_BYTES = 8
_MOST_RANGES = 1 << 16
_BLOCK_BYTES = 1 << 21
_BLOCKS_AT_ONCE = 16
_AHEAD_RANGES = 8


class PartialFile:
    """One unfinished file. Different threads may write different ranges.

    Attributes:
        hashed_bytes: its beginning that is hashed.
    """

    def __init__(self, path: Path, file: File, *, in_ranges: bool = True) -> None:
        """Read the state left by an earlier process; create nothing.

        Args:
            path: of the unfinished file.
            in_ranges: False reads it as one range, of which only the beginning counts.
        """
        self._path = path
        self._file = file
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # threads would spin for the kernel's lock of the file
        range_bytes, counts = _state(path, file.size)
        self._range_bytes = range_bytes if in_ranges else max(file.size, 1)
        if not in_ranges:
            counts = [_in_order(counts, range_bytes)]
        self._counts = counts
        self._left_bytes = _in_order(counts, self._range_bytes)
        self._is_begun = False
        self._restart_hash()

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._counts)

    @property
    def arrived_bytes(self) -> int:
        """Sum of the counts of all ranges."""
        return sum(self._counts)

    @property
    def unfinished(self) -> list[int]:
        """Indexes of incomplete ranges."""
        numbers = range(len(self._counts))
        return [number for number in numbers if self.wanted(number)[0] < self.wanted(number)[1]]

    def wanted(self, number: int) -> tuple[int, int]:
        """Return the missing bytes of a range as offsets: the first, and the one after the last."""
        start = number * self._range_bytes
        end = min(start + self._range_bytes, self._file.size)
        return start + self._counts[number], end

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Open it for `write`; the first time, create it or give it its final length.

        Raises:
            OSError: it cannot be opened, or is a link.
        """
        with self._lock:
            create = 0 if self._is_begun else os.O_CREAT
            descriptor = os.open(
                self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | create, 0o644
            )
            try:
                if not self._is_begun:
                    self._begin(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def write(self, descriptor: int, number: int, chunk: bytes | memoryview) -> None:
        """Append to a range; hash contiguous data unless another thread is doing so."""
        place = self.wanted(number)[0]
        with self._writing:
            _write(descriptor, chunk, place)
            self._counts[number] += len(chunk)
            if len(self._counts) > 1:
                count = array("Q", [self._counts[number]]).tobytes()
                _write(descriptor, count, self._file.size + _WORD_BYTES * (1 + number))
        for _ in range(_BLOCKS_AT_ONCE):
            if not self._hash_block(descriptor, place, chunk, wait=False):
                return

    def catch_up(self, descriptor: int, number: int) -> None:
        """Hash contiguous data until a range is at most eight ahead, still in the page cache.

        Data of an earlier process is hashed beside the download, and not waited for.
        """
        if self.hashed_bytes < self._left_bytes:
            return
        least = (number - _AHEAD_RANGES) * self._range_bytes
        while self.hashed_bytes < least and self._hash_block(descriptor):
            pass

    def restart(self, descriptor: int) -> None:
        """Drop everything; only for a file of one range."""
        os.ftruncate(descriptor, 0)
        self._counts = [0]
        self._left_bytes = 0
        self._restart_hash()

    def finish(self) -> bool:
        """Finish the hash and truncate the footer.

        Returns:
            Whether every byte is there and hashes to what the repository lists.
        """
        with self.opened() as descriptor:
            while self._hash_block(descriptor):
                pass
            self._buffers.clear()
            digest = self._file.digest
            if self._hash is not None and digest is not None:
                is_right = self._hash.hexdigest() == digest.value
            else:
                is_right = True
            if is_right:
                os.ftruncate(descriptor, self._file.size)
            return is_right and self.arrived_bytes == self._file.size

    def shorten(self, count: int) -> None:
        """Free disk space: drop non-contiguous data, and the tail until `count` bytes are freed."""
        kept = max(0, min(self.arrived_bytes - count, _in_order(self._counts, self._range_bytes)))
        with contextlib.suppress(OSError):
            os.truncate(self._path, kept)

    def _begin(self, descriptor: int) -> None:
        if len(self._counts) == 1:
            os.ftruncate(descriptor, self._counts[0])
        else:
            footer = array("Q", [self._range_bytes, *self._counts]).tobytes()
            if os.fstat(descriptor).st_size > self._file.size:
                os.ftruncate(descriptor, self._file.size)
            _write(descriptor, footer, self._file.size)
        self._is_begun = True

    def _restart_hash(self) -> None:
        digest = self._file.digest
        self._hash = None if digest is None else digest.new_hash(self._file.size)
        self.hashed_bytes = self._read_bytes = 0
        self._buffers: list[memoryview] = []
        self._reading, self._hashing = threading.Lock(), threading.Lock()

    def _hash_block(
        self,
        descriptor: int,
        place: int = -1,
        chunk: bytes | memoryview = b"",
        *,
        wait: bool = True,
    ) -> bool:
        """Hash the next block in order. One thread reads it while another hashes the one before.

        Args:
            place: the offset of `chunk`.
            chunk: bytes of the file; they are not read again if they are the next ones.
            wait: whether to wait for another thread that reads.

        Returns:
            False if nothing was hashed.
        """
        if self._hash is None or not self._reading.acquire(blocking=wait):
            return False
        try:
            block = chunk if place == self._read_bytes else self._next_block(descriptor)
            if not block:
                return False
            self._hashing.acquire()
            self._read_bytes += len(block)
        finally:
            self._reading.release()
        try:
            self._hash.update(block)
            self.hashed_bytes += len(block)
        finally:
            self._hashing.release()
        return True

    def _next_block(self, descriptor: int) -> memoryview:
        """Read into the buffer that is not being hashed."""
        left = min(self._end_in_order - self._read_bytes, _BLOCK_BYTES)
        if left == 0:
            return memoryview(b"")
        if not self._buffers:
            self._buffers = [memoryview(bytearray(_BLOCK_BYTES)) for _ in range(2)]
        self._buffers.reverse()
        block = self._buffers[0][:left]
        return block[: os.preadv(descriptor, [block], self._read_bytes)]

    @property
    def _end_in_order(self) -> int:
        first = min(self._read_bytes // self._range_bytes, len(self._counts) - 1)
        return first * self._range_bytes + _in_order(self._counts[first:], self._range_bytes)


def _state(path: Path, size: int) -> tuple[int, list[int]]:
    """Read the size of a range and the progress of each; treat a malformed footer as none."""
    usual = min(RANGE_BYTES, max(_LEAST_RANGE_BYTES, size // _USUAL_RANGES))
    usual = max(usual, -(-size // _MOST_RANGES))
    nothing = usual, _divided(0, size, usual)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return nothing
    with os.fdopen(descriptor, "rb") as stream:
        length = os.fstat(descriptor).st_size
        if length <= size:
            return usual, _divided(length, size, usual)
        if (length - size) % _WORD_BYTES or length - size > _WORD_BYTES * (1 + _MOST_RANGES):
            return nothing
        stream.seek(size)
        range_bytes, *counts = array("Q", stream.read())
    if range_bytes == 0 or len(counts) != -(-size // range_bytes):
        return nothing
    last = size - (len(counts) - 1) * range_bytes
    if any(count > range_bytes for count in counts) or counts[-1] > last:
        return nothing
    return range_bytes, counts


def _divided(length: int, size: int, range_bytes: int) -> list[int]:
    """Divide the beginning of a file, as older releases left it, among its ranges."""
    starts = range(0, max(size, 1), range_bytes)
    return [min(max(0, length - start), range_bytes) for start in starts]


def _in_order(counts: list[int], range_bytes: int) -> int:
    """Return the length of the beginning without gaps."""
    total = 0
    for count in counts:
        total += count
        if count < range_bytes:
            break
    return total


def _write(descriptor: int, data: bytes | memoryview, place: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, place)
        view, place = view[written:], place + written
