"""The listing of a repository's files, made before any is fetched.

Digests and atomic writes of files.

All values come from a server and are validated before they become paths on this machine.

Of a tokenizer only data files are fetched. One that is a program (``tokenization_*.py``, named by
``auto_map``) or a pickle would run its author's code: the first needs `trust_remote_code`, the
second is always refused. A model's own weights and code in the same repository are ignored.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

from trtllm_truss.errors import ArtifactError

_CHUNK_BYTES = 1 << 20
_HEX_DIGITS = {"sha256": 64, "git-sha1": 40, "md5": 32}


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of a file's contents.

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
        """Start hashing contents of `size` bytes."""
        if self.algorithm == "git-sha1":
            return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        return hashlib.new(self.algorithm, usedforsecurity=False)

    def matches(self, file: Path) -> bool:
        """Compare a file with the digest; reads every byte."""
        return _hash(file, self.new_hash(file.stat().st_size)) == self.value


def sha256_of(file: Path) -> str:
    return _hash(file, hashlib.sha256())


def has_sha256(file: Path, sha256: str) -> bool:
    """Compare an existing file with a SHA-256, 64 lower-case hex digits; see `has_digest`."""
    return has_digest(file, Digest("sha256", sha256))


def has_digest(file: Path, digest: Digest) -> bool:
    """Compare an existing file with a digest.

    A match is recorded in `HF_HOME`; the file is read again only after its path, size or time has
    changed.
    """
    if is_known(file, digest):
        return True
    if not digest.matches(file):
        return False
    mark_known(file, digest)
    return True


def is_known(file: Path, digest: Digest) -> bool:
    """Check that a match is recorded."""
    return _mark(file, digest).exists()


def mark_known(file: Path, digest: Digest) -> None:
    """Record a match, so that `has_digest` does not read the file."""
    mark = _mark(file, digest)
    with contextlib.suppress(OSError):  # without a record the file is read again
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def _mark(file: Path, digest: Digest) -> Path:
    from huggingface_hub import constants

    state = file.stat()
    known = f"{file.resolve()} {state.st_size} {state.st_mtime_ns} {digest.value}"
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


MAX_READ_BYTES = 1 << 26
"""The size limit of a file that is read as a whole."""


class Source(Protocol):
    """One repository. All methods raise `ArtifactError`."""

    @property
    def name(self) -> str:
        """The setting and the repository, for messages: ``engine_repository 'org/name'``."""

    @property
    def is_mounted(self) -> bool:
        """True if the platform delivered the files: only those it was told to, not hashed here."""

    def listing(self) -> Listing:
        """List all files; cached."""

    def read(self, path: str) -> bytes:
        """Return the contents of one small file of the listing."""

    def read_head(self, path: str, count: int) -> bytes:
        """Return the first `count` bytes of a file of the listing, or all of a shorter one.

        They are not verified, because the digest covers the whole file.
        """

    def check_room(self, paths: Collection[str]) -> None:
        """Raise an error if the disk is too small for the files that are still to be fetched."""

    def present(self, paths: Collection[str]) -> list[Path]:
        """Return the paths of the files that `fetch` would not have to fetch."""

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


MAX_FILES = 20_000

_COMMIT = re.compile(r"[0-9a-f]{40}")
_BLOB_NAME = re.compile(r"[0-9a-f]{32,64}(-[0-9]{1,5})?")
_MAX_BYTES = 1 << 63
_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 1024
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class File:
    """One file of a repository.

    Attributes:
        path: path below the repository, with ``/`` between folders.
        size: bytes.
        content_id: the server's id of these contents, any text; see `blob_name`.
        digest: hash of the contents, if the repository lists one.
    """

    path: str
    size: int
    content_id: str
    digest: Digest | None

    def __post_init__(self) -> None:
        if not _is_plain(self.path):
            raise ArtifactError(
                f"the path {shown(self.path)} is not a plain path below the repository; use "
                "another repository, or remove that file."
            )
        if type(self.size) is not int or not 0 <= self.size < _MAX_BYTES:
            raise ArtifactError(
                f"{self.path} is listed with the size {shown(self.size)}; use a repository or "
                "mirror that lists sizes in bytes."
            )

    @classmethod
    def unhashed(cls, commit: str, path: str, size: int) -> File:
        """Make a file whose listing gives no hash: commit and path identify its contents."""
        return cls(path, size, f"{commit}/{path}", None)

    @property
    def blob_name(self) -> str:
        """The file name of these contents: the server's id if it is hex, otherwise its hash."""
        if _BLOB_NAME.fullmatch(self.content_id):
            return self.content_id
        return hashlib.sha256(self.content_id.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a repository in one state.

    Attributes:
        commit: id of that state, 40 hex digits; empty for a local folder.
        files: in no particular order.
    """

    commit: str
    files: tuple[File, ...]

    def __post_init__(self) -> None:
        check_count(len(self.files))
        if self.commit != "" and not is_commit(self.commit):
            raise ArtifactError(
                f"the listing names the commit {shown(self.commit)} instead of 40 hex digits; "
                "check HF_ENDPOINT."
            )
        seen: set[str] = set()
        for file in self.files:
            if file.path in seen:
                raise ArtifactError(
                    f"the repository lists {shown(file.path)} twice; use another repository."
                )
            seen.add(file.path)

    @property
    def sizes(self) -> dict[str, int]:
        return {file.path: file.size for file in self.files}

    def select(self, paths: Collection[str]) -> list[File]:
        """Select files by path, the largest first.

        Raises:
            ArtifactError: a file has the same path as the folder of another.
        """
        wanted = set(paths)
        found = [file for file in self.files if file.path in wanted]
        chosen = {file.path for file in found}
        for file in found:
            folders = {str(folder) for folder in PurePosixPath(file.path).parents}
            if both := chosen & folders:
                raise ArtifactError(
                    f"the repository lists {shown(both.pop())} as a file and as a folder; remove "
                    "one of them."
                )
        return sorted(found, key=lambda file: file.size, reverse=True)


def check_count(files: int) -> None:
    """Refuse a repository of more than `MAX_FILES`; checked before each of them is."""
    if files > MAX_FILES:
        raise ArtifactError(
            f"the repository lists more than {MAX_FILES:,} files; name a repository or a folder "
            "with the model alone."
        )


def is_commit(name: object) -> bool:
    """Check that a name is a full commit id: 40 lower-case hex digits."""
    return isinstance(name, str) and _COMMIT.fullmatch(name) is not None


def shown(value: object) -> str:
    """Quote a server's text for a message, cut to 80 characters."""
    text = value if isinstance(value, str) else str(value)[:_SHOWN_CHARACTERS]
    return ascii(text[:_SHOWN_CHARACTERS]) + ("…" if len(text) > _SHOWN_CHARACTERS else "")


def _is_plain(path: object) -> bool:
    """Check that a path stays below the repository and fits every Linux file system."""
    if not isinstance(path, str) or not path.isprintable() or "\\" in path:
        return False
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts or "/".join(parts) != path:
        return False
    longest = max(len(part.encode()) for part in parts)
    return longest <= _MAX_NAME_BYTES and len(path.encode()) <= _MAX_PATH_BYTES


_FAST = "tokenizer.json"

_ALWAYS = (
    _FAST, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "generation_config.json", "config.json", "chat_template.jinja", "chat_template.json",
    "additional_chat_templates/*.jinja",
)  # fmt: skip
_SLOW = (
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json",
    "vocab.txt", "merges.txt", "*.tiktoken", "tiktoken.model",
)  # fmt: skip
_CODE = ("tokenization_*.py", "configuration_*.py")
_PICKLES = ("*.pkl", "*.pickle", "*.joblib", "*.dill", "tokenizer*.bin", "tokenizer*.pt")


def select_tokenizer(sizes: Mapping[str, int], *, trust_remote_code: bool) -> list[str]:
    """Return the names of the files to fetch.

    These are `tokenizer.json` and its companions; without it the files to build it from; without
    those a GGUF file.

    Args:
        sizes: bytes of every file in the tokenizer's folder, by its name below it.
        trust_remote_code: allow a tokenizer that is a program to run.

    Raises:
        ArtifactError: no tokenizer was found, or it is a pickle or a program.
    """
    programs = _matching(sizes, _CODE[:1])
    if programs and not trust_remote_code:
        raise ArtifactError(
            f"the tokenizer is a program, {', '.join(programs)}; name a tokenizer_repository that "
            f"has only {_FAST}, or set trust_remote_code: true if you trust its author."
        )
    if _FAST in sizes:
        return _matching(sizes, _ALWAYS)
    slow = _matching(sizes, (*_ALWAYS, *_SLOW, *(_CODE if trust_remote_code else ())))
    if _matching(slow, _SLOW) or programs:
        return slow
    ggufs = _matching(sizes, ("*.gguf",))
    if len(ggufs) == 1:
        return ggufs
    if dangerous := _matching(sizes, _PICKLES):
        raise ArtifactError(
            f"{', '.join(dangerous)} would run its author's code when loaded; name a "
            f"tokenizer_repository that has a {_FAST}."
        )
    raise ArtifactError(
        f"no tokenizer found: no {_FAST}, no vocabulary to build one from, and "
        f"{len(ggufs) or 'no'} .gguf files; name a tokenizer_repository that holds one "
        "(`AutoTokenizer.from_pretrained(…).save_pretrained(…)` of transformers writes it)."
    )


def tokenizer_files(names: Iterable[str]) -> list[str]:
    """Return a tokenizer's files among a model's, without the model's `config.json`."""
    return _matching((name for name in names if name != "config.json"), (*_ALWAYS, *_SLOW))


def _matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the names that match a pattern; a pattern with a folder matches only inside it."""
    return [
        name
        for name in sorted(names)
        if any(
            fnmatch.fnmatchcase(name, pattern) and name.count("/") == pattern.count("/")
            for pattern in patterns
        )
    ]
