"""Transfer of files from a remote repository to the cache: in parallel ranges, verified.

The ranges of a large file are fetched in parallel, and hashed in order behind them. There is no
record of what has arrived: a later start continues at the first hole of the file. The reasons not
to use the libraries' own transfers:

- huggingface_hub 2.4.0 fetches a file over one connection, from its start after each interruption
  (file_download.py:1969), and writes on past the listed size (file_download.py:459).
- s3transfer 0.19.3 writes each body to its end, past that of the requested range
  (download.py:772, `GetObjectTask`), starts anew after an interruption, and hashes nothing.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trtllm_truss.artifacts.byte_ranges import WrongContentsError
from trtllm_truss.artifacts.cache import Cache, begun_bytes
from trtllm_truss.artifacts.listing import File, Listing, mark_known
from trtllm_truss.artifacts.progress import Progress
from trtllm_truss.artifacts.retrying import Interrupted, retrying
from trtllm_truss.errors import ArtifactError

RANGE_BYTES = 1 << 24

_CONNECTIONS = 8
_FILES_AT_ONCE = 4
_MOST_WAITING = 64
_BUFFER_BYTES = 1 << 20
_BLOCKS_AT_ONCE = 32
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FREED_BYTES = 1 << 28
_BLOCK_BYTES = 4096


def free_bytes(folder: Path) -> int:
    """Return the free disk space at a folder, which need not exist yet."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    return shutil.disk_usage(existing).free


class Remote(Protocol):
    """The remote side of a download. Methods raise `Interrupted` for transient errors."""

    def listing(self) -> Listing:
        """List the current files."""

    def recorded(self, commit: str) -> Listing | None:
        """Return the listing of a commit that an earlier `listing` recorded here."""

    def open(
        self, commit: str, file: File, start: int, end: int
    ) -> AbstractContextManager[tuple[bool, Iterator[bytes | memoryview]]]:
        """Open a file from byte `start` to before `end`.

        Returns:
            True if the response is that part, False if it is the whole file; and its bytes. A
                chunk is valid until the next one.
        """

    def close(self) -> None:
        """Close the connections that are kept between ranges."""

    def fetch_whole(self, commit: str, file: File) -> bool:
        """Fetch a file into the cache by its library, if that is faster.

        Returns:
            True if the file was fetched.
        """


class _Stopped(Exception):
    """Another file or range has failed."""


class _NoRanges(Exception):
    """The server sends the whole file instead of a range."""


@dataclass
class _Range:
    """One range of a file.

    Attributes:
        start: offset of the first byte.
        end: offset after the last byte.
        place: offset of the next byte to arrive.
    """

    start: int
    end: int
    place: int = field(init=False)

    def __post_init__(self) -> None:
        self.place = self.start


class _Unfinished:
    """An unfinished file. Different threads may write different ranges.

    Attributes:
        begun: number of bytes that an earlier download left before the first hole.
        head: the first range that has not arrived; all before it has.

    Raises:
        OSError: it cannot be opened, or is a link.
    """

    def __init__(self, path: Path, file: File) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)
        self._file = file
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # threads would spin for the kernel's lock of the file
        self.begun = begun_bytes(self._descriptor, file.size)
        self._hashed = 0
        self.restart_hash(_Range(0, file.size))

    def __enter__(self) -> _Unfinished:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, chunk: bytes | memoryview, place: int) -> None:
        """Write to a range, and hash what has arrived in order unless another thread does."""
        view, start = memoryview(chunk), place
        with self._writing:
            while view:
                written = os.pwrite(self._descriptor, view, place)
                view, place = view[written:], place + written
        if self._lock.acquire(blocking=False):
            try:
                if self._hash is not None and self._hashed == start:
                    self._hash.update(chunk)
                    self._hashed = place
                    return
                for _ in range(_BLOCKS_AT_ONCE):
                    if not self._hash_block(self.head.place):
                        return
            finally:
                self._lock.release()

    def restart_hash(self, head: _Range) -> None:
        self.head = head
        digest = self._file.digest
        self._hash = None if digest is None else digest.new_hash(self._file.size)
        self._hashed = 0

    def hash_to(self, end: int) -> None:
        """Hash what has arrived in order."""
        is_left = True
        while is_left:
            with self._lock:
                is_left = self._hash_block(end)

    def _hash_block(self, end: int) -> bool:
        if self._hash is None or self._hashed >= end:
            return False
        block = self._buffer[: end - self._hashed]
        count = os.preadv(self._descriptor, [block], self._hashed)
        self._hash.update(block[:count])
        self._hashed += count
        return count > 0

    @property
    def length(self) -> int:
        return os.fstat(self._descriptor).st_size

    def shorten(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)

    @property
    def is_right(self) -> bool:
        """True if the whole contents hash to what the repository lists; hashes the rest."""
        self.hash_to(self._file.size)
        digest = self._file.digest
        return self._hash is None or digest is None or self._hash.hexdigest() == digest.value


class Transfer:
    def __init__(self, name: str, remote: Remote, cache: Cache, commit: str) -> None:
        self._name = name
        self._remote = remote
        self._cache = cache
        self._commit = commit
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._large = 0  # unfinished files of several ranges
        self._connections = ThreadPoolExecutor(_CONNECTIONS)

    def run(self, files: Sequence[File]) -> None:
        """Fetch, verify and link missing files; equal contents are fetched once.

        Raises:
            ArtifactError: the disk is too small, or a file differs from the listing.
        """
        with self._translated_errors(files):
            absent = [file for file in files if not self._cache.recover(self._commit, file)]
            if absent:
                self.check_room(absent)
                self._run(_by_contents(absent))

    def check_room(self, files: Sequence[File]) -> None:
        """Compare the remaining bytes with the free space.

        Raises:
            ArtifactError: the disk is too small.
        """
        first = [same[0] for same in _by_contents(files)]
        needed = sum(-(-file.size // _BLOCK_BYTES) * _BLOCK_BYTES for file in first)
        needed -= sum(map(self._cache.begun_bytes, first))
        free = free_bytes(self._cache.root)
        if needed > free:
            raise self._disk_full(
                f"the download needs {needed / 1e9:.2f} GB more and {free / 1e9:.2f} GB are free"
            )

    def _run(self, groups: Sequence[Sequence[File]]) -> None:
        total = sum(same[0].size for same in groups)
        here = sum(self._cache.begun_bytes(same[0]) for same in groups)
        self._large = sum(same[0].size > RANGE_BYTES for same in groups)
        try:
            with (
                Progress(self._name, total, here) as progress,
                self._connections,
                ThreadPoolExecutor(_FILES_AT_ONCE) as large,
            ):
                tasks = []
                for same in groups:
                    threads = large if same[0].size > RANGE_BYTES else self._connections
                    tasks.append(threads.submit(self._unless_stopped, same, progress))
                self._wait(tasks)
        finally:
            self._remote.close()

    def _wait(self, tasks: Sequence[Future[None]]) -> None:
        """Wait for all; the first failure stops the others and is raised."""
        try:
            for task in as_completed(tasks):
                task.result()
        except BaseException:
            self._stopped.set()
            for task in tasks:
                task.cancel()
            raise

    def _unless_stopped(self, same: Sequence[File], progress: Progress) -> None:
        if self._stopped.is_set():
            return
        try:
            self._fetch(same, progress)
        except _Stopped:
            return
        except BaseException:
            self._stopped.set()
            raise
        finally:
            with self._lock:
                self._large -= same[0].size > RANGE_BYTES

    @property
    def _ranges_at_once(self) -> int:
        """Return how many ranges of a file may wait; few enough that several files take turns."""
        files = min(_FILES_AT_ONCE, self._large)
        return 2 * _CONNECTIONS // files if files > 1 else _MOST_WAITING

    def _fetch(self, same: Sequence[File], progress: Progress) -> None:
        """Fetch contents through the library if it is faster, otherwise here.

        Link them at every path.
        """
        first, *others = same
        if not self._cache.begun_bytes(first) and retrying(
            f"{self._name}: {first.path}", lambda: self._remote.fetch_whole(self._commit, first)
        ):
            progress.add(first.size)
            others = [*same]
        else:
            with self._cache.locked(self._name, first):
                if self._cache.recover(self._commit, first):  # another process has fetched it
                    progress.found(first.size)
                else:
                    self._download(first, progress)
        for file in others:
            if not self._cache.recover(self._commit, file):
                raise self._mismatch(file)

    def _download(self, file: File, progress: Progress) -> None:
        path = self._cache.unfinished(file)
        with _Unfinished(path, file) as unfinished:
            try:
                is_right = self._fill(file, unfinished, unfinished.begun, progress)
                if not is_right and unfinished.begun > 0:
                    progress.add(-file.size)
                    is_right = self._fill(file, unfinished, 0, progress)
            except WrongContentsError:
                path.unlink()
                raise
        if not is_right:
            path.unlink()
            raise self._mismatch(file)
        blob = self._cache.blob(file)
        path.replace(blob)
        if file.digest is not None:
            mark_known(blob, file.digest)
        self._cache.recover(self._commit, file)

    def _fill(self, file: File, unfinished: _Unfinished, start: int, progress: Progress) -> bool:
        """Fetch a file from `start` on, without ranges if the server does not support them.

        Returns:
            True if it hashes to what the repository lists.
        """
        unfinished.shorten(start)
        try:
            self._fill_by_ranges(file, unfinished, start, progress)
        except _NoRanges:
            progress.add(-unfinished.length)
            whole = _Range(0, file.size)
            unfinished.restart_hash(whole)
            self._read_to_end(file, unfinished, whole, progress)
        return unfinished.is_right

    def _fill_by_ranges(
        self, file: File, unfinished: _Unfinished, start: int, progress: Progress
    ) -> None:
        """Fetch ranges in parallel and hash them in order.

        After an error keep the part before the first hole.
        """
        rest = _Range(start, file.size)
        unfinished.restart_hash(rest)
        if file.size <= RANGE_BYTES:  # already in a thread of the connections
            self._read_to_end(file, unfinished, rest, progress)
            return
        starts = range(start, file.size, RANGE_BYTES)
        ranges = deque(_Range(first, min(first + RANGE_BYTES, file.size)) for first in starts)
        ahead: deque[tuple[_Range, Future[None]]] = deque()
        try:
            while ranges or ahead:
                while ranges and len(ahead) <= self._ranges_at_once:
                    begun = file, unfinished, ranges[0], progress
                    task = self._connections.submit(self._read_to_end, *begun)
                    ahead.append((ranges.popleft(), task))
                unfinished.head = ahead[0][0]
                unfinished.hash_to(unfinished.head.start)
                ahead[0][1].result()
                ahead.popleft()
        except BaseException:
            wait([task for _, task in ahead if not task.cancel()])  # they write to the file
            progress.add(-sum(each.place - each.start for each, _ in [*ahead][1:]))
            unfinished.shorten(ahead[0][0].place)
            raise

    def _read_to_end(
        self, file: File, unfinished: _Unfinished, range_: _Range, progress: Progress
    ) -> None:
        """Fetch the rest of a range; every attempt that receives something earns new ones."""
        name = f"{self._name}: {file.path}"
        while range_.place < range_.end:
            before = range_.place
            try:
                retrying(name, lambda: self._read(file, unfinished, range_, progress))
            except WrongContentsError:
                raise
            except ArtifactError:
                if range_.place <= before:
                    raise

    def _read(
        self, file: File, unfinished: _Unfinished, range_: _Range, progress: Progress
    ) -> None:
        if self._stopped.is_set():
            raise _Stopped
        with self._remote.open(self._commit, file, range_.place, range_.end) as (is_part, chunks):
            if not is_part and (range_.place, range_.end) != (0, file.size):
                if (range_.start, range_.end) != (0, file.size):
                    raise _NoRanges
                progress.add(-range_.place)
                range_.place = 0
                unfinished.restart_hash(range_)
            for chunk in chunks:
                if self._stopped.is_set():
                    raise _Stopped
                if range_.place + len(chunk) > range_.end:
                    raise self._too_long(file, range_.end)
                unfinished.write(chunk, range_.place)
                range_.place += len(chunk)
                progress.add(len(chunk))
        if range_.place < range_.end:
            raise Interrupted(
                f"was cut short at {range_.place} of {range_.end} bytes",
                "the next start resumes with what is on the disk",
            )

    def _too_long(self, file: File, end: int) -> Exception:
        if end < file.size:
            return Interrupted(
                f"was answered with more bytes than asked for before {end}",
                "check this machine's proxies, and use another repository or mirror",
            )
        return WrongContentsError.longer(file)

    def _mismatch(self, file: File) -> ArtifactError:
        return ArtifactError(
            f"{self._name}: {file.path} does not match the repository's listing, and was "
            "removed; try again, or upload the file again."
        )

    @contextmanager
    def _translated_errors(self, files: Sequence[File]) -> Iterator[None]:
        """Translate errors of the disk; free some space on a full one."""
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                for file in files:
                    if begun := self._cache.begun_bytes(file):
                        os.truncate(self._cache.unfinished(file), max(0, begun - _FREED_BYTES))
                raise self._disk_full("the download found no room left") from error
            raise ArtifactError(
                f"{self._name} cannot be written to {self._cache.root} ({error.strerror}); check "
                "its permissions, or point HF_HOME at another folder."
            ) from error

    def _disk_full(self, what: str) -> ArtifactError:
        return ArtifactError(
            f"{self._name}: {what} on the disk of {self._cache.root}; free some space, or point "
            "HF_HOME at a larger disk."
        )


def _by_contents(files: Sequence[File]) -> list[list[File]]:
    groups: dict[str, list[File]] = {}
    for file in files:
        groups.setdefault(file.blob_name, []).append(file)
    return list(groups.values())
