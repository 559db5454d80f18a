"""Files on this machine whose contents were looked at before, so that they are read once."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from trtllm_truss.artifacts.checksums import sha256_of


def has_sha256(file: Path, sha256: str) -> bool:
    """Whether a file has these contents.

    A file that did is marked in `HF_HOME` and not read again as long as its place, size and time
    stay the same.

    Args:
        file: it is there.
        sha256: 64 lower-case hex digits.
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
    with contextlib.suppress(OSError):  # without a mark it is read again the next time
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return True
