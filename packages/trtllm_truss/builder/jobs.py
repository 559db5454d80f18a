"""Validate settings and prepare a build job."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_truss.artifacts.transfer import free_bytes
from trtllm_truss.builder.commands import (
    BUILD_FLAGS,
    CPU_BLOCK,
    Family,
    Target,
    find_family,
    resolved_dtype,
    resolved_values,
)
from trtllm_truss.builder.plan import BuildPlan, plan_build
from trtllm_truss.builder.sources import CheckpointSource, Workspace, builds_folder, find_checkpoint
from trtllm_truss.engines.capacity import (
    CacheSettings,
    CacheShape,
    Capacity,
    keys_and_values,
    kv_cache_capacity,
)
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.model_config import Checkpoint, bits, cache_bits
from trtllm_truss.errors import BuildError, SettingsError
from trtllm_truss.settings.build import Awq, Build
from trtllm_truss.settings.model import Settings

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
    """Sizes of a build.

    Attributes:
        checkpoint_bytes: to download.
        engine_bytes: of all ranks together.
        rank_bytes: of one rank, about the GPU memory of its weights.
        gpu_bytes: memory of one GPU; None if unknown.
        capacity: of the KV cache; None if the GPU is unknown.
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
"""Increment when this project's converter for the CPU changes its output."""


@dataclass(frozen=True, slots=True)
class Job:
    """One build, ready to run.

    Attributes:
        target: the GPU and the version; None for a CPU engine.
        key: equal for equal engines.
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
        settings: with `build`.
        host: GPU and image of the build.
        token: the Hugging Face access token.
        source: the checkpoint, if an earlier call has read it.

    Raises:
        SettingsError: the settings cannot be built.
        ArtifactError: the checkpoint cannot be read.
    """
    build = settings.build
    if build is None:
        raise SettingsError(
            "config.yaml: model_metadata.build is missing; it describes the build (docs/build.md)."
        )
    source = source or find_checkpoint(settings, build, token)
    checkpoint = source.checkpoint
    on_gpu = build.backend == "tensorrtllm"
    target = Target.from_host(host)
    plan = plan_build(settings, build, checkpoint, target)
    family = find_family(checkpoint.architecture)
    assert family is not None, "plan_build rejects other architectures"
    estimate = (
        estimate_build(settings, build, checkpoint, family, target)
        if on_gpu
        else estimate_cpu_build(build, checkpoint, family)
    )
    known = target if on_gpu else None
    key = build_key(plan, source.revision, known)
    return Job(settings, build, source, known, plan, estimate, key)


def build_key(plan: BuildPlan, checkpoint_revision: str, target: Target | None) -> str:
    """Hash everything that makes two engines differ.

    The commands contain every option that matters, and none that does not, such as the publishing
    destination.
    `checkpoint_revision` is the commit of the checkpoint, or a hash of its files.
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
    """Return the values of the shell variables in the plan."""
    workspace = job.workspace
    return {
        **tools,
        "$CHECKPOINT": str(checkpoint),
        "$CONVERTED": str(workspace.converted),
        "$ENGINE": str(workspace.engine),
    }
