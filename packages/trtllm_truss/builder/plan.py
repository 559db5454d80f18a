"""From settings and a checkpoint's ``config.json`` to the exact commands, before any download.

Commands name folders by shell variables, so that a plan reads, and runs, as a shell script; the
runner puts paths in their place:

* ``$CHECKPOINT``: the checkpoint as Hugging Face has it
* ``$EXAMPLES``: the folder ``examples`` of NVIDIA/TensorRT-LLM at the version's tag
* ``$CONVERTED``: the checkpoint in TensorRT-LLM's form, between the steps
* ``$ENGINE``: the engine repository
* ``$PYTHON``: the interpreter
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtllm_truss.builder.checks.checks import refuse_cpu_build, refuse_gpu_build
from trtllm_truss.builder.planning.checkpoint import Checkpoint
from trtllm_truss.builder.planning.conversion import conversion_command
from trtllm_truss.builder.planning.cpu_plan import cpu_command
from trtllm_truss.builder.planning.engine_command import engine_command
from trtllm_truss.builder.planning.target import Target
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.model import Settings

_INDENT = " \\\n    "


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a build.

    Attributes:
        name: a word for progress and for the mark that it is done.
        command: the argument vector, folders as shell variables.
        output: the variable of the folder that it fills.
    """

    name: str
    command: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        """The command for a shell, an option and its value on one line."""
        lines: list[str] = []
        for word in map(_quoted, self.command):
            if lines and not word.startswith("--") and lines[-1].startswith("--"):
                lines[-1] += f" {word}"
            elif lines and not word.startswith("--"):
                lines[0] += f" {word}"
            else:
                lines.append(word)
        return _INDENT.join(lines)


@dataclass(frozen=True, slots=True)
class Plan:
    """A build, step by step.

    Attributes:
        steps: in their order.
        checkpoint_changes: keys of the checkpoint's ``config.json`` that the settings replace; the
            steps then see a copy of it.
    """

    steps: tuple[Step, ...]
    checkpoint_changes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """The plan as a shell script."""
        changes = [
            f"# config.json in $CHECKPOINT is changed: {key} = {value!r}"
            for key, value in self.checkpoint_changes.items()
        ]
        return "\n\n".join([*changes, *map(str, self.steps)]) + "\n"


def plan_build(settings: Settings, build: Build, checkpoint: Checkpoint, target: Target) -> Plan:
    """The steps from a checkpoint to an engine.

    Args:
        settings: parallelism, and what `runtime` asks of the engine.
        build: the options.
        checkpoint: the model.
        target: where it is to run.

    Raises:
        SettingsError: it cannot be built so; the message says why and what to change.
    """
    if build.backend == "openvino_genai":
        refuse_cpu_build(settings, build, checkpoint)
        return Plan((Step("convert", cpu_command(build, checkpoint), "$ENGINE"),))
    family = refuse_gpu_build(settings, build, checkpoint, target)
    conversion = conversion_command(settings, build, checkpoint, family, target.release)
    engine = engine_command(settings, build, checkpoint, target.release)
    return Plan(
        (Step("convert", conversion, "$CONVERTED"), Step("build", engine, "$ENGINE")),
        checkpoint_changes(build),
    )


def checkpoint_changes(build: Build) -> dict[str, Any]:
    """What the rotary settings replace in ``config.json``; the convert scripts read it there."""
    scaling = build.rotary_scaling
    changes = {
        "rope_theta": build.rotary_base,
        "rotary_dim": build.rotary_dim,
        "rope_scaling": scaling and {"type": scaling.type, "factor": scaling.factor},
    }
    return {key: value for key, value in changes.items() if value is not None}


def _quoted(word: str) -> str:
    return word if word.startswith("$") else shlex.quote(word)
