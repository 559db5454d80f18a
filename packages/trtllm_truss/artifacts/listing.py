"""What a repository holds, file by file, before any of it is here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from trtllm_truss.artifacts.contents import Digest
from trtllm_truss.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class File:
    """One file of a repository.

    Attributes:
        path: below the repository, ``/`` between folders.
        size: bytes.
        content_id: a file name that stands for exactly these contents.
        digest: what its contents must hash to, where the repository says so.
    """

    path: str
    size: int
    content_id: str
    digest: Digest | None

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.path).parts
        written = "/".join(parts) == self.path and self.path.isprintable()
        if not written or not parts or parts[0] == "/" or ".." in parts or "\\" in self.path:
            raise ArtifactError(
                f"the repository has a file called {self.path!r}, which points out of it or is no "
                "plain path; use another repository, or remove that file."
            )


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of one state of a repository.

    Attributes:
        commit: names that state; the same name, the same contents.
        files: in no special order.
    """

    commit: str
    files: tuple[File, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file, by its path."""
        return {file.path: file.size for file in self.files}

    def select(self, paths: Collection[str]) -> list[File]:
        """The files with these paths, the largest first."""
        wanted = set(paths)
        found = [file for file in self.files if file.path in wanted]
        return sorted(found, key=lambda file: file.size, reverse=True)
