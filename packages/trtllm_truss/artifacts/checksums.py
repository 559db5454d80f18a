"""Digests and atomic writes of files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtllm_truss.errors import ArtifactError

_CHUNK_BYTES = 1 << 20
_HEX_DIGITS = {"sha256": 64, "git-sha1": 40, "md5": 32}


@dataclass(frozen=True, slots=True)
class Digest:
    """Digest of a file's contents.

    Attributes:
        algorithm: `git-sha1` is Git's id of a file, which hashes its size first; `md5` is S3's
            ETag of an object uploaded in one part.
        value: lower-case hex digits.
    """

    algorithm: Literal["sha256", "git-sha1", "md5"]
    value: str

    def __post_init__(self) -> None:
        digits = _HEX_DIGITS[self.algorithm]
        known = isinstance(self.value, str) and re.fullmatch(r"[0-9a-f]+", self.value)
        if not known or len(self.value) != digits:
            raise ArtifactError(
                f"a file is listed with the {self.algorithm} {str(self.value)[:80]!a} instead of "
                f"{digits} hex digits; use another repository or mirror."
            )

    def new_hash(self, size: int) -> hashlib._Hash:
        """Begin to hash contents of `size` bytes."""
        if self.algorithm == "git-sha1":
            return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        return hashlib.new(self.algorithm, usedforsecurity=False)

    def matches(self, file: Path) -> bool:
        """Compare a file with the digest; reads every byte."""
        return _hash(file, self.new_hash(file.stat().st_size)) == self.value


def sha256_of(file: Path) -> str:
    return _hash(file, hashlib.sha256())


def has_sha256(file: Path, sha256: str) -> bool:
    """Compare an existing file with a SHA-256, 64 lower-case hex digits.

    A match is recorded in `HF_HOME`; the file is read again only after its path, size or time has
    changed.
    """
    if _mark(file, sha256).exists():
        return True
    if sha256_of(file) != sha256:
        return False
    mark_sha256(file, sha256)
    return True


def mark_sha256(file: Path, sha256: str) -> None:
    """Record a match, so that `has_sha256` does not read the file."""
    mark = _mark(file, sha256)
    with contextlib.suppress(OSError):  # without a record the file is read again
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def _mark(file: Path, sha256: str) -> Path:
    from huggingface_hub import constants

    state = file.stat()
    known = f"{file.resolve()} {state.st_ino} {state.st_size} {state.st_mtime_ns} {sha256}"
    name = hashlib.sha256(known.encode()).hexdigest()
    return Path(constants.HF_HOME) / "trtllm-truss/verified" / name


def write_atomically(file: Path, content: bytes) -> Path:
    """Write a file completely or not at all, even if the process is killed; return it."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        return temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _hash(file: Path, digest: hashlib._Hash) -> str:
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
