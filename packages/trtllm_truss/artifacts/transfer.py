"""Transfer of files from a remote repository to its store: resumed, verified, concurrent.

Large files are fetched as ranges of 16 to 64 MiB, the ranges of four files in turn, over at most
eight connections. Each range is tried again by itself. The contents are hashed as they arrive.
Progress goes to the log as lines; containers have no terminal for bars.
"""

from __future__ import annotations

import errno
import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

from trtllm_truss.artifacts.direct import Interrupted, Unreachable, WrongContentsError, retrying
from trtllm_truss.artifacts.listing import File, Listing, check_readable, mark_sha256, named
from trtllm_truss.artifacts.part import RANGE_BYTES, PartialFile
from trtllm_truss.artifacts.store import Store
from trtllm_truss.errors import ArtifactError

_EVERY_S = 5.0


class Progress:
    """Counts bytes and logs progress every few seconds. Thread-safe.

    As a context manager it also logs the start and the speed of a download.

    Args:
        here_bytes: bytes left by an earlier attempt.
    """

    def __init__(self, name: str, total_bytes: int, here_bytes: int = 0) -> None:
        self._name = name
        self._total = total_bytes
        self._here = here_bytes
        self._fetched = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._reporter = threading.Thread(target=self._report, daemon=True)

    def add(self, count: int) -> None:
        """Count received bytes; negative for discarded ones."""
        with self._lock:
            self._fetched += count

    def __enter__(self) -> Progress:
        resumed = f", {_size(self._here)} of them here already" if self._here else ""
        logger.info("%s: fetching %s%s", self._name, _size(self._total), resumed)
        self._start = time.monotonic()
        self._reporter.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        self._reporter.join()
        if error is None:
            spent_s = time.monotonic() - self._start
            logger.info("%s: fetched in %.1f s (%s)", self._name, spent_s, self._rate(spent_s))

    def _report(self) -> None:
        while not self._ended.wait(_EVERY_S):
            spent_s = time.monotonic() - self._start
            with self._lock:
                fetched = self._fetched
            done = self._here + fetched
            left = f"{spent_s * (self._total - done) / fetched:.0f} s" if fetched > 0 else "unknown"
            logger.info(
                "%s: %s of %s, %s, time left: %s",
                *(self._name, _size(done), _size(self._total), self._rate(spent_s), left),
            )

    def _rate(self, spent_s: float) -> str:
        return f"{_size(self._fetched / max(spent_s, 0.001))}/s"


def _size(count: float) -> str:
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}"
    return f"{count:.0f} bytes"


logger = logging.getLogger(__name__)

_CONNECTIONS = 8
_FILES_AT_ONCE = 4
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FREED_BYTES = 1 << 28
_BLOCK_BYTES = 4096


def free_bytes(folder: Path) -> int:
    """Return the free disk space for a folder, which need not exist yet."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    return shutil.disk_usage(existing).free


class Remote(Protocol):
    """The remote side of a download. Methods raise `Interrupted` for transient errors."""

    def listing(self) -> Listing:
        """List the current files."""

    def open(
        self, commit: str, file: File, start: int, end: int
    ) -> AbstractContextManager[tuple[bool, Iterator[bytes | memoryview]]]:
        """Open a file from byte `start` to before `end`.

        Returns:
            True if the answer is that part, False if it is the whole file, and its bytes; a chunk
            is valid until the next one.
        """

    def close(self) -> None:
        """Close the connections that are kept between ranges."""

    def fetch_whole(self, commit: str, file: File, destination: Path) -> bool:
        """Fetch a file by a faster, non-resumable way, if available.

        Returns:
            True if the file was fetched.
        """


class _Download:
    """The download of one blob.

    Attributes:
        files: those that have it.
        part: what has arrived of it.
        in_ranges: whether it is fetched in ranges.
        is_resumed: whether an earlier attempt has left something.
        is_dropped: whether the server knows no ranges, so that it is fetched anew.
        numbers: the ranges to fetch.
        left: how many of them have not arrived.
    """

    def __init__(self, files: Sequence[File], part: Path, *, in_ranges: bool = True) -> None:
        self.files = files
        self.path = part
        self.part = PartialFile(part, files[0], in_ranges=in_ranges)
        self.in_ranges = in_ranges
        self.is_resumed = self.part.arrived_bytes > 0
        self.is_dropped = False
        self.numbers = self.part.unfinished or [0]
        self.left = len(self.numbers)


class Transfer:
    def __init__(self, name: str, remote: Remote, store: Store, commit: str) -> None:
        self._name = name
        self._remote = remote
        self._store = store
        self._commit = commit
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._again: list[_Download] = []
        self._refused: list[Path] = []

    def run(self, files: Sequence[File]) -> None:
        """Fetch, verify and link missing files; equal contents are fetched once.

        Raises:
            ArtifactError: the disk is too small, or a file differs from the listing.
        """
        with self._translated_errors(files):
            absent = [file for file in files if not self._store.recover(self._commit, file)]
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
        needed -= self._resumable_bytes(first)
        free = free_bytes(self._store.root)
        if needed > free:
            raise self._disk_full(
                f"the download needs {needed / 1e9:.2f} GB more and {free / 1e9:.2f} GB are free"
            )

    def _run(self, groups: Sequence[Sequence[File]]) -> None:
        downloads = [_Download(same, self._store.part(same[0])) for same in groups]
        total = sum(same[0].size for same in groups)
        here = sum(download.part.arrived_bytes for download in downloads)
        try:
            with (
                Progress(self._name, total, here) as progress,
                ThreadPoolExecutor(_CONNECTIONS) as threads,
            ):
                while downloads:
                    whole = [(download, progress) for download in downloads]
                    self._side_by_side(threads, self._fetch_whole, whole)
                    ranges = [(*step, progress) for step in _steps(downloads)]
                    self._side_by_side(threads, self._fetch_range, ranges)
                    downloads = [self._anew(download, progress) for download in self._again]
                    self._again = []
        finally:
            self._remote.close()
            for part in self._refused:
                part.unlink(missing_ok=True)

    def _side_by_side(
        self,
        threads: ThreadPoolExecutor,
        call: Callable[..., None],
        arguments: Sequence[tuple[Any, ...]],
    ) -> None:
        """Call once for each of `arguments`; the first failure stops the others and is raised."""
        tasks = [threads.submit(self._unless_stopped, call, *each) for each in arguments]
        try:
            for task in as_completed(tasks):
                task.result()
        except BaseException:
            self._stopped.set()
            for task in tasks:
                task.cancel()
            raise

    def _unless_stopped(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._stopped.is_set():
            return
        try:
            call(*arguments)
        except BaseException:
            self._stopped.set()
            raise

    def _resumable_bytes(self, files: Sequence[File]) -> int:
        """Bytes that an earlier attempt has left."""
        return sum(PartialFile(self._store.part(file), file).arrived_bytes for file in files)

    def _anew(self, old: _Download, progress: Progress) -> _Download:
        """Prepare a download again, without ranges where the server knows none."""
        in_ranges = old.in_ranges and not old.is_dropped
        download = _Download(old.files, old.path, in_ranges=in_ranges)
        progress.add(download.part.arrived_bytes - old.part.arrived_bytes)
        return download

    def _fetch_whole(self, download: _Download, progress: Progress) -> None:
        """Fetch a file in the faster way, if there is one and no earlier attempt left anything."""
        file = download.files[0]
        if download.is_resumed or not retrying(
            f"{self._name}: {file.path}",
            lambda: self._remote.fetch_whole(self._commit, file, download.path),
        ):
            return
        progress.add(file.size)
        download.numbers = []
        if not file.fits(download.path):
            download.path.unlink()
            raise self._mismatch(file)
        self._keep(download)

    def _fetch_range(self, download: _Download, number: int, progress: Progress) -> None:
        """Fetch one range; the last one to arrive finishes the file."""
        with download.part.opened() as descriptor:
            download.part.catch_up(descriptor, number)
            self._read_to_end(download, number, descriptor, progress)
        with self._lock:
            if self._stopped.is_set() or download.is_dropped:
                return
            download.left -= 1
            if download.left > 0:
                return
        started = time.monotonic()
        is_right = download.part.finish()
        if is_right:
            if len(download.part) > 1:
                spent_s, path = time.monotonic() - started, download.files[0].path
                logger.info("%s: %s verified %.1f s after its last byte", self._name, path, spent_s)
            self._keep(download)
            return
        download.path.unlink()
        if not download.is_resumed:
            raise self._mismatch(download.files[0])
        with self._lock:
            self._again.append(download)

    def _keep(self, download: _Download) -> None:
        """Give verified contents their name and every path; large ones are not read again."""
        first, *others = download.files
        blob = self._store.blob(first)
        download.path.replace(blob)
        for file in others:
            if (file.size, file.digest) != (first.size, first.digest) and not file.fits(blob):
                raise self._mismatch(file)
        for file in download.files:
            self._store.link(self._commit, file)
        if first.size >= RANGE_BYTES:
            if first.digest is not None and first.digest.algorithm == "sha256":
                mark_sha256(blob, first.digest.value)
            with self._lock:
                self._store.mark_verified(self._commit, download.files)

    def _read_to_end(
        self, download: _Download, number: int, descriptor: int, progress: Progress
    ) -> None:
        """Fetch the rest of a range; every attempt that brings something earns new ones."""
        name = f"{self._name}: {download.files[0].path}"
        while not self._stopped.is_set() and not download.is_dropped:
            before, end = download.part.wanted(number)
            if before >= end:
                return
            try:
                retrying(name, lambda: self._read(download, number, descriptor, progress))
            except WrongContentsError:
                self._refused.append(download.path)
                raise
            except ArtifactError:
                if download.part.wanted(number)[0] <= before:
                    raise

    def _read(self, download: _Download, number: int, descriptor: int, progress: Progress) -> None:
        file, part = download.files[0], download.part
        place, end = part.wanted(number)
        with self._remote.open(self._commit, file, place, end) as (is_part, chunks):
            if not is_part and (place, end) != (0, file.size):
                if len(part) > 1:
                    self._drop(download)
                    return
                part.restart(descriptor)
                progress.add(-place)
                place = 0
            for chunk in chunks:
                if self._stopped.is_set() or download.is_dropped:
                    return
                if place + len(chunk) > end:
                    raise self._too_long(download, end)
                part.write(descriptor, number, chunk)
                place += len(chunk)
                progress.add(len(chunk))
        if place < end:
            raise Interrupted(
                f"was cut short at {place} of {end} bytes",
                "received bytes are kept, and the next start resumes there",
            )

    def _drop(self, download: _Download) -> None:
        """Have a file fetched as one stream once its other ranges have stopped."""
        with self._lock:
            if not download.is_dropped:
                download.is_dropped = True
                self._again.append(download)

    def _too_long(self, download: _Download, end: int) -> Exception:
        file = download.files[0]
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
                for same in _by_contents(files):
                    PartialFile(self._store.part(same[0]), same[0]).shorten(_FREED_BYTES)
                raise self._disk_full("the download found no room left") from error
            raise ArtifactError(
                f"{self._name} cannot be written to {self._store.root} ({error.strerror}); check "
                "its permissions, or point HF_HOME at another folder."
            ) from error

    def _disk_full(self, what: str) -> ArtifactError:
        return ArtifactError(
            f"{self._name}: {what} on the disk of {self._store.root}; free some space, or point "
            "HF_HOME at a larger disk."
        )


def _by_contents(files: Sequence[File]) -> list[list[File]]:
    groups: dict[str, list[File]] = {}
    for file in files:
        groups.setdefault(file.blob_name, []).append(file)
    return list(groups.values())


def _steps(downloads: Sequence[_Download]) -> Iterator[tuple[_Download, int]]:
    """Order the ranges: those of four files in turn, then those of the next four."""
    for first in range(0, len(downloads), _FILES_AT_ONCE):
        batch = downloads[first : first + _FILES_AT_ONCE]
        for numbers in zip_longest(*(download.numbers for download in batch)):
            for download, number in zip(batch, numbers, strict=True):
                if number is not None:
                    yield download, number


class RemoteSource:
    """One revision of a remote repository; nothing is requested on construction.

    Args:
        name: for messages: ``engine_repository 'org/name'``.
        fixed: True if the revision is immutable, so that it is listed only once.
    """

    is_mounted = False

    def __init__(
        self, name: str, remote: Remote, store: Store, revision: str, *, fixed: bool
    ) -> None:
        self._name = name
        self._remote = remote
        self._store = store
        self._revision = revision
        self._fixed = fixed
        self._lock = threading.Lock()
        self._listed: Listing | None = None

    @property
    def name(self) -> str:
        return self._name

    def listing(self) -> Listing:
        """List all files; without a response, return the last known listing."""
        with self._lock:
            if self._listed is None:
                with named(self._name):
                    self._listed = self._list()
            return self._listed

    def read(self, path: str) -> bytes:
        """Return a file's contents, up to `MAX_READ_BYTES`."""
        check_readable(self._name, path, self.listing().sizes[path])
        return (self.fetch([path]) / path).read_bytes()

    def read_head(self, path: str, count: int) -> bytes:
        """Return the beginning of a file, from this machine if it is here, else by one request."""
        listing = self.listing()
        (file,) = listing.select([path])
        if place := self.present([path]):
            with place[0].open("rb") as here:
                return here.read(count)
        with named(self._name):
            try:
                return retrying(
                    f"{self._name}: {path}",
                    lambda: self._fetch_head(listing.commit, file, min(count, file.size)),
                )
            finally:
                self._remote.close()

    def _fetch_head(self, commit: str, file: File, end: int) -> bytes:
        head = bytearray()
        with self._remote.open(commit, file, 0, end) as (_, chunks):
            for chunk in chunks:  # of the whole file from a server that knows no ranges
                head += chunk
                if len(head) >= end:
                    return bytes(head[:end])
        raise Interrupted(f"was cut short at {len(head)} of {end} bytes", "try again later")

    def check_room(self, paths: Collection[str]) -> None:
        listing = self.listing()
        with named(self._name):
            self._transfer(listing).check_room(self._store.missing(listing, paths))

    def present(self, paths: Collection[str]) -> list[Path]:
        listing = self.listing()
        missing = {file.path for file in self._store.missing(listing, paths)}
        return [
            self._store.snapshot(listing.commit) / path for path in paths if path not in missing
        ]

    def fetch(self, paths: Collection[str]) -> Path:
        listing, store = self.listing(), self._store
        with named(self._name):
            if store.missing(listing, paths):
                with store.locked(self._name):
                    missing = store.missing(listing, paths)
                    self._transfer(listing).run(missing)
                    store.mark_verified(listing.commit, missing)
            return store.snapshot(listing.commit)

    def _transfer(self, listing: Listing) -> Transfer:
        return Transfer(self._name, self._remote, self._store, listing.commit)

    def _list(self) -> Listing:
        recorded = self._store.recorded(self._revision)
        if recorded is not None and self._fixed:
            return recorded
        here = recorded or self._store.found(self._revision)
        started = time.monotonic()
        try:
            listing = retrying(self._name, self._remote.listing, tries=2 if here else 4)
        except Unreachable as problem:
            if here is None:
                raise
            logger.warning("%s Continuing with %s, fetched before.", problem, here.commit)
            return here
        logger.info("%s: listed in %.1f s", self._name, time.monotonic() - started)
        with self._store.locked(self._name):
            self._store.record(self._revision, listing)
        return listing
