"""Limits of this process, which its children inherit: open files and core dumps."""

from __future__ import annotations

import errno
import resource

_OPEN_FILES = 65_536  # more slow down programs that close all possible descriptors
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)


def raise_file_limit() -> int:
    """Raise the limit of open files, one per connection; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft in (resource.RLIM_INFINITY, wanted):
        return wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    return max(soft, wanted)


def is_out_of_files(error: BaseException | None) -> bool:
    """Return True if an error, or its cause, is a lack of descriptors."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _OUT_OF_FILES:
            return True
        error = error.__cause__
    return False


def limit_core_dumps(*, allowed: bool = False) -> None:
    """Keep the kernel from writing core dumps of this process, which contain secrets and prompts.

    A limit of one byte is too small for any file, and the only one with which the kernel also
    starts no program that reads dumps from a pipe: ``do_coredump`` of fs/coredump.c, Linux 2.6.32
    on.

    Args:
        allowed: write core dumps, as far as the hard limit allows.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard if allowed or hard == 0 else 1, hard))
