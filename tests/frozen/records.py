"""All records, and their comparison with the files of `data/`."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.frozen import commands, exchanges, repositories, served

DATA = Path(__file__).parent / "data"
REMEDY = (
    "If the change is meant, run `python -m tests.frozen --write`, and name the difference in the "
    "commit and in CHANGELOG.md."
)


SOURCES: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "help": commands.record,
    "repositories": repositories.record,
    "exchanges": lambda: asyncio.run(exchanges.record()),
    "served": served.record,
}
"""Recorders by name; each returns texts by the names of their files."""


def write() -> None:
    """Replace all files of `data/`."""
    files = {name: text for source in SOURCES.values() for name, text in source().items()}
    for old in DATA.rglob("*.*"):
        if old.is_file() and old.relative_to(DATA).as_posix() not in files:
            old.unlink()
    for name, text in files.items():
        (DATA / name).parent.mkdir(parents=True, exist_ok=True)
        (DATA / name).write_text(text)


def differences(files: Mapping[str, str]) -> str:
    """Return a unified diff from the files of `data/`; empty if they agree."""
    parts: list[str] = []
    for name, text in files.items():
        kept = (DATA / name).read_text() if (DATA / name).exists() else ""
        lines = (kept.splitlines(), text.splitlines())
        parts += difflib.unified_diff(*lines, f"data/{name}", f"now/{name}", lineterm="")
    return "\n".join(parts)
