"""Absolute paths below a folder that stands for ``/``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path("/")


def under(root: Path, path: str | Path) -> Path:
    return root / str(path).lstrip("/")


def folders_of(environ: Mapping[str, str], name: str) -> Iterator[Path]:
    """Yield the folders of a variable such as ``PATH``; skip empty entries."""
    for part in environ.get(name, "").split(os.pathsep):
        if part:
            yield Path(part)


def read_text(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
