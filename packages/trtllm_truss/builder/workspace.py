"""Where builds lie on this machine, one folder for each key.

::

    HF_HOME/trtllm-truss/builds/<key>/
        lock         held by who builds
        build.log    what the commands said
        steps/       one mark for each finished step
        converted/   between the steps; removed in the end
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
from trtllm_truss.engines.target_gpu import MANIFEST_FILE

logger = logging.getLogger(__name__)


def builds_folder() -> Path:
    """Beside Hugging Face's cache, where models may be large."""
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / "trtllm-truss/builds"


class Workspace:
    """The folder of one build.

    Attributes:
        engine: the engine repository.
        converted: the checkpoint between the steps.
        changed: the checkpoint with other values in its ``config.json``.
        log: what the commands said, all runs one after the other.
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
        """Whether the engine is there, whole."""
        return (self.engine / MANIFEST_FILE).exists()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other builders of the same engine out; the lock ends with its holder."""
        self._marks.mkdir(parents=True, exist_ok=True)
        with (self._root / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("the same engine is being built here already; waiting")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def is_done(self, step: Step) -> bool:
        """Whether a step was finished, by this run or one before."""
        mark = self._marks / step.name
        return mark.exists() and mark.read_text() == _digest(step) and self.output(step).is_dir()

    def mark_done(self, step: Step) -> None:
        """Remembers that a step was finished."""
        (self._marks / step.name).write_text(_digest(step))

    def output(self, step: Step) -> Path:
        """The folder that a step fills."""
        return {"$ENGINE": self.engine, "$CONVERTED": self.converted}[step.output]

    def empty_output(self, step: Step) -> None:
        """Removes what an interrupted run of a step has left."""
        (self._marks / step.name).unlink(missing_ok=True)
        shutil.rmtree(self.output(step), ignore_errors=True)
        self.output(step).mkdir(parents=True)

    def clean_up(self) -> None:
        """Removes all but the engine and the log."""
        for folder in (self.converted, self.changed):
            shutil.rmtree(folder, ignore_errors=True)


def _digest(step: Step) -> str:
    return hashlib.sha256("\0".join(step.command).encode()).hexdigest()
