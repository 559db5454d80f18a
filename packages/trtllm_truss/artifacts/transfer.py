"""Files from a remote repository into its store: resumed, verified, several at once."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from trtllm_truss.artifacts.listing import File, Listing
from trtllm_truss.artifacts.progress import Progress
from trtllm_truss.artifacts.retrying import Interrupted, retrying
from trtllm_truss.artifacts.store import Store
from trtllm_truss.errors import ArtifactError

_AT_ONCE = 8
_FULL = {errno.ENOSPC, errno.EDQUOT}


class Remote(Protocol):
    """The other side of a download. Methods raise `Interrupted` for what may pass."""

    def listing(self) -> Listing:
        """What the repository holds now."""

    def open(
        self, commit: str, file: File, offset: int
    ) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Begins to read a file.

        Args:
            commit: the state to read it from.
            file: which one.
            offset: the first byte that is wanted.

        Returns:
            The byte at which it begins, `offset` or 0, and the contents from there on.
        """

    def fetch_whole(self, commit: str, file: File, destination: Path) -> bool:
        """Fetches a file in a faster way that cannot be resumed, if there is one.

        Returns:
            Whether it did.
        """


class Transfer:
    """The fetching of some files of one state of a repository."""

    def __init__(self, name: str, remote: Remote, store: Store, commit: str) -> None:
        self._name = name
        self._remote = remote
        self._store = store
        self._commit = commit
        self._stopped = threading.Event()

    def run(self, files: Sequence[File]) -> None:
        """Fetches files; each is verified, and linked into the snapshot, or not there at all.

        Raises:
            ArtifactError: the disk is too small, or a file did not arrive as the listing says.
        """
        self.check_room(files)
        total = sum(file.size for file in files)
        with (
            Progress(self._name, total, self._begun(files)) as progress,
            ThreadPoolExecutor(_AT_ONCE) as threads,
            self._clear_words(),
        ):
            tasks = [threads.submit(self._fetch, file, progress) for file in files]
            try:
                done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
                for task in done:
                    task.result()
            finally:
                self._stopped.set()
                for task in tasks:
                    task.cancel()

    def check_room(self, files: Sequence[File]) -> None:
        """Compares what is still to come with the disk.

        Raises:
            ArtifactError: it is too small.
        """
        needed = sum(file.size for file in files) - self._begun(files)
        root = self._store.root
        there = next(folder for folder in (root, *root.parents) if folder.exists())
        free = shutil.disk_usage(there).free
        if needed > free:
            raise self._disk_full(f"needs {needed / 1e9:.2f} GB more and {free / 1e9:.2f} GB are")

    def _begun(self, files: Sequence[File]) -> int:
        """Bytes that an earlier attempt has left."""
        return sum(min(_size(self._part(file)), file.size) for file in files)

    def _fetch(self, file: File, progress: Progress) -> None:
        """One file; what an earlier attempt has left is worth a second one from the beginning."""
        part = self._part(file)
        resumed = _size(part) > 0
        if not resumed and retrying(
            f"{self._name}: {file.path}",
            lambda: self._remote.fetch_whole(self._commit, file, part),
        ):
            progress.add(file.size)
        else:
            self._read_to_end(file, part, progress)
            if self._stopped.is_set():
                return
        if file.digest is not None and not file.digest.matches(part):
            part.unlink()
            if not resumed:
                raise ArtifactError(
                    f"{self._name}: {file.path} arrived with other contents than the repository "
                    "lists, and was removed; try again, and upload the file anew if that does not "
                    "help."
                )
            progress.add(-file.size)
            return self._fetch(file, progress)
        part.replace(self._store.blob(file))
        self._store.link(self._commit, file)

    def _read_to_end(self, file: File, part: Path, progress: Progress) -> None:
        """Fetches the rest of a file; every attempt that brings something earns new ones."""
        part.touch()
        while (before := _size(part)) < file.size and not self._stopped.is_set():
            try:
                retrying(f"{self._name}: {file.path}", lambda: self._read(file, part, progress))
            except ArtifactError:
                if _size(part) <= before:
                    raise

    def _read(self, file: File, part: Path, progress: Progress) -> None:
        offset = _size(part)
        with (
            self._remote.open(self._commit, file, offset) as (start, chunks),
            part.open("r+b", buffering=0) as stream,
        ):
            stream.truncate(start)
            stream.seek(start)
            progress.add(start - offset)
            for chunk in chunks:
                if self._stopped.is_set():
                    return
                stream.write(chunk)
                progress.add(len(chunk))
        if _size(part) > file.size:
            part.unlink()
            raise ArtifactError(
                f"{self._name}: {file.path} is longer than the {file.size} bytes that the "
                "repository lists, and was removed; try again."
            )
        if _size(part) < file.size:
            raise Interrupted(
                f"was cut short at {_size(part)} of {file.size} bytes",
                "what has arrived is kept and the next start goes on from there",
            )

    def _part(self, file: File) -> Path:
        blob = self._store.blob(file)
        return blob.with_name(f"{blob.name}.incomplete")

    @contextmanager
    def _clear_words(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise self._disk_full("filled it: nothing is") from error
            raise ArtifactError(
                f"{self._name} cannot be written to {self._store.root} ({error.strerror}); check "
                "its permissions, or point HF_HOME at another folder."
            ) from error

    def _disk_full(self, what: str) -> ArtifactError:
        return ArtifactError(
            f"{self._name}: the download {what} free on the disk of {self._store.root}; make "
            "room, or point HF_HOME at a larger disk."
        )


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0
