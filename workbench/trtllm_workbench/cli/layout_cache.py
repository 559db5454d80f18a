"""Cache layouts written by Truss in the user's cache, keyed by everything they depend on.

Importing Truss takes more CPU time than the rest of a start before the server, and the layout
depends on few files: config.yaml, the model's folder, the requirements and Truss itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from trtllm_truss import __version__
from trtllm_truss.configuration import CONFIDENTIAL

_FOLDER = "trtllm-truss/layouts"
_KEPT = 16
_IGNORED = "ignored.json"
_ROOT = "root"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_READS_MORE = ("external_data", "model_cache", "trt_llm", "use_local_src")
"""Keys with which Truss reads other files or uses the network."""

logger = logging.getLogger(__name__)


class LayoutCache:
    """The place of one layout in the cache.

    Does nothing if the layout must not or cannot be cached.

    A config.yaml with confidential values is not cached, nor is a layout about which Truss warns,
    since a later start would lose the warning.

    Args:
        settings: the parsed config.yaml.
        source: the folder that Truss reads; the names and contents of its files count.
    """

    def __init__(self, settings: Mapping[str, Any], source: Path) -> None:
        self._place: Path | None = None
        self._warnings = 0
        is_confidential = any(
            value for name in CONFIDENTIAL for value in (settings.get(name) or {}).values()
        )
        if is_confidential or any(settings.get(name) for name in _READS_MORE):
            return
        with suppress(OSError):
            self._place = _folder() / _key(source)

    def read(self, destination: Path) -> list[str] | None:
        """Copy the layout; return the patterns of files that Truss ignores, or None without one."""
        if self._place is None:
            return None
        try:
            patterns: list[str] = json.loads((self._place / _IGNORED).read_text(encoding="utf-8"))
            shutil.copytree(self._place / _ROOT, destination, dirs_exist_ok=True)
            os.utime(self._place)  # the oldest are removed
        except (OSError, ValueError):
            return None
        return patterns

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the warnings that Truss logs."""
        counter = _Counter(logging.WARNING)
        logging.getLogger().addHandler(counter)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(counter)
            self._warnings += counter.records

    def keep(self, root: Path, patterns: list[str]) -> None:
        """Keep a layout for later starts; others may do so at the same time."""
        if self._place is None or self._warnings:
            return
        folder = self._place.parent
        try:
            written = Path(tempfile.mkdtemp(prefix=".", dir=folder))
            try:
                shutil.copytree(root, written / _ROOT)
                (written / _IGNORED).write_text(json.dumps(patterns), encoding="utf-8")
                written.rename(self._place)
            except BaseException:  # another start was first, or a signal stops this one
                shutil.rmtree(written, ignore_errors=True)
                raise
            for old in sorted(folder.iterdir(), key=_age)[:-_KEPT]:
                shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            logger.debug("the layout is not kept: %s", error)


class _Counter(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.records = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.records += 1


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed meanwhile
        return 0


def _folder() -> Path:
    """Return the cache folder; only this user may write it, because its files are executed.

    Raises:
        OSError: there is no such folder.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(named) if named.startswith("/") else Path.home() / ".cache"
    folder = base / _FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in (folder, folder.parent):
        found = each.stat()
        if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_MAY_WRITE:
            raise PermissionError(f"others can write to {each}")
    return folder


def _key(source: Path) -> str:
    """Return the name of a layout.

    Truss's own files are identified by size and time: reading them all would take as long as
    importing Truss.

    Raises:
        OSError: Truss is not installed, or a file cannot be read.
    """
    found = importlib.util.find_spec("truss")
    if found is None or found.origin is None:
        raise FileNotFoundError("truss")
    digest = hashlib.sha256(f"{__version__}\0{sys.version}\0".encode())
    for entry in _files(os.path.dirname(found.origin)):  # noqa: PTH120 - of 400 files
        status = entry.stat()
        digest.update(f"{entry.path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    for file in sorted(source.rglob("*")):
        name = file.relative_to(source)
        content = file.read_bytes() if file.is_file() else b""
        digest.update(f"{name}\0{file.is_file()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:32]


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the files below a folder in a fixed order, without compiled modules."""
    for entry in sorted(os.scandir(folder), key=attrgetter("name")):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _files(entry.path)
        else:
            yield entry
