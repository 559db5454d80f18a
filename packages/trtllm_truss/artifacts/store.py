"""Store of fetched files in the layout of Hugging Face's cache, with a record of verified ones.

One folder per repository, as huggingface_hub writes and reads it
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache)::

    blobs/<content id>                            the contents, each once
    blobs/<content id>.trtllm-truss.incomplete    ours: a partial download
    snapshots/<commit>/<path>                     links to blobs
    trtllm-truss.json                             ours: listings and verified files

A blob gets its name after verification; a file is used once the record names it. Nothing is written
or removed through a link that leads out of the folder. `blobs/<content id>.incomplete` belongs to
huggingface_hub: releases below 2.0 append to it without our lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtllm_truss.artifacts.listing import Digest, File, Listing, is_commit, write_atomically
from trtllm_truss.errors import ArtifactError

logger = logging.getLogger(__name__)

_RECORD = "trtllm-truss.json"
_LOCK = "trtllm-truss.lock"


@dataclass
class _Record:
    """The record of a repository.

    Attributes:
        revisions: commits by requested revision.
        listings: files by commit.
        verified: paths of verified files by commit.
    """

    revisions: dict[str, str] = field(default_factory=dict)
    listings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    verified: dict[str, list[str]] = field(default_factory=dict)


class Store:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._blobs = root / "blobs"

    @property
    def root(self) -> Path:
        """The repository's folder; it may not exist yet."""
        return self._root

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Lock the store against other processes and threads during a download.

        The lock ends with its process. A read-only folder (a cache in an image) needs none.

        Args:
            name: the repository, for the log.
        """
        try:
            self._blobs.mkdir(parents=True, exist_ok=True)
            lock = (self._root / _LOCK).open("a")
        except OSError:
            yield
            return
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("another process is fetching %s; waiting", name)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def recorded(self, revision: str) -> Listing | None:
        """Return the last known listing of a revision, validated like a new one."""
        record = self._read()
        try:
            commit = record.revisions.get(revision, revision)
            return Listing(commit, tuple(_file(entry) for entry in record.listings[commit]))
        except (ArtifactError, LookupError, TypeError):
            return None

    def found(self, revision: str) -> Listing | None:
        """Return a listing of the files that huggingface_hub has fetched for a revision, if any."""
        commit = revision
        with contextlib.suppress(OSError, ValueError):  # branches and tags have a file, commits not
            commit = (self._root / "refs" / revision).read_text("ascii").strip()
        if not is_commit(commit):
            return None
        snapshot = self.snapshot(commit)
        files = tuple(
            File.unhashed(commit, path.relative_to(snapshot).as_posix(), path.stat().st_size)
            for path in snapshot.rglob("*")
            if path.is_file()
        )
        return Listing(commit, files) if files else None

    def record(self, revision: str, listing: Listing) -> None:
        """Record a listing, so that a later start works offline."""
        record = self._read()
        entries = [asdict(file) for file in listing.files]
        known = record.revisions.get(revision), record.listings.get(listing.commit)
        if known != (listing.commit, entries):
            record.revisions[revision] = listing.commit
            record.listings[listing.commit] = entries
            self._write(record)

    def missing(self, listing: Listing, paths: Collection[str]) -> list[File]:
        """Return the files that are missing or not verified; largest first."""
        verified = set(self._read().verified.get(listing.commit, []))
        return [
            file
            for file in listing.select(paths)
            if file.path not in verified or not self._is_linked(listing.commit, file)
        ]

    def mark_verified(self, commit: str, files: Iterable[File]) -> None:
        """Record that files are verified; they are not read again."""
        record = self._read()
        paths = {*record.verified.get(commit, []), *(file.path for file in files)}
        record.verified[commit] = sorted(paths)
        self._write(record)

    def snapshot(self, commit: str) -> Path:
        return self._inside(self._root / "snapshots" / commit)

    def blob(self, file: File) -> Path:
        return self._inside(self._blobs / file.blob_name)

    def part(self, file: File) -> Path:
        blob = self.blob(file)
        return blob.with_name(f"{blob.name}.trtllm-truss.incomplete")

    def link(self, commit: str, file: File) -> None:
        link = self._inside(self.snapshot(commit) / file.path)
        target = os.path.relpath(self.blob(file), link.parent)
        if link.is_symlink() and str(link.readlink()) == target:
            return
        link.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._blobs / f"trtllm-truss.{os.getpid()}.{threading.get_ident()}.link"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)

    def recover(self, commit: str, file: File) -> bool:
        """Verify a file that is not in the record; remove it if it is damaged.

        Another program may have fetched it, or the process ended between the last byte and the
        record. Contents that are known to be whole under another path or commit are not read.

        Returns:
            True if the file is verified and linked.
        """
        blob, place = self.blob(file), self.snapshot(commit) / file.path
        is_known = self._is_known(file)
        if blob.is_file():
            self.link(commit, file)
        if not place.is_file():
            return False
        if is_known or file.fits(place):
            return True
        self._inside(place).unlink()
        blob.unlink(missing_ok=True)
        return False

    def _inside(self, path: Path) -> Path:
        """Refuse a path whose folder, links resolved, is outside the repository's."""
        if path.parent.resolve().is_relative_to(self._root.resolve()):
            return path
        raise ArtifactError(
            f"{path} leads out of {self._root} through a link; remove the link or the folder."
        )

    def _is_known(self, file: File) -> bool:
        """Check that the record has the same contents, of the same size and digest, as whole."""
        record, wanted = self._read(), asdict(file)
        for commit, entries in record.listings.items():
            verified = record.verified.get(commit, ())
            for entry in entries:
                if (
                    {**entry, "path": file.path} == wanted
                    and entry["path"] in verified
                    and self._is_linked(commit, _file(entry))
                ):
                    return file.digest is not None
        return False

    def _is_linked(self, commit: str, file: File) -> bool:
        try:
            return (self.snapshot(commit) / file.path).stat().st_size == file.size
        except OSError:
            return False

    def _read(self) -> _Record:
        try:
            record = _Record(**json.loads((self._root / _RECORD).read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError):
            return _Record()
        sound = all(isinstance(value, dict) for value in vars(record).values())
        return record if sound else _Record()

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
