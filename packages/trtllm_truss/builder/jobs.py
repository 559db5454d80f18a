"""From settings to a build that nothing speaks against."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.builder.key import build_key
from trtllm_truss.builder.plan import Plan, plan_build
from trtllm_truss.builder.planning.estimates import Estimate, estimate_build, estimate_cpu_build
from trtllm_truss.builder.planning.families import find_family
from trtllm_truss.builder.planning.target import Target
from trtllm_truss.builder.sources import CheckpointSource, find_checkpoint
from trtllm_truss.builder.workspace import Workspace, builds_folder
from trtllm_truss.engines.compatibility.environment import Surroundings
from trtllm_truss.errors import BuildError, SettingsError
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.model import Settings


@dataclass(frozen=True, slots=True)
class Job:
    """One build, ready to run.

    Attributes:
        settings: what the Truss serves.
        build: how to make it.
        source: the checkpoint.
        target: the GPU and the version; None for an engine of the CPU.
        plan: the commands.
        estimate: what it takes and gives.
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
        """Its folder on this machine."""
        return Workspace(builds_folder() / self.key)

    @property
    def options(self) -> Mapping[str, object]:
        """What was asked for, for the manifest."""
        asked = self.build.model_dump(exclude_none=True, exclude={"publish_to", "workers"})
        return {
            "tensor_parallelism": self.settings.tensor_parallelism,
            "pipeline_parallelism": self.settings.pipeline_parallelism,
            **asked,
        }


def prepare(settings: Settings, surroundings: Surroundings, token: str | None) -> Job:
    """Reads the checkpoint's ``config.json``, plans the build and refuses it where it cannot be.

    Nothing but that one file is downloaded.

    Raises:
        SettingsError: the settings ask for what cannot be built.
        ArtifactError: there is no such checkpoint.
    """
    build = settings.build
    if build is None:
        raise SettingsError(
            "config.yaml: model_metadata.build is missing; it says what to build (docs/build.md)."
        )
    source = find_checkpoint(build, token, trust_pickles=settings.trust_remote_code)
    checkpoint = source.checkpoint
    on_gpu = build.backend == "tensorrtllm"
    target = Target.from_surroundings(surroundings)
    plan = plan_build(settings, build, checkpoint, target)
    family = find_family(checkpoint.architecture)
    assert family is not None, "plan_build refuses other architectures"
    estimate = (
        estimate_build(settings, build, checkpoint, family, target)
        if on_gpu
        else estimate_cpu_build(build, checkpoint, family)
    )
    known = target if on_gpu else None
    key = build_key(plan, source.revision, known)
    return Job(settings, build, source, known, plan, estimate, key)


def refuse_full_disk(job: Job) -> None:
    """Lets a job pass whose results fit on the disk.

    Raises:
        BuildError: they do not.
    """
    folder = next(place for place in [builds_folder(), *builds_folder().parents] if place.exists())
    free = shutil.disk_usage(folder).free
    if free < job.estimate.build_bytes:
        raise BuildError(
            f"the build needs {job.estimate.build_bytes / 1e9:.1f} GB of disk in {folder} and "
            f"{free / 1e9:.1f} GB are free; make room, or point HF_HOME at a larger disk."
        )


def places(job: Job, checkpoint: Path, tools: Mapping[str, str]) -> dict[str, str]:
    """Values of the shell variables in the plan."""
    workspace = job.workspace
    return {
        **tools,
        "$CHECKPOINT": str(checkpoint),
        "$CONVERTED": str(workspace.converted),
        "$ENGINE": str(workspace.engine),
    }
