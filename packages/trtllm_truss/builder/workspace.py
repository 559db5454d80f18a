"""The build folders of this machine, one for each key.

::

    HF_HOME/trtllm-truss/builds/<key>/
        lock         held by the builder
        build.log    output of the commands
        steps/       one marker for each finished step
        converted/   intermediate; removed at the end
        engine/      the engine repository; complete once it has a manifest
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from trtllm_truss.builder.plan import Step
from trtllm_truss.engines.manifest import MANIFEST_FILE

logger = logging.getLogger(__name__)


def builds_folder() -> Path:
    """Return a folder in `HF_HOME`, which is sized for models."""
    from huggingface_hub import constants

    return Path(constants.HF_HOME).absolute() / "trtllm-truss/builds"


class Workspace:
    """The folder of one build.

    Attributes:
        engine: the engine repository.
        converted: the converted checkpoint.
        changed: the checkpoint with changed values in its ``config.json``.
        log: output of the commands of all runs.
    """

    def __init__(self, root: Path) -> None:
        self.engine = root / "engine"
        self.converted = root / "converted"
        self.changed = root / "checkpoint"
        self.log = root / "build.log"
        self._root = root
        self._marks = root / "steps"

    @property
    def is_complete(self) -> bool:
        """True if the engine is finished."""
        return (self.engine / MANIFEST_FILE).exists()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other builders of the same engine; the lock ends with its process."""
        self._marks.mkdir(parents=True, exist_ok=True)
        with (self._root / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("another process is building this engine; waiting")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def is_done(self, step: Step) -> bool:
        """Return whether this or an earlier run finished a step."""
        mark = self._marks / step.name
        return mark.exists() and mark.read_text() == _digest(step) and self.output(step).is_dir()

    def mark_done(self, step: Step) -> None:
        (self._marks / step.name).write_text(_digest(step))

    def output(self, step: Step) -> Path:
        return {"$ENGINE": self.engine, "$CONVERTED": self.converted}[step.output]

    def empty_output(self, step: Step) -> None:
        """Remove the output of an interrupted run of a step."""
        (self._marks / step.name).unlink(missing_ok=True)
        shutil.rmtree(self.output(step), ignore_errors=True)
        self.output(step).mkdir(parents=True)

    def clean_up(self) -> None:
        """Remove everything but the engine and the log."""
        for folder in (self.converted, self.changed):
            shutil.rmtree(folder, ignore_errors=True)


def _digest(step: Step) -> str:
    return hashlib.sha256("\0".join(step.command).encode()).hexdigest()
