"""Environment variables that are secrets, and their removal from this process.

Libraries that download (boto3, the HTTP clients behind a proxy) read credentials from the
environment. A process that also runs untrusted programs, such as chat templates, should keep them
no longer than that.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})

_NAME = re.compile(
    r"SECRET|PASSW|PASSPHRASE|CREDENTIAL|CONNECTION_STRING|(^|_)(API|ACCESS|AUTH)?(KEY|TOKEN)(_|$)"
    r"|(^|_)(NKEY|JWT|COOKIE|PASS|DSN)(_|$)|_(PWD|AUTH|CREDS|HEADERS)$",
    re.I,
)
_USER_IN_URL = re.compile(r"://[^/@\s]+@")  # a proxy's user alone may be a token
_USER = re.compile(r"[^/@\s]+@")

_STAT, _ENVIRON = Path("/proc/self/stat"), Path("/proc/self/environ")
_ENV_START, _ENV_END = 49, 50
"""Fields of /proc/PID/stat, counted from 0 (proc_pid_stat(5): `env_start`, `env_end`)."""


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable is a secret by its name, or a URL with a user."""
    is_proxy = name.lower() in PROXIES  # whose URL may lack its scheme
    has_user = _USER_IN_URL.search(value) or (is_proxy and _USER.match(value))
    return bool(_NAME.search(name) or has_user)


def expose_secrets(variables: Mapping[str, str]) -> None:
    """Put the secrets of an environment back into that of this process."""
    for name, value in _secrets(variables):
        os.environ.setdefault(name, value)


def hide_secrets() -> None:
    """Remove all secrets from the environment of this process.

    They are overwritten in its memory where /proc/PID/environ shows what it was started with.
    """
    names = [name for name, _ in _secrets(os.environ)]
    _overwrite(names)
    for name in names:
        del os.environ[name]


def _secrets(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in variables.items() if is_secret(name, value))


def _overwrite(names: list[str]) -> None:
    """Fill the values with zeros in the memory that the kernel has passed to this process."""
    try:
        fields = _STAT.read_text().rpartition(")")[2].split()
        start, end = int(fields[_ENV_START - 2]), int(fields[_ENV_END - 2])
        content = _ENVIRON.read_bytes()
    except (OSError, ValueError, IndexError):
        return
    if not start or len(content) > end - start:  # hidden, or moved by somebody else
        return
    wanted = {os.fsencode(name) for name in names}
    place = start
    for variable in content.split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name in wanted:
            ctypes.memset(place + len(name) + 1, 0, len(value))
        place += len(variable) + 1
