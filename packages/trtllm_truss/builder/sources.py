"""Checkpoints: inspected before the build is validated, fetched afterwards.

Each build has a folder of its own::

    HF_HOME/trtllm-truss/builds/<key>/
        lock         held by the builder
        build.log    output of the commands
        steps/       one marker for each finished step
        converted/   intermediate; removed at the end
        engine/      the engine repository; complete once it has a manifest

On a platform's volume lie finished engines alone, below the same names.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_truss.artifacts.checksums import has_sha256
from trtllm_truss.artifacts.listing import Source
from trtllm_truss.artifacts.open_repository import open_repository
from trtllm_truss.builder.plan import Step
from trtllm_truss.engines.diagnostics import CONFIG_FILE, parse_json
from trtllm_truss.engines.manifest import MANIFEST_FILE, read_manifest
from trtllm_truss.engines.model_config import (
    ADAPTER_CONFIG,
    TEXTS,
    Checkpoint,
    parse_checkpoint,
    without_code,
)
from trtllm_truss.errors import ArtifactError, SettingsError
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.model import Settings

logger = logging.getLogger(__name__)

_UNUSED_S = 30 * 86400.0


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
            except OSError as error:
                logger.info("%s has no locks (%s)", self._root, error.strerror)
            yield

    def is_whole(self) -> bool:
        """Compare a finished engine with its manifest; remove it if it is damaged."""
        if not self.is_complete:
            return False
        with contextlib.suppress(ArtifactError, OSError):
            manifest = read_manifest(self.engine)
            files = manifest.files.items() if manifest else ()
            if files and all(has_sha256(self.engine / name, file.sha256) for name, file in files):
                os.utime(self._root)  # the time of its last use
                return True
        logger.warning("%s is damaged; removing it", self.engine)
        shutil.rmtree(self.engine, ignore_errors=True)
        return False

    def take(self, engine: Path) -> None:
        """Copy a finished engine from another place, whole or not at all."""
        copy = self._root
        try:
            copy = Path(tempfile.mkdtemp(dir=self._root, prefix="copy."))
            shutil.copytree(engine, copy / "engine")
            (copy / "engine").rename(self.engine)
        except OSError as error:
            logger.warning("%s is not kept in %s: %s", engine, self._root, error)
        for folder in (copy, *self._unused_neighbours()):
            if folder != self._root:
                shutil.rmtree(folder, ignore_errors=True)

    def _unused_neighbours(self) -> list[Path]:
        oldest = time.time() - _UNUSED_S
        return [path for path in self._root.parent.iterdir() if path.stat().st_mtime < oldest]

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


_SETTING = "build.checkpoint_repository"
_CODE = ".py"
_WEIGHTS = ".safetensors"
_PICKLES = ".bin"


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """A checkpoint whose ``config.json`` alone was read.

    Attributes:
        weights: the suffix of its weight files.
        revision: identifies exactly these contents.
        commit: the same on Hugging Face; None elsewhere.
    """

    source: Source
    checkpoint: Checkpoint
    weights: str
    revision: str
    commit: str | None

    def paths(self, *, with_code: bool) -> list[str]:
        """Return the files that a build reads."""
        wanted = (*TEXTS, self.weights, *((_CODE,) if with_code else ()))
        return [name for name in _flat(self.source.listing().sizes) if name.endswith(wanted)]

    def fetch(self, *, with_code: bool) -> Path:
        """Download the files that a build reads; without consent, return a folder without code.

        Raises:
            ArtifactError: the repository cannot be fetched.
        """
        folder = self.source.fetch(self.paths(with_code=with_code))
        return folder if with_code else without_code(folder, [ADAPTER_CONFIG])


def find_checkpoint(settings: Settings, build: Build, token: str | None) -> CheckpointSource:
    """Inspect the checkpoint that `build` names.

    `trust_remote_code` accepts pickled weights for GPUs, which run code when loaded.

    Raises:
        ArtifactError: the checkpoint, its weights or its ``config.json`` cannot be read.
        SettingsError: the weights are pickles, and not trusted or for the CPU.
    """
    source = open_repository(
        build.checkpoint_repository,
        build.checkpoint_revision,
        setting=_SETTING,
        token=token,
        mounts=settings.mounts,
    )
    listing = source.listing()
    if CONFIG_FILE not in listing.sizes:
        raise ArtifactError(f"{source.name} has no {CONFIG_FILE}; name a Hugging Face checkpoint.")
    config = parse_json(f"{CONFIG_FILE} of {source.name}", source.read(CONFIG_FILE))
    checkpoint = parse_checkpoint(config)
    weights = _weights(source.name, _flat(listing.sizes))
    if weights == _PICKLES and not (settings.trust_remote_code and build.backend == "tensorrtllm"):
        consent = ", or set trust_remote_code to true if you trust their author"
        raise SettingsError(
            f"{source.name} has only pickled weights ({_PICKLES}), which run code when loaded; "
            "convert them to safetensors"
            + (consent if build.backend == "tensorrtllm" else "")
            + "."
        )
    commit = listing.commit or None
    revision = commit or _fingerprint(source.fetch(listing.sizes))
    return CheckpointSource(source, checkpoint, weights, revision, commit)


def changed_copy(folder: Path, changes: Mapping[str, Any], destination: Path) -> Path:
    """Link a checkpoint into a new folder with changed values in its ``config.json``.

    `destination` must not exist; the checkpoint in `folder` stays unchanged.
    """
    destination.mkdir()
    for file in folder.iterdir():
        (destination / file.name).symlink_to(file.resolve())
    config = json.loads((folder / CONFIG_FILE).read_bytes()) | changes
    (destination / CONFIG_FILE).unlink()
    (destination / CONFIG_FILE).write_text(json.dumps(config, indent=2), encoding="utf-8")
    return destination


def _flat(paths: Iterable[str]) -> list[str]:
    """Return the top-level paths, the only ones that NVIDIA's tools read."""
    return [path for path in paths if "/" not in path]


def _weights(name: str, files: Collection[str]) -> str:
    for suffix in (_WEIGHTS, _PICKLES):
        if any(file.endswith(suffix) for file in files):
            return suffix
    raise ArtifactError(
        f"{name} has no {_WEIGHTS} or {_PICKLES} files; name the repository of the model's weights."
    )


def _fingerprint(folder: Path) -> str:
    """Hash names, sizes and times of a folder's files; reading all weights would take minutes."""
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]
    states = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()
