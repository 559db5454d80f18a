"""Transfer of files from a remote repository to its store: resumed, verified, concurrent."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from trtllm_truss.artifacts.listing import File, Listing
from trtllm_truss.artifacts.progress import Progress
from trtllm_truss.artifacts.retrying import Interrupted, retrying
from trtllm_truss.artifacts.store import Store
from trtllm_truss.errors import ArtifactError

_AT_ONCE = 8
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
        self, commit: str, file: File, offset: int
    ) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Open a file of a commit at an offset in bytes.

        Returns:
            The actual offset, `offset` or 0, and the contents from there on.
        """

    def fetch_whole(self, commit: str, file: File, destination: Path) -> bool:
        """Fetch a file by a faster, non-resumable way, if available.

        Returns:
            True if the file was fetched.
        """


class Transfer:
    def __init__(self, name: str, remote: Remote, store: Store, commit: str) -> None:
        self._name = name
        self._remote = remote
        self._store = store
        self._commit = commit
        self._stopped = threading.Event()

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
        first = [same[0] for same in groups]
        total = sum(file.size for file in first)
        with (
            Progress(self._name, total, self._resumable_bytes(first)) as progress,
            ThreadPoolExecutor(_AT_ONCE) as threads,
        ):
            tasks = [threads.submit(self._fetch_equal, same, progress) for same in groups]
            try:
                done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
                for task in done:
                    task.result()
            finally:
                self._stopped.set()
                for task in tasks:
                    task.cancel()

    def _resumable_bytes(self, files: Sequence[File]) -> int:
        return sum(min(_size(self._store.part(file)), file.size) for file in files)

    def _fetch_equal(self, files: Sequence[File], progress: Progress) -> None:
        """Fetch the first of some files with one content id, and link all of them."""
        first = files[0]
        if not self._fetch(first, progress):
            return
        blob = self._store.blob(first)
        for file in files:
            is_checked = (file.size, file.digest) == (first.size, first.digest)
            if not is_checked and not file.fits(blob):
                raise self._mismatch(file)
            self._store.link(self._commit, file)

    def _fetch(self, file: File, progress: Progress) -> bool:
        """Fetch one file's contents; if a resumed file is damaged, retry once from zero.

        Returns:
            False if another file's failure stopped it.
        """
        part = self._store.part(file)
        resumed = _size(part) > 0
        if not resumed and retrying(
            f"{self._name}: {file.path}",
            lambda: self._remote.fetch_whole(self._commit, file, part),
        ):
            progress.add(file.size)
        else:
            self._read_to_end(file, part, progress)
            if self._stopped.is_set():
                return False
        if not file.fits(part):
            part.unlink()
            if not resumed:
                raise self._mismatch(file)
            progress.add(-file.size)
            return self._fetch(file, progress)
        part.replace(self._store.blob(file))
        return True

    def _read_to_end(self, file: File, part: Path, progress: Progress) -> None:
        """Fetch the rest of a file; retries start over after every attempt with progress."""
        _opened(part).close()
        while (before := _size(part)) < file.size and not self._stopped.is_set():
            try:
                retrying(f"{self._name}: {file.path}", lambda: self._read(file, part, progress))
            except ArtifactError:
                if _size(part) <= before:
                    raise

    def _read(self, file: File, part: Path, progress: Progress) -> None:
        offset = _size(part)
        with (
            self._remote.open(self._commit, file, offset) as (place, chunks),
            _opened(part) as stream,
        ):
            stream.truncate(place)
            stream.seek(place)
            progress.add(place - offset)
            for chunk in chunks:
                if self._stopped.is_set():
                    return
                place += len(chunk)
                if place > file.size:
                    part.unlink()
                    raise ArtifactError(
                        f"{self._name}: {file.path} is longer than the {file.size} bytes that the "
                        "repository lists, and was removed; try again, or use another repository "
                        "or mirror."
                    )
                stream.write(chunk)
                progress.add(len(chunk))
        if place < file.size:
            raise Interrupted(
                f"was cut short at {place} of {file.size} bytes",
                "received bytes are kept, and the next start resumes there",
            )

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
                    _shorten(self._store.part(same[0]))
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


def _opened(part: Path) -> BinaryIO:
    return os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b")


def _shorten(part: Path) -> None:
    """Cut up to 256 MiB off an unfinished file; the next start resumes from there."""
    size = _size(part)
    if size > 0:
        with contextlib.suppress(OSError):
            os.truncate(part, max(0, size - _FREED_BYTES))


def _size(part: Path) -> int:
    try:
        return part.lstat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0
