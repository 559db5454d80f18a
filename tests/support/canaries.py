"""Canary files around a cache: downloads must not change them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_CONTENTS = {
    ".bashrc": b"# canary\n",
    ".docker/config.json": b'{"auths": {}}',
    ".docker/model.safetensors": b"canary",
    ".ssh/authorized_keys": b"ssh-ed25519 canary\n",
}


HOME = "HOME"
"""Placeholder in an attack for the absolute path of the home."""


class Canaries:
    """Files in a home and next to a repository in the cache, with their recorded state.

    Attributes:
        home: the folder that attacks aim at.
    """

    def __init__(self, root: Path, *allowed: Path) -> None:
        """Write the files and record their state.

        Args:
            root: the watched folder.
            allowed: the folders below `root` that may change, that of the repository first.
        """
        self.home = root / "home/user"
        self._root = root
        self._allowed = allowed
        neighbour = allowed[0].parent / "models--org--neighbour/snapshots" / ("e" * 40)
        for folder in (self.home, neighbour):
            for name, content in _CONTENTS.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
        for folder in allowed:
            folder.mkdir(parents=True, exist_ok=True)
        self._before = self._states()

    def with_home(self, value: Any) -> Any:
        """Replace `HOME` in the text of an attack."""
        return value.replace(HOME, str(self.home)) if isinstance(value, str) else value

    def assert_untouched(self) -> None:
        """Fail if anything outside the allowed folders was created, changed or deleted."""
        assert self._states() == self._before

    def _states(self) -> dict[str, object]:
        """Return inode, mode, mtime, links and contents of all files outside the allowed ones."""
        states: dict[str, object] = {}
        for folder, folders, files in os.walk(self._root):
            folders[:] = [name for name in folders if Path(folder, name) not in self._allowed]
            for path in (Path(folder, name) for name in (*folders, *files)):
                state = path.lstat()
                known = (state.st_ino, state.st_mode, state.st_mtime_ns, state.st_nlink)
                content = path.read_bytes() if path.is_file() else b""
                states[str(path)] = (known, state.st_size, content)
        return states
