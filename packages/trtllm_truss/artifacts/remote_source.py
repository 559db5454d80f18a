"""One revision of a remote repository as a `listing.Source`, online or offline."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from pathlib import Path

from trtllm_truss.artifacts.cache import Cache
from trtllm_truss.artifacts.listing import File, Listing, check_readable, named
from trtllm_truss.artifacts.retrying import Interrupted, Unreachable, retrying
from trtllm_truss.artifacts.transfer import Remote, Transfer

logger = logging.getLogger(__name__)


class RemoteSource:
    """One revision of a remote repository; nothing is requested on construction.

    Args:
        name: name for messages: ``engine_repository 'org/name'``.
        fixed: True if the revision is immutable, so that it is listed only once.
    """

    is_mounted = False

    def __init__(
        self, name: str, remote: Remote, cache: Cache, revision: str, *, fixed: bool
    ) -> None:
        self._name = name
        self._remote = remote
        self._cache = cache
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
        """Return the start of a file: from this machine if it is here, otherwise by one request."""
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
            self._transfer(listing).check_room(self._cache.missing(listing, paths))

    def present(self, paths: Collection[str]) -> list[Path]:
        listing = self.listing()
        missing = {file.path for file in self._cache.missing(listing, paths)}
        return [
            self._cache.snapshot(listing.commit) / path for path in paths if path not in missing
        ]

    def fetch(self, paths: Collection[str]) -> Path:
        listing = self.listing()
        with named(self._name):
            if missing := self._cache.missing(listing, paths):
                self._transfer(listing).run(missing)
            return self._cache.snapshot(listing.commit)

    def _transfer(self, listing: Listing) -> Transfer:
        return Transfer(self._name, self._remote, self._cache, listing.commit)

    def _list(self) -> Listing:
        commit = self._cache.commit_of(self._revision)
        here = self._remote.recorded(commit) if commit is not None else None
        if here is not None and self._fixed:
            return here
        if here is None and commit is not None:
            here = self._cache.found(commit)
        started = time.monotonic()
        try:
            listing = retrying(self._name, self._remote.listing, tries=2 if here else 4)
        except Unreachable as problem:
            if here is None:
                raise
            logger.warning("%s Continuing with %s, fetched before.", problem, here.commit)
            return here
        logger.info("%s: listed in %.1f s", self._name, time.monotonic() - started)
        self._cache.remember(self._revision, listing.commit)
        return listing
