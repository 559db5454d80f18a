"""Layout, names and locks of Hugging Face's cache, for one repository.

As huggingface_hub writes and reads it
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache)::

    blobs/<content id>                            the contents, each once
    blobs/<content id>.trtllm-truss.incomplete    the beginning of a download
    snapshots/<commit>/<path>                     links to blobs
    refs/<revision>                               the commit of a branch or tag
    trees/<commit>.json                           the listing (2.4.0, _tree_cache.py)
    ../.locks/<repository>/<content id>.lock      held during a download

A blob gets its name after verification. Nothing is written or removed through a link that leads out
of the folder. `blobs/<content id>.incomplete` belongs to huggingface_hub: releases below 2.0 append
to it. Names with another word before `.incomplete` are each a process's own in 2.4.0
(file_download.py:2002), and `hf cache prune` removes them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from trtllm_truss.artifacts.listing import (
    File,
    Listing,
    has_digest,
    is_commit,
    is_known,
    write_atomically,
)
from trtllm_truss.errors import ArtifactError

logger = logging.getLogger(__name__)

_TREE_VERSION = 1
_PATIENCE_S = 0.5
_MOST_BLOCK_BYTES = 1 << 16


def begun_bytes(descriptor: int, size: int) -> int:
    """Return how many bytes an unfinished file has before its first hole.

    Its ranges are written in parallel, each from its own start: only the bytes before the first
    hole count. A hole begins with a whole block of the file system, which may be half written. The
    contents are verified in any case.

    Args:
        size: size of the finished file in bytes.
    """
    length = os.fstat(descriptor).st_size
    if not 0 < length <= size:
        return 0
    hole = os.lseek(descriptor, 0, os.SEEK_HOLE)
    return hole if hole == length < size else max(0, hole - _MOST_BLOCK_BYTES)


class Cache:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._blobs = root / "blobs"

    @property
    def root(self) -> Path:
        """The repository's folder, which may not exist yet."""
        return self._root

    @contextlib.contextmanager
    def locked(self, name: str, file: File) -> Iterator[None]:
        """Lock a blob against other processes and threads, those of huggingface_hub too.

        Args:
            name: name of the repository, for the log.
        """
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        lock = self._root.parent / ".locks" / self._root.name / f"{file.blob_name}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        self._blobs.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(WeakFileLock(lock, timeout=_PATIENCE_S))
            except TimeoutError:
                logger.info("another process is fetching %s of %s; waiting", file.path, name)
                held.enter_context(WeakFileLock(lock))
            yield

    def commit_of(self, revision: str) -> str | None:
        """Return the last known commit of a revision."""
        commit = revision
        with contextlib.suppress(OSError, ValueError):  # branches and tags have a file, commits not
            commit = (self._root / "refs" / revision).read_text("ascii").strip()
        return commit if is_commit(commit) else None

    def remember(self, revision: str, commit: str) -> None:
        """Record the commit of a branch or tag, so that a later start works offline."""
        if commit not in (revision, self.commit_of(revision)):
            self._write(self._root / "refs" / revision, commit.encode())

    def tree(self, commit: str) -> Mapping[str, Any]:
        """Return the recorded files of a commit, unchecked; empty without a record."""
        try:
            known = json.loads((self._root / "trees" / f"{commit}.json").read_bytes())
            files = known["files"] if known["format_version"] == _TREE_VERSION else {}
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return {}
        return files if isinstance(files, dict) else {}

    def remember_tree(self, commit: str, files: Mapping[str, Any]) -> None:
        """Record the files of a commit: size, blob_id, and of large ones lfs_sha256, lfs_size."""
        if self.tree(commit) != files:
            content = json.dumps({"format_version": _TREE_VERSION, "files": files}, indent=1)
            self._write(self._root / "trees" / f"{commit}.json", content.encode())

    def found(self, commit: str) -> Listing | None:
        """List the files of a commit that are already here, whichever program fetched them."""
        snapshot = self.snapshot(commit)
        files = tuple(
            File.unhashed(commit, path.relative_to(snapshot).as_posix(), path.stat().st_size)
            for path in snapshot.rglob("*")
            if path.is_file()
        )
        return Listing(commit, files) if files else None

    def missing(self, listing: Listing, paths: Collection[str]) -> list[File]:
        """Return the files that are missing or not verified; largest first."""
        return [
            file
            for file in listing.select(paths)
            if not self._is_verified(self.snapshot(listing.commit) / file.path, file)
        ]

    def snapshot(self, commit: str) -> Path:
        return self._inside(self._root / "snapshots" / commit)

    def blob(self, file: File) -> Path:
        return self._inside(self._blobs / file.blob_name)

    def unfinished(self, file: File) -> Path:
        blob = self.blob(file)
        return blob.with_name(f"{blob.name}.trtllm-truss.incomplete")

    def begun_bytes(self, file: File) -> int:
        """Return how many bytes an earlier download left before the first hole."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self.unfinished(file), flags)
        except OSError:
            return 0
        try:
            return begun_bytes(descriptor, file.size)
        finally:
            os.close(descriptor)

    def recover(self, commit: str, file: File) -> bool:
        """Link and verify contents that are here; remove them if they are damaged.

        Returns:
            True if the file is verified and linked.
        """
        blob, place = self.blob(file), self.snapshot(commit) / file.path
        if blob.is_file():
            self._link(commit, file)
        if not place.is_file():
            return False
        if place.stat().st_size == file.size and (
            file.digest is None or has_digest(place, file.digest)
        ):
            return True
        self._inside(place).unlink()
        blob.unlink(missing_ok=True)
        return False

    def _link(self, commit: str, file: File) -> None:
        link = self._inside(self.snapshot(commit) / file.path)
        target = os.path.relpath(self.blob(file), link.parent)
        if link.is_symlink() and str(link.readlink()) == target:
            return
        link.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._blobs / f"trtllm-truss.{os.getpid()}.{threading.get_ident()}.link"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)

    def _inside(self, path: Path) -> Path:
        """Refuse a path whose folder, links resolved, is outside the repository's."""
        if path.parent.resolve().is_relative_to(self._root.resolve()):
            return path
        raise ArtifactError(
            f"{path} leads out of {self._root} through a link; remove the link or the folder."
        )

    def _is_verified(self, place: Path, file: File) -> bool:
        try:
            has_size = place.stat().st_size == file.size
        except OSError:
            return False
        return has_size and (file.digest is None or is_known(place, file.digest))

    def _write(self, path: Path, content: bytes) -> None:
        try:
            self._inside(path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
        except OSError as error:  # a cache in an image may be read-only
            logger.debug("%s cannot be written: %s", path, error)
