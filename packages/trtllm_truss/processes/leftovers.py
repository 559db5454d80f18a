"""What a run leaves when all that would remove it is killed at once; the next start removes it.

A run's folder, and its names in shared memory, come with a file that the processes which remove
them keep locked (flock). The kernel frees the lock however they end, also for other containers that
share the memory and see other process ids. A file that is not locked therefore belongs to nobody.
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
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory
RUN_PREFIX = "trtllm_truss_"
FOLDER_PREFIX = "trtllm-truss-"
_RUN_ID_BYTES = 256


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Makes a folder for this user alone, and removes it in the end."""
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    lock = lock_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def lock_folder(folder: Path, run_id: str = "") -> int | None:
    """Marks a folder as in use, until the descriptor is closed by all that have it.

    Args:
        folder: where temporary files are; its name begins with `FOLDER_PREFIX` or a run's prefix.
        run_id: the mark of the processes that end with the folder.

    Returns:
        The descriptor; None where files cannot be locked: the folder is never swept then.
    """
    return _hold(folder / _LOCK, run_id)


def lock_segments(shm_prefix: str, run_id: str) -> int | None:
    """Does the same for the shared-memory segments of a run, whose names begin so."""
    return _hold(_SHARED_MEMORY / f"{shm_prefix}{_LOCK}", run_id)


def sweep() -> None:
    """Removes processes, segments and folders of this user's runs whose owners are dead."""
    temporary = Path(tempfile.gettempdir())
    for lock in (
        *_SHARED_MEMORY.glob(f"{RUN_PREFIX}*_{_LOCK}"),
        *temporary.glob(f"{RUN_PREFIX}*/{_LOCK}"),
        *temporary.glob(f"{FOLDER_PREFIX}*/{_LOCK}"),
    ):
        descriptor = _taken_over(lock)
        if descriptor is not None:
            try:
                _remove_run(lock, os.read(descriptor, _RUN_ID_BYTES).decode())
                process_guard.remove_env_folders(os.fstat(descriptor).st_mtime)
            except (OSError, ValueError) as error:
                logger.warning("what a killed run has left cannot be removed: %s", error)
            finally:
                os.close(descriptor)


def _remove_run(lock: Path, run_id: str) -> None:
    if run_id:
        process_guard.kill_marked(run_id)
    if lock.parent == _SHARED_MEMORY:
        what = lock.name.removesuffix(_LOCK)
        process_guard.remove_segments(what)
    else:
        what = str(lock.parent)
        shutil.rmtree(what, ignore_errors=True)
    logger.info("removed what a killed run had left: %s", what)


def _hold(lock: Path, run_id: str) -> int | None:
    """Makes a locked file, which nobody ever sees unlocked: it gets its name afterwards."""
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
    """Locks a file whose owner is dead; None for one that is in use, gone or another user's."""
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
