"""Runs a job: fetch, convert, build, complete; what is finished is not done again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from trtllm_truss.builder.jobs import Job, places, refuse_full_disk
from trtllm_truss.builder.plan import Step
from trtllm_truss.builder.planning.target import Target
from trtllm_truss.builder.run.runner import run_command
from trtllm_truss.builder.run.tools import find_tools, step_environment
from trtllm_truss.builder.sources import changed_copy
from trtllm_truss.builder.workspace import Workspace
from trtllm_truss.engines.inspection import inspect_engine
from trtllm_truss.engines.manifest import Manifest, Origin, record_files, write_manifest
from trtllm_truss.engines.target_gpu import TargetGpu
from trtllm_truss.errors import BuildError
from trtllm_truss.text.tokenizer_selection import tokenizer_files


def run(job: Job, variables: Mapping[str, str], say: Callable[[str], None]) -> Path:
    """Builds the engine, or goes on where an earlier run was interrupted.

    Args:
        job: what to build.
        variables: the environment.
        say: gets a line for every phase, and now and then one from the commands.

    Returns:
        The engine repository, with tokenizer and manifest.

    Raises:
        BuildError: a tool is missing or a command failed.
        ArtifactError: the checkpoint cannot be fetched, or what was built is no engine.
    """
    workspace = job.workspace
    with workspace.locked():
        if workspace.is_complete:
            say(f"found the same build: {workspace.engine}")
            return workspace.engine
        tools = find_tools(job.build, job.target or Target(), variables)
        refuse_full_disk(job)
        say(f"checkpoint: {job.build.checkpoint_repository}")
        checkpoint = job.source.fetch(
            with_code=job.source.checkpoint.has_code and job.target is not None
        )
        values = places(job, _as_changed(job, checkpoint), tools)
        environment = step_environment(variables, job.settings.serving.pass_environment)
        for number, step in enumerate(job.plan.steps, 1):
            label = f"[{number}/{len(job.plan.steps)}] {step.name}"
            _run_step(workspace, step, label, values, environment, say)
        _complete(job, checkpoint)
        workspace.clean_up()
    say(f"engine: {workspace.engine}")
    return workspace.engine


def _as_changed(job: Job, checkpoint: Path) -> Path:
    """The checkpoint as the plan wants it to be seen."""
    changes = job.plan.checkpoint_changes
    if not changes:
        return checkpoint
    shutil.rmtree(job.workspace.changed, ignore_errors=True)
    return changed_copy(checkpoint, changes, job.workspace.changed)


def _run_step(
    workspace: Workspace,
    step: Step,
    label: str,
    values: Mapping[str, str],
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    if workspace.is_done(step):
        say(f"{label}: done before")
        return
    workspace.empty_output(step)
    say(f"{label} … (log: {workspace.log})")
    command = [_filled(word, values) for word in step.command]
    run_command(
        step.name, command, environment, workspace.log, lambda line: say(f"{label}: {line}")
    )
    workspace.mark_done(step)
    say(f"{label}: done")


def _filled(word: str, values: Mapping[str, str]) -> str:
    variable, slash, rest = word.partition("/")
    return values[variable] + slash + rest if word.startswith("$") else word


def _complete(job: Job, checkpoint: Path) -> None:
    """Adds the tokenizer, looks at the result as serving would, and writes the manifest."""
    folder = job.workspace.engine
    files = (file for file in checkpoint.rglob("*") if file.is_file())
    for name in tokenizer_files(file.relative_to(checkpoint).as_posix() for file in files):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(checkpoint / name, folder / name)
    engine = inspect_engine(folder)
    wanted = job.settings.world_size
    if engine.world_size != wanted:
        raise BuildError(
            f"the build made an engine of {engine.world_size} ranks where {wanted} were asked for; "
            f"read {job.workspace.log}."
        )
    origin = Origin(job.build.checkpoint_repository, job.source.commit)
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    write_manifest(
        folder,
        Manifest(
            tensorrt_llm_version=job.target.version if job.target else None,
            gpu=_gpu(job.target),
            world_size=wanted,
            build_key=job.key,
            build_options=job.options,
            checkpoint=origin,
            tokenizer=origin,
            files=record_files(folder, names),
        ),
    )


def _gpu(target: Target | None) -> TargetGpu | None:
    if target is None or target.gpu is None or target.compute_capability is None:
        return None
    return TargetGpu(target.gpu, target.compute_capability)
