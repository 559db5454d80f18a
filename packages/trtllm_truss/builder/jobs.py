"""Validate settings and prepare a build job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_truss.artifacts.transfer import free_bytes
from trtllm_truss.builder.plan import Plan, plan_build
from trtllm_truss.builder.planning.estimates import Estimate, estimate_build, estimate_cpu_build
from trtllm_truss.builder.planning.families import find_family
from trtllm_truss.builder.planning.target import Target
from trtllm_truss.builder.sources import CheckpointSource, Workspace, builds_folder, find_checkpoint
from trtllm_truss.engines.compatibility.host import HostInfo
from trtllm_truss.errors import BuildError, SettingsError
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.model import Settings

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
    plan: Plan
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


def build_key(plan: Plan, checkpoint_revision: str, target: Target | None) -> str:
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
