"""Interface of a repository."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from trtllm_truss.artifacts.listing import Listing
from trtllm_truss.errors import ArtifactError

MAX_READ_BYTES = 1 << 26
"""Limit of a file that is read as a whole."""


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


def check_readable(name: str, path: str, size: int) -> None:
    """Refuse a file of more than `MAX_READ_BYTES`."""
    if size > MAX_READ_BYTES:
        raise ArtifactError(
            f"{name}: {path} has {size} bytes (limit {MAX_READ_BYTES}); use another repository."
        )


@contextmanager
def named(name: str) -> Iterator[None]:
    """Prefix errors with the setting and the repository: ``engine_repository 'org/name'``."""
    try:
        yield
    except ArtifactError as error:
        if error.message.startswith(name):
            raise
        raise type(error)(f"{name}: {error.message}") from error
