"""Run a build job behind the process guard: fetch, convert, build and complete.

`ensure_engine` is the entry point of serving. Finished steps are not repeated. The guard kills a
command when this process exits; a failure is explained by the command's last lines and exit status.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from trtllm_builder import converters
from trtllm_builder.commands import Target
from trtllm_builder.jobs import (
    Job,
    Workspace,
    changed_copy,
    prepare_build,
    shell_variables,
    validate_disk_space,
)
from trtllm_builder.plan import Step
from trtllm_builder.publishing import find_published, publish
from trtllm_truss.artifacts.listing import tokenizer_files
from trtllm_truss.artifacts.open_repository import shared_folder
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.images import image_for
from trtllm_truss.engines.kinds import inspect_engine
from trtllm_truss.engines.manifest import Manifest, Origin, TargetGpu, record_files, write_manifest
from trtllm_truss.errors import BuildError
from trtllm_truss.machine.describe import find_cuda, find_gpus
from trtllm_truss.processes.child import GuardedChild, child_environment
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings
from trtllm_truss.text.tokenizer_files import read_end_ids

_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"CUDA out of memory|OutOfMemoryError|Requested amount of GPU memory|CUDA error: out of",
        "The GPU's memory is too small; use a larger GPU, more tensor_parallelism, or lower "
        "build.max_batch_size, max_num_tokens or calib_batch_size.",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "The disk is full; make room, or point HF_HOME at a larger disk.",
    ),
    (
        r"MemoryError|Cannot allocate memory|std::bad_alloc",
        "The machine's memory is too small; use a larger one, or lower build.workers.",
    ),
    (
        r"No module named '(modelopt|ammo)",
        "Calibration needs nvidia-modelopt; install the version that TensorRT-LLM asks for.",
    ),
    (
        r"No module named|ModuleNotFoundError|cannot import name",
        "A Python package is missing or has another version; install the script's "
        "requirements.txt, and use the examples of exactly the installed TensorRT-LLM.",
    ),
    (
        r"unrecognized arguments|the following arguments are required|invalid choice",
        "The script rejected an option; use the examples of exactly the installed TensorRT-LLM.",
    ),
    (
        r"(datasets|cnn_dailymail|lambada).*(ConnectionError|offline|couldn't|not found|resolve)"
        r"|Couldn't reach .*|DatasetNotFoundError",
        "The calibration data cannot be fetched; give this machine access to huggingface.co.",
    ),
    (
        r"Unsupported (model )?architecture|is not supported|NotImplementedError",
        "This version of TensorRT-LLM cannot build it; choose another quantization or image.",
    ),
    (
        r"no kernel image is available|compute capability|Unsupported SM",
        "TensorRT-LLM has no kernels for this GPU; use a GPU that the version supports.",
    ),
)
_ERROR_LINE = re.compile(r"\berror\b|exception|assert|fail(ed|ure)?\b|cannot", re.I)
_KILLED = 128 + signal.SIGKILL


def describe_failure(name: str, status: int, tail: Sequence[str], log: Path) -> str:
    """Describe a failed step: its last error line, the likely cause, the remedy and the log.

    A `status` above 128 is 128 plus the number of the fatal signal; `tail` must not contain empty
    lines.
    """
    errors = [line for line in tail if _ERROR_LINE.search(line)] or list(tail)
    output = f"Its output: {errors[-1][:400]}" if errors else "It printed nothing."
    cause = _cause(status, tail)
    return f"build step {name} failed with status {status}. {output} {cause}The log is {log}."


def _cause(status: int, tail: Sequence[str]) -> str:
    for pattern, sentence in _CAUSES:
        if any(re.search(pattern, line) for line in reversed(tail)):
            return f"{sentence} "
    if status == _KILLED:
        return (
            "The kernel kills a process when the machine runs out of memory; use a larger machine. "
        )
    return ""


EXAMPLES_VARIABLE = "TENSORRT_LLM_EXAMPLES"
_EXAMPLES = (Path("/app/tensorrt_llm/examples"), Path("/app/examples"))
_MARK = "quantization/quantize.py"
_PROGRESS_S = 10.0
_STOP_S = 5.0
_LINE_CHARACTERS = 120


def find_tools(build: Build, target: Target, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the shell variables of the tools: ``$PYTHON`` and, for GPUs, ``$EXAMPLES``.

    Raises:
        BuildError: a tool is not installed; the message gives the remedy.
    """
    if build.for_cpu:
        if importlib.util.find_spec("gguf") is None:
            raise BuildError(
                "building for the CPU needs the Python package gguf; `pip install gguf`, or "
                "install trtllm-truss[build-cpu]."
            )
        return {"$PYTHON": sys.executable}
    if shutil.which("trtllm-build", path=variables.get("PATH")) is None:
        raise BuildError(
            "building for GPUs needs trtllm-build, which is not on PATH; run this in "
            f"{image_for(target.version)}, on the GPU model that will serve the engine."
        )
    return {"$PYTHON": _interpreter(variables), "$EXAMPLES": str(_examples(target, variables))}


def step_environment(variables: Mapping[str, str], passed: Collection[str]) -> dict[str, str]:
    """Return the environment of a step, without secrets.

    The packages for the conversion scripts come first; this package is importable.

    `passed` lists further variables of this process to pass on.
    """
    environment = child_environment(variables, passed, online=True)
    packages = str(Path(__file__).parents[1])
    known = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    own = [str(converters.FOLDER)] if converters.FOLDER.is_dir() else []
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*own, *known, packages]))
    cuda = find_cuda(find_gpus(variables).driver_version, variables)
    if cuda.library_paths:
        libraries = [*map(str, cuda.library_paths), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    return environment


def _interpreter(variables: Mapping[str, str]) -> str:
    """Return the Python of ``trtllm-build``, which has TensorRT-LLM; ours may be another."""
    tool = Path(shutil.which("trtllm-build", path=variables.get("PATH")) or "")
    python = tool.with_name("python3")
    return str(python) if python.exists() else sys.executable


def _examples(target: Target, variables: Mapping[str, str]) -> Path:
    named = variables.get(EXAMPLES_VARIABLE)
    for folder in [Path(named).absolute()] if named else _EXAMPLES:
        if (folder / _MARK).is_file():
            return folder
    where = f"{EXAMPLES_VARIABLE} is {named!r}; it" if named else "This image"
    raise BuildError(
        f"{where} lacks TensorRT-LLM's examples, whose scripts convert checkpoints; "
        f"`git clone --depth 1 -b v{target.version} https://github.com/NVIDIA/TensorRT-LLM` and "
        f"set {EXAMPLES_VARIABLE} to its folder examples."
    )


logger = logging.getLogger(__name__)


def ensure_engine(settings: Settings, environment: Environment, host: HostInfo) -> Path:
    """Return the folder of the engine that `settings.build` describes.

    Prefers an equal build on the platform's volume, then on this machine, then a published one;
    otherwise it builds the engine, copies it to the volume, and publishes it to `build.publish_to`.
    A failed copy or upload only causes a warning. One of several replicas builds; the others wait
    for it.

    Raises:
        SettingsError: the settings cannot be built.
        ArtifactError: the checkpoint or the published engine cannot be fetched.
        BuildError: a tool is missing or a command failed.
    """
    job = prepare_build(settings, host, environment.hf_access_token)
    volume = shared_folder()
    if volume is None:
        return _find_or_build(job, environment)
    shared = Workspace(volume / "builds" / job.key)
    with shared.locked():
        if shared.is_whole():
            logger.info("found the same build: %s", shared.engine)
            return shared.engine
        engine = _find_or_build(job, environment)
        shared.take(engine)
    return engine


def _find_or_build(job: Job, environment: Environment) -> Path:
    token = environment.hf_access_token
    destination = job.build.publish_to
    was_complete = job.workspace.is_complete
    if destination and not was_complete:
        published = find_published(destination, job.key, token)
        if published is not None:
            logger.info("found the same build in %s", destination)
            return published
    engine = build_engine(job, environment.variables, logger.info)
    if destination and not was_complete:
        try:
            publish(engine, destination, token)
            logger.info("published to %s", destination)
        except BuildError as error:
            logger.warning("the engine is built but not published: %s", error.message)
    return engine


def build_engine(job: Job, variables: Mapping[str, str], report: Callable[[str], None]) -> Path:
    """Build the engine, or resume an interrupted build.

    `report` receives a line for every phase, and some of the commands' output lines.

    Returns:
        The engine repository, including tokenizer and manifest.

    Raises:
        BuildError: a tool is missing or a command failed.
        ArtifactError: the checkpoint cannot be fetched, or the result is not an engine.
    """
    workspace = job.workspace
    with workspace.locked():
        if workspace.is_complete:
            report(f"found the same build: {workspace.engine}")
            return workspace.engine
        tools = find_tools(job.build, job.target or Target(), variables)
        environment = step_environment(variables, job.settings.serving.pass_environment)
        if not job.build.for_cpu:
            converters.require_importable(tools["$PYTHON"], environment)
        validate_disk_space(job)
        report(f"checkpoint: {job.build.checkpoint_repository}")
        is_trusted = job.settings.trust_remote_code and job.target is not None
        checkpoint = job.source.fetch(with_code=is_trusted)
        values = shell_variables(job, _changed_checkpoint(job, checkpoint), tools)
        for number, step in enumerate(job.plan.steps, 1):
            label = f"[{number}/{len(job.plan.steps)}] {step.name}"
            _run_step(workspace, step, label, values, environment, report)
        _complete(job, checkpoint)
        workspace.clean_up()
    report(f"engine: {workspace.engine}")
    return workspace.engine


def _changed_checkpoint(job: Job, checkpoint: Path) -> Path:
    """Return the checkpoint with the plan's changes."""
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
    report: Callable[[str], None],
) -> None:
    if workspace.is_done(step):
        report(f"{label}: done before")
        return
    workspace.empty_output(step)
    report(f"{label} … (log: {workspace.log})")
    command = [_substituted(word, values) for word in step.command]
    run_command(
        step.name, command, environment, workspace.log, lambda line: report(f"{label}: {line}")
    )
    workspace.mark_done(step)
    report(f"{label}: done")


def run_command(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    report: Callable[[str], None],
) -> None:
    """Run a command and append its output to a log.

    `report` receives an output line about every ten seconds.

    Raises:
        BuildError: the command failed; the message includes its last lines.
    """
    reported = time.monotonic()

    def copy(line: str) -> None:
        nonlocal reported
        file.write(f"{line}\n")
        file.flush()
        if line.strip() and time.monotonic() - reported >= _PROGRESS_S:
            reported = time.monotonic()
            report(line.strip()[:_LINE_CHARACTERS])

    with log.open("a", encoding="utf-8") as file:
        child = GuardedChild(
            command,
            {**environment, "PYTHONUNBUFFERED": "1"},
            run_id=f"truss-build-{secrets.token_hex(8)}",
            orphan_grace_s=_STOP_S,
            cwd=log.parent,  # Python imports modules from there, so never from the user's folder
            on_line=copy,
            name=name,
            newline=None,  # a progress bar ends its lines with a carriage return
        )
        try:
            status = child.wait()
            child.wait_for_output()
        finally:
            child.end(_STOP_S)
    if status:
        tail = [line.strip() for line in child.tail if line.strip()]
        raise BuildError(describe_failure(name, status, tail, log))


def _substituted(word: str, values: Mapping[str, str]) -> str:
    variable, slash, rest = word.partition("/")
    return values[variable] + slash + rest if word.startswith("$") else word


def _complete(job: Job, checkpoint: Path) -> None:
    """Add the tokenizer, inspect the result as serving would, and write the manifest."""
    folder = job.workspace.engine
    files = (file for file in checkpoint.rglob("*") if file.is_file())
    for name in tokenizer_files(file.relative_to(checkpoint).as_posix() for file in files):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(checkpoint / name, folder / name)
    keep_ends(checkpoint, folder)
    engine = inspect_engine(folder)
    world_size = job.settings.world_size
    if engine.world_size != world_size:
        raise BuildError(
            f"the built engine has {engine.world_size} ranks instead of {world_size}; see "
            f"{job.workspace.log}."
        )
    origin = Origin(repository=job.build.checkpoint_repository, revision=job.source.commit)
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    write_manifest(
        folder,
        Manifest(
            tensorrt_llm_version=job.target.version if job.target else None,
            gpu=_gpu(job.target),
            world_size=world_size,
            build_key=job.key,
            build_options=job.options,
            checkpoint=origin,
            tokenizer=origin,
            files=record_files(folder, names),
        ),
    )


def keep_ends(checkpoint: Path, folder: Path) -> None:
    """Move the EOS ids out of the checkpoint's config.json, which the engine's replaces."""
    named_by, ids = read_end_ids(checkpoint)
    if ids and named_by.name == "config.json":
        file = folder / "generation_config.json"
        kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(json.dumps({**kept, "eos_token_id": ids}), encoding="utf-8")


def _gpu(target: Target | None) -> TargetGpu | None:
    if target is None or target.gpu is None or target.compute_capability is None:
        return None
    return TargetGpu(name=target.gpu, compute_capability=target.compute_capability)
