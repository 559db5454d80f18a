"""Files with settings."""

from __future__ import annotations

from pathlib import Path

from trtllm_truss.errors import SettingsError

MAX_BYTES = 1 << 20
"""Maximum size of a file with settings."""


def read_text(path: Path) -> str:
    """Read a small text file.

    Raises:
        SettingsError: it is too large, or cannot be read.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SettingsError(
                f"{path} has {path.stat().st_size:,} bytes, too many for settings; name another."
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
