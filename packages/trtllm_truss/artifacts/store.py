"""Where fetched files lie: the layout of Hugging Face's cache, and what is known to be whole.

One folder per repository, as huggingface_hub writes and reads it
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache)::

    blobs/<content id>                 the contents, each once
    blobs/<content id>.incomplete      the beginning of one, to be resumed
    snapshots/<commit>/<path>          links to blobs
    trtllm-truss.json                  ours: listings, and which of their files were verified

A blob gets its name after it was verified; a file counts only once the record names it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtllm_truss.artifacts.contents import Digest, write_atomically
from trtllm_truss.artifacts.listing import File, Listing

logger = logging.getLogger(__name__)

_RECORD = "trtllm-truss.json"
_LOCK = "trtllm-truss.lock"


@dataclass
class _Record:
    """What is known of a repository.

    Attributes:
        revisions: the commit by the revision that was asked for.
        listings: every file by commit.
        verified: paths of the files that are here and whole, by commit.
    """

    revisions: dict[str, str] = field(default_factory=dict)
    listings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    verified: dict[str, list[str]] = field(default_factory=dict)


class Store:
    """The folder of one repository."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._blobs = root / "blobs"

    @property
    def root(self) -> Path:
        """The repository's folder; it may not be there yet."""
        return self._root

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Keeps other processes and threads out while files are fetched.

        The lock goes with its holder, however that ends. A folder that cannot be written to (a
        cache baked into an image) needs none.

        Args:
            name: what is fetched, for the log.
        """
        try:
            self._blobs.mkdir(parents=True, exist_ok=True)
            lock = (self._root / _LOCK).open("w")
        except OSError:
            yield
            return
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("%s is being fetched by someone else here; waiting", name)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def remembered(self, revision: str) -> Listing | None:
        """The listing that was last seen of a revision, if any."""
        record = self._read()
        commit = record.revisions.get(revision, revision)
        if commit not in record.listings:
            return None
        return Listing(commit, tuple(_file(entry) for entry in record.listings[commit]))

    def found(self, revision: str) -> Listing | None:
        """What huggingface_hub itself has put here under a revision, if anything."""
        commit = revision
        with contextlib.suppress(OSError):  # branches and tags have a file here, commits none
            commit = (self._root / "refs" / revision).read_text().strip()
        snapshot = self.snapshot(commit)
        found = [path for path in snapshot.rglob("*") if path.is_file()]
        files = (
            File(path.relative_to(snapshot).as_posix(), path.stat().st_size, path.name, None)
            for path in found
        )
        return Listing(commit, tuple(files)) if found else None

    def remember(self, revision: str, listing: Listing) -> None:
        """Keeps a listing, so that a later start can do without the network."""
        record = self._read()
        entries = [asdict(file) for file in listing.files]
        known = record.revisions.get(revision), record.listings.get(listing.commit)
        if known != (listing.commit, entries):
            record.revisions[revision] = listing.commit
            record.listings[listing.commit] = entries
            self._write(record)

    def missing(self, listing: Listing, paths: Collection[str]) -> list[File]:
        """Those of the files that are not here, or not known to be whole; largest first."""
        verified = self._read().verified.get(listing.commit, [])
        return [
            file
            for file in listing.select(paths)
            if file.path not in verified or not self._is_linked(listing.commit, file)
        ]

    def mark_verified(self, commit: str, files: Iterable[File]) -> None:
        """Records that files are whole; from now on they are used without another look."""
        record = self._read()
        paths = {*record.verified.get(commit, []), *(file.path for file in files)}
        record.verified[commit] = sorted(paths)
        self._write(record)

    def snapshot(self, commit: str) -> Path:
        """The folder in which one state's files have their own names."""
        return self._root / "snapshots" / commit

    def blob(self, file: File) -> Path:
        """Where a file's contents lie, or would."""
        return self._blobs / file.content_id

    def link(self, commit: str, file: File) -> None:
        """Gives a blob its path in a snapshot."""
        link = self.snapshot(commit) / file.path
        link.parent.mkdir(parents=True, exist_ok=True)
        temporary = link.with_name(f".{link.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(self.blob(file), link.parent))
        temporary.replace(link)

    def _is_linked(self, commit: str, file: File) -> bool:
        try:
            return (self.snapshot(commit) / file.path).stat().st_size == file.size
        except OSError:
            return False

    def _read(self) -> _Record:
        try:
            return _Record(**json.loads((self._root / _RECORD).read_bytes()))
        except (OSError, ValueError, TypeError):
            return _Record()

    def _write(self, record: _Record) -> None:
        content = json.dumps(asdict(record), indent=1).encode()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            write_atomically(self._root / _RECORD, content)
        except OSError as error:
            logger.debug("%s cannot be written: %s", self._root / _RECORD, error)


def _file(entry: dict[str, Any]) -> File:
    digest = entry["digest"]
    return File(**{**entry, "digest": digest and Digest(**digest)})
