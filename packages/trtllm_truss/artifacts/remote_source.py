"""A remote repository as a `Source`: listed once, fetched once, then usable offline."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from pathlib import Path

from trtllm_truss.artifacts.listing import Listing, check_readable, named
from trtllm_truss.artifacts.retrying import Unreachable, retrying
from trtllm_truss.artifacts.store import Store
from trtllm_truss.artifacts.transfer import Remote, Transfer

logger = logging.getLogger(__name__)


class RemoteSource:
    """One revision of a remote repository; nothing is requested on construction.

    Args:
        name: for messages: ``engine_repository 'org/name'``.
        remote: the repository.
        store: the store of its files.
        revision: the requested revision.
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
