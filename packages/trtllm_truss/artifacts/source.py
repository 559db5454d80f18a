"""Interface of a repository."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from trtllm_truss.artifacts.listing import Listing
from trtllm_truss.errors import ArtifactError


class Source(Protocol):
    """One repository. All methods raise `ArtifactError`."""

    @property
    def name(self) -> str:
        """Setting and repository, for messages: ``engine_repository 'org/name'``."""

    def listing(self) -> Listing:
        """List all files; cached."""

    def read(self, path: str) -> bytes:
        """Return the contents of one small file of the listing."""

    def check_room(self, paths: Collection[str]) -> None:
        """Raise if the disk is too small for the files that are still to be fetched."""

    def fetch(self, paths: Collection[str]) -> Path:
        """Fetch and verify files.

        Safe to call concurrently from threads and processes.

        Returns:
            The read-only folder of the repository, which may hold other files too.
        """


@contextmanager
def named(name: str) -> Iterator[None]:
    """Prefix errors with the setting and the repository: ``engine_repository 'org/name'``."""
    try:
        yield
    except ArtifactError as error:
        if error.message.startswith(name):
            raise
        raise type(error)(f"{name}: {error.message}") from error
