"""State of a Hugging Face Hub: repositories, commits, files and access rights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LFS_SUFFIXES = (".engine", ".gguf", ".safetensors", ".bin", ".model", ".pkl")


@dataclass(frozen=True)
class Contents:
    """One version of one file."""

    data: bytes
    lfs: bool

    @property
    def git_sha1(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_sha1

    def described(self, path: str) -> dict[str, Any]:
        """Return an entry of `siblings` in /api/models/…?blobs=true."""
        known = {"rfilename": path, "size": len(self.data), "blobId": self.git_sha1}
        if self.lfs:
            known["lfs"] = {"sha256": self.sha256, "size": len(self.data), "pointerSize": 134}
        return known

    def in_tree(self, path: str) -> dict[str, Any]:
        """Return an entry of /api/models/…/tree/…."""
        known = {"type": "file", "path": path, "size": len(self.data), "oid": self.git_sha1}
        if self.lfs:
            known["lfs"] = {"oid": self.sha256, "size": len(self.data), "pointerSize": 134}
        return known


@dataclass
class Repository:
    """A model repository with immutable commits."""

    name: str
    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, Contents]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(
        self,
        files: Mapping[str, bytes],
        *,
        revision: str = "main",
        removed: tuple[str, ...] = (),
        message: str = "Upload",
    ) -> str:
        """Add files to a branch; return the commit."""
        before = self.commits.get(self.revisions.get(revision, ""), {})
        added = {path: Contents(data, is_lfs(path, len(data))) for path, data in files.items()}
        now = {path: file for path, file in before.items() if path not in removed} | added
        state = [self.name, len(self.commits), *sorted((p, f.etag) for p, f in now.items())]
        commit = hashlib.sha1(json.dumps(state).encode()).hexdigest()
        self.commits[commit] = now
        self.revisions[revision] = commit
        self.messages.append(message)
        return commit

    def find(self, revision: str) -> str | None:
        """Return the commit of a branch, tag or commit."""
        return revision if revision in self.commits else self.revisions.get(revision)

    @property
    def files(self) -> dict[str, bytes]:
        """Files of the main branch."""
        commit = self.commits.get(self.revisions.get("main", ""), {})
        return {path: contents.data for path, contents in commit.items()}


@dataclass
class Account:
    """The owner of a token and its readable repositories; `*` is all but gated ones."""

    name: str
    reads: frozenset[str] = frozenset({"*"})
    access_to_gated: frozenset[str] = frozenset()


def is_lfs(path: str, size: int) -> bool:
    return path.endswith(LFS_SUFFIXES) or size > 1_000_000
