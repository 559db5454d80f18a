"""What every kind of repository can do, wherever it lies."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from trtllm_truss.artifacts.listing import Listing
from trtllm_truss.errors import ArtifactError


class Source(Protocol):
    """One repository. Every method raises `ArtifactError` with one sentence and its remedy."""

    @property
    def name(self) -> str:
        """The setting and the repository, for messages: ``engine_repository 'org/name'``."""

    def listing(self) -> Listing:
        """What it holds; asked for once."""

    def read(self, path: str) -> bytes:
        """The contents of one small file that the listing has."""

    def check_room(self, paths: Collection[str]) -> None:
        """Refuses if the disk is too small for those of the files that are not here."""

    def fetch(self, paths: Collection[str]) -> Path:
        """The folder that stands for the repository and holds these files, whole and verified.

        It may hold others, and is never written to. Safe to call from several threads and
        processes at once.
        """


@contextmanager
def named(name: str) -> Iterator[None]:
    """Put a repository's name in front of every error about its contents.

    Args:
        name: the setting and the repository: ``engine_repository 'org/name'``.
    """
    try:
        yield
    except ArtifactError as error:
        if error.message.startswith(name):
            raise
        raise type(error)(f"{name}: {error.message}") from error
