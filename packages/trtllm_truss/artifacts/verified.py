"""Verification of local files, cached so that each is read once."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from trtllm_truss.artifacts.checksums import sha256_of


def has_sha256(file: Path, sha256: str) -> bool:
    """Compare an existing file with a SHA-256, 64 lower-case hex digits.

    A match is recorded in `HF_HOME`; the file is read again only after its path, size or time has
    changed.
    """
    from huggingface_hub import constants

    state = file.stat()
    known = f"{file.resolve()} {state.st_ino} {state.st_size} {state.st_mtime_ns} {sha256}"
    name = hashlib.sha256(known.encode()).hexdigest()
    mark = Path(constants.HF_HOME) / "trtllm-truss/verified" / name
    if mark.exists():
        return True
    if sha256_of(file) != sha256:
        return False
    with contextlib.suppress(OSError):  # without a record the file is read again
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return True
