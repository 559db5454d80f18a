"""Remove what a run leaves when it and its process guards are killed at once.

A run's folder and its names in shared memory come with a file that the processes which remove them
keep locked (flock). The kernel frees the lock however they end, also for other containers that
share the memory and see other process ids. An unlocked file therefore has no owner; the next start
removes it and its run.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtllm_truss.processes import process_guard

logger = logging.getLogger(__name__)

_LOCK = "owner.lock"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory
RUN_PREFIX = "trtllm_truss_"
FOLDER_PREFIX = "trtllm-truss-"
_RUN_ID_BYTES = 256


@contextmanager
def temporary_folder(wanted: Path | None = None) -> Iterator[Path]:
    """Create a folder for this user alone, and remove it on exit.

    Args:
        wanted: its path, for contents that name it; used unless another process has it, or it
            cannot be created. What a killed run left there is removed.
    """
    folder = wanted and _created(wanted)
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    lock = lock_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _created(folder: Path) -> Path | None:
    taken = _taken_over(folder / _LOCK)
    if taken is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(taken)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except OSError:
        return None
    return folder


def lock_folder(folder: Path, run_id: str = "") -> int | None:
    """Mark a folder as in use, until every holder of the descriptor has closed it.

    Args:
        folder: a temporary folder; its name begins with `FOLDER_PREFIX` or a run's prefix.
        run_id: marks the processes that end with the folder.

    Returns:
        The lock's descriptor; None where files cannot be locked: such a folder is never swept.
    """
    return _hold(folder / _LOCK, run_id)


def lock_segments(shm_prefix: str, run_id: str) -> int | None:
    """Mark the shared-memory segments of a run as in use, like `lock_folder`."""
    return _hold(SHARED_MEMORY / f"{shm_prefix}{_LOCK}", run_id)


def sweep() -> None:
    """Remove processes, segments and folders of this user's runs whose owners are dead."""
    temporary = Path(tempfile.gettempdir())
    for lock in (
        *SHARED_MEMORY.glob(f"{RUN_PREFIX}*_{_LOCK}"),
        *temporary.glob(f"{RUN_PREFIX}*/{_LOCK}"),
        *temporary.glob(f"{FOLDER_PREFIX}*/{_LOCK}"),
    ):
        descriptor = _taken_over(lock)
        if descriptor is not None:
            try:
                _remove_run(lock, os.read(descriptor, _RUN_ID_BYTES).decode())
                process_guard.remove_env_folders(os.fstat(descriptor).st_mtime)
            except (OSError, ValueError) as error:
                logger.warning("cannot remove what a killed run left: %s", error)
            finally:
                os.close(descriptor)


def _remove_run(lock: Path, run_id: str) -> None:
    if run_id:
        process_guard.kill_marked(run_id)
    if lock.parent == SHARED_MEMORY:
        what = lock.name.removesuffix(_LOCK)
        process_guard.remove_segments(what)
    else:
        what = str(lock.parent)
        shutil.rmtree(what, ignore_errors=True)
    logger.info("removed what a killed run left: %s", what)


def _hold(lock: Path, run_id: str) -> int | None:
    """Create a locked file; it is renamed into place locked, so it is never seen unlocked."""
    unnamed = lock.with_name(f"{lock.name}.{os.getpid()}")
    try:
        descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, run_id.encode())
        unnamed.rename(lock)
    except OSError:
        os.close(descriptor)
        unnamed.unlink(missing_ok=True)
        return None
    return descriptor


def _taken_over(lock: Path) -> int | None:
    """Lock a file whose owner is dead; return None if it is in use, gone or another user's."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened = os.fstat(descriptor)
        if opened.st_uid == os.geteuid() and os.path.samestat(opened, lock.lstat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
