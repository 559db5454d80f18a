"""Files around a cache that no download may change."""

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
"""In an attack: the absolute path of the victim's home."""


class Canaries:
    """A home, a temporary folder and a neighbour in the cache, as they were.

    Attributes:
        home: the folder that attacks aim at.
    """

    def __init__(self, root: Path, allowed: Path) -> None:
        """Writes the files and notes their state.

        Args:
            root: everything below it is watched.
            allowed: the folder in which everything may change.
        """
        self.home = root / "home/user"
        self._root = root
        self._allowed = allowed
        neighbour = allowed.parent / "models--org--neighbour/snapshots" / ("e" * 40)
        for folder in (self.home, neighbour):
            for name, content in _CONTENTS.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
        allowed.mkdir(parents=True, exist_ok=True)
        self._before = self._states()

    def with_home(self, value: Any) -> Any:
        """Put the path of the home into the text of an attack."""
        return value.replace(HOME, str(self.home)) if isinstance(value, str) else value

    def assert_untouched(self) -> None:
        """Fails if anything was written, changed, deleted or made outside the allowed folder."""
        assert self._states() == self._before

    def _states(self) -> dict[str, object]:
        """Inode, times, mode, links and contents of everything but the allowed folder."""
        states: dict[str, object] = {}
        for folder, folders, files in os.walk(self._root):
            folders[:] = [name for name in folders if Path(folder, name) != self._allowed]
            for path in (Path(folder, name) for name in (*folders, *files)):
                state = path.lstat()
                known = (state.st_ino, state.st_mode, state.st_mtime_ns, state.st_nlink)
                content = path.read_bytes() if path.is_file() else b""
                states[str(path)] = (known, state.st_size, content)
        return states
