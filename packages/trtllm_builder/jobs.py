"""Validate settings and prepare a build job.

A checkpoint is inspected before the build is validated, and downloaded afterwards. Each build has
its own folder::

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
import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_builder.commands import (
    BUILD_FLAGS,
    CPU_BLOCK,
    Family,
    Target,
    find_family,
    resolved_dtype,
    resolved_values,
)
from trtllm_builder.plan import BuildPlan, Step, plan_build
from trtllm_truss.artifacts.listing import Source, has_sha256
from trtllm_truss.artifacts.open_repository import open_repository
from trtllm_truss.artifacts.transfer import free_bytes
from trtllm_truss.engines.adapters import ADAPTER_CONFIG
from trtllm_truss.engines.capacity import (
    CacheSettings,
    CacheShape,
    Capacity,
    keys_and_values,
    kv_cache_capacity,
)
from trtllm_truss.engines.engine_files import CONFIG_FILE
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.manifest import MANIFEST_FILE, read_manifest
from trtllm_truss.engines.model_config import Checkpoint, parse_checkpoint
from trtllm_truss.engines.quantization import bits, cache_bits
from trtllm_truss.engines.without_code import TEXTS, without_code
from trtllm_truss.errors import ArtifactError, BuildError, SettingsError
from trtllm_truss.json_files import parse_json
from trtllm_truss.settings.build import Awq, Build
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
        log: output of the commands from all runs.
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
        """Exclude other builders of the same engine.

        The lock is released when the process exits.
        """
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
        """Compare a finished engine with its manifest, and remove it if it is damaged."""
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
        """Copy a finished engine from another place, atomically."""
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
        """Return True if this or an earlier run has finished a step."""
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
    """A checkpoint of which only ``config.json`` was read.

    Attributes:
        weights: suffix of its weight files.
        revision: identifies exactly these contents.
        commit: the commit on Hugging Face; None elsewhere.
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
    """Inspect the checkpoint of a `build` section.

    `trust_remote_code` allows pickled weights for GPUs, which run code when loaded.

    Raises:
        ArtifactError: the checkpoint, its weights or its ``config.json`` cannot be read.
        SettingsError: the weights are pickled, and not trusted or for the CPU.
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
    if weights == _PICKLES and (build.for_cpu or not settings.trust_remote_code):
        consent = ", or set trust_remote_code to true if you trust their author"
        raise SettingsError(
            f"{source.name} has only pickled weights ({_PICKLES}), which run code when loaded; "
            "convert them to safetensors" + ("" if build.for_cpu else consent) + "."
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


_QUANTIZED_BITS = {
    **dict.fromkeys(("smoothquant", "fp8", "int8_weight_only"), 8.0),
    **dict.fromkeys(("awq", "int4_weight_only"), 4.0),
}
_SCALE_BITS = 16
_UNKNOWN_CONTEXT = 2048
_BLOCK = "tokens_per_block"
_GB = 1e9


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated sizes of a build.

    Attributes:
        checkpoint_bytes: download size.
        engine_bytes: size of all ranks together.
        rank_bytes: size of one rank, about the GPU memory of its weights.
        gpu_bytes: memory of one GPU; None if unknown.
        capacity: capacity of the KV cache; None if the GPU is unknown.
    """

    checkpoint_bytes: int
    engine_bytes: int
    rank_bytes: int
    gpu_bytes: int | None
    capacity: Capacity | None

    @property
    def disk_bytes(self) -> int:
        """Peak disk space: checkpoint, converted checkpoint and engine together."""
        return self.checkpoint_bytes + self.build_bytes

    @property
    def build_bytes(self) -> int:
        """Disk space without the checkpoint, which may be on another disk or downloaded already."""
        return 2 * self.engine_bytes

    @property
    def sentences(self) -> list[str]:
        """Lines for the terminal."""
        lines = [
            f"download: {_gigabytes(self.checkpoint_bytes)}",
            f"disk while building: {_gigabytes(self.disk_bytes)}",
            f"engine: {_gigabytes(self.engine_bytes)}, {_gigabytes(self.rank_bytes)} in each rank"
            + (f", on a GPU of {_gigabytes(self.gpu_bytes)}" if self.gpu_bytes else ""),
        ]
        return lines + ([self.capacity.summary] if self.capacity else [])


def estimate_build(
    settings: Settings, build: Build, checkpoint: Checkpoint, family: Family, target: Target
) -> Estimate:
    """Estimate a build that `plan_build` accepts, to within a few percent."""
    ranks = settings.world_size
    tables, matrices = _parameters(checkpoint, family)
    dtype_bits = bits(resolved_dtype(build, checkpoint))
    engine = math.ceil((tables * dtype_bits + matrices * _matrix_bits(build, dtype_bits)) / 8)
    rank = math.ceil(engine / ranks)
    free = None if target.memory_bytes is None else max(0, target.memory_bytes - rank)
    knobs = CacheSettings.from_runtime(settings.runtime)
    return Estimate(
        checkpoint_bytes=math.ceil((tables + matrices) * bits(checkpoint.dtype) / 8),
        engine_bytes=engine,
        rank_bytes=rank,
        gpu_bytes=target.memory_bytes,
        capacity=None
        if free is None
        else kv_cache_capacity(expected_cache(settings, build, checkpoint, target), knobs, free),
    )


def estimate_cpu_build(build: Build, checkpoint: Checkpoint, family: Family) -> Estimate:
    """Estimate a CPU engine, which uses the machine's memory."""
    tables, matrices = _parameters(checkpoint, family)
    method = build.quantization.method if build.quantization else None
    scale = _SCALE_BITS / CPU_BLOCK
    matrix_bits = 16 if method is None else _QUANTIZED_BITS[method] + scale
    engine = math.ceil(
        (tables * (16 if method is None else 8 + scale) + matrices * matrix_bits) / 8
    )
    download = math.ceil((tables + matrices) * bits(checkpoint.dtype) / 8)
    return Estimate(download, engine, engine, None, None)


def expected_cache(
    settings: Settings, build: Build, checkpoint: Checkpoint, target: Target
) -> CacheShape:
    """Predict the shape of the engine's KV cache."""
    values = resolved_values(settings, build, checkpoint, target.release)
    row = next(
        row
        for row in BUILD_FLAGS
        if row.setting == _BLOCK and row.is_in(target.release) and row.default(target.release)
    )
    kv_heads = (checkpoint.kv_heads,) * checkpoint.layers
    cache = build.kv_cache_dtype.upper() if build.kv_cache_dtype else ""
    return CacheShape(
        numbers=keys_and_values(kv_heads, settings.tensor_parallelism, checkpoint.head_size),
        pipeline=settings.pipeline_parallelism,
        bits=cache_bits(cache, resolved_dtype(build, checkpoint)),
        block_tokens=int(str(values.get(_BLOCK) or row.default(target.release))),
        sequence_tokens=build.sequence_tokens or checkpoint.positions or _UNKNOWN_CONTEXT,
    )


def _parameters(checkpoint: Checkpoint, family: Family) -> tuple[int, int]:
    """Count the parameters of the embedding tables and of all layers' matrices."""
    tables = (1 if checkpoint.tied_embeddings else 2) * checkpoint.vocab_size
    heads = 2 * checkpoint.heads + 2 * checkpoint.kv_heads  # query and output, key and value
    attention = checkpoint.hidden_size * heads * checkpoint.head_size
    matrices = 3 if family.gated_mlp else 2
    mlp = matrices * checkpoint.hidden_size * checkpoint.inner_size * checkpoint.experts
    return tables * checkpoint.hidden_size, checkpoint.layers * (attention + mlp)


def _matrix_bits(build: Build, dtype_bits: float) -> float:
    quantization = build.quantization
    if quantization is None:
        return dtype_bits
    bits = _QUANTIZED_BITS[quantization.method]
    return bits + (_SCALE_BITS / quantization.block_size if isinstance(quantization, Awq) else 0)


def _gigabytes(count: int) -> str:
    return f"{count / _GB:.1f} GB"


CONVERTER = 1
"""Increment when this project's CPU converter changes its output."""


@dataclass(frozen=True, slots=True)
class Job:
    """One build, ready to run.

    Attributes:
        target: the GPU and the version; None for a CPU engine.
        key: equal keys mean equal engines.
    """

    settings: Settings
    build: Build
    source: CheckpointSource
    target: Target | None
    plan: BuildPlan
    estimate: Estimate
    key: str

    @property
    def workspace(self) -> Workspace:
        return Workspace(builds_folder() / self.key)

    @property
    def options(self) -> Mapping[str, object]:
        """The requested options, for the manifest."""
        asked = self.build.model_dump(exclude_none=True, exclude={"publish_to", "workers"})
        return {
            "tensor_parallelism": self.settings.tensor_parallelism,
            "pipeline_parallelism": self.settings.pipeline_parallelism,
            **asked,
        }


def prepare_build(
    settings: Settings, host: HostInfo, token: str | None, source: CheckpointSource | None = None
) -> Job:
    """Read the checkpoint's ``config.json``, then validate and plan the build.

    Downloads only that file.

    Args:
        host: GPU and image of the build.
        token: Hugging Face access token.
        source: the checkpoint, if already read.

    Raises:
        SettingsError: the settings cannot be built.
        ArtifactError: the checkpoint cannot be read.
    """
    build = settings.build
    if build is None:
        raise SettingsError(
            "config.yaml: model_metadata.build is missing; add it with checkpoint_repository, the "
            "weights to build from (docs/build.md)."
        )
    source = source or find_checkpoint(settings, build, token)
    checkpoint = source.checkpoint
    target = Target.from_host(host)
    plan = plan_build(settings, build, checkpoint, target)
    family = find_family(checkpoint.architecture)
    assert family is not None, "plan_build rejects other architectures"
    estimate = (
        estimate_cpu_build(build, checkpoint, family)
        if build.for_cpu
        else estimate_build(settings, build, checkpoint, family, target)
    )
    known = None if build.for_cpu else target
    key = build_key(plan, source.revision, known)
    return Job(settings, build, source, known, plan, estimate, key)


def build_key(plan: BuildPlan, checkpoint_revision: str, target: Target | None) -> str:
    """Hash everything that distinguishes two engines.

    The commands contain every option that affects the engine and no other, such as the publishing
    destination. `checkpoint_revision` is the commit of the checkpoint, or a hash of its files.
    """
    content: dict[str, Any] = {
        "steps": [step.command for step in plan.steps],
        "checkpoint_changes": dict(plan.checkpoint_changes),
        "checkpoint": checkpoint_revision,
        "version": target.version if target else f"converter {CONVERTER}",
        "compute_capability": target.compute_capability if target else None,
    }
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def validate_disk_space(job: Job) -> None:
    """Check that the results of a job fit on the disk.

    Raises:
        BuildError: the disk is too small.
    """
    folder = builds_folder()
    free = free_bytes(folder)
    if free < job.estimate.build_bytes:
        raise BuildError(
            f"the build needs {job.estimate.build_bytes / 1e9:.1f} GB of disk in {folder} and "
            f"{free / 1e9:.1f} GB are free; make room, or point HF_HOME at a larger disk."
        )


def shell_variables(job: Job, checkpoint: Path, tools: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the plan's shell variables."""
    workspace = job.workspace
    return {
        **tools,
        "$CHECKPOINT": str(checkpoint),
        "$CONVERTED": str(workspace.converted),
        "$ENGINE": str(workspace.engine),
    }
