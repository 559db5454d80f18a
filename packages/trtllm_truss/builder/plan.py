"""Plan a build: settings and a checkpoint's ``config.json`` become commands, before any download.

Commands name folders by shell variables, so that a plan reads, and runs, as a shell script; the
runner substitutes paths:

* ``$CHECKPOINT``: the Hugging Face checkpoint
* ``$EXAMPLES``: the folder ``examples`` of NVIDIA/TensorRT-LLM at the version's tag
* ``$CONVERTED``: the checkpoint in TensorRT-LLM's format, between the steps
* ``$ENGINE``: the engine repository
* ``$PYTHON``: the interpreter
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtllm_truss.builder.checks import validate_cpu_build, validate_gpu_build
from trtllm_truss.builder.commands import (
    conversion_command,
    cpu_command,
    engine_command,
)
from trtllm_truss.builder.families import Target
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.model import Settings

_INDENT = " \\\n    "


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a build.

    Attributes:
        name: one word, for progress and the completion marker.
        command: the argument vector, with shell variables for folders.
        output: the variable of the output folder.
    """

    name: str
    command: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        """Return the command for a shell, each option and its value on one line."""
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
    """The steps of a build, in order.

    Attributes:
        checkpoint_changes: keys of the checkpoint's ``config.json`` that the settings replace, in a
            copy for the steps.
    """

    steps: tuple[Step, ...]
    checkpoint_changes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the plan as a shell script."""
        changes = [
            f"# config.json in $CHECKPOINT is changed: {key} = {value!r}"
            for key, value in self.checkpoint_changes.items()
        ]
        return "\n\n".join([*changes, *map(str, self.steps)]) + "\n"


def plan_build(settings: Settings, build: Build, checkpoint: Checkpoint, target: Target) -> Plan:
    """Plan the steps from a checkpoint to an engine.

    Raises:
        SettingsError: the engine cannot be built; the message names every problem and remedy.
    """
    if build.backend == "openvino_genai":
        validate_cpu_build(settings, build, checkpoint)
        return Plan((Step("convert", cpu_command(build, checkpoint), "$ENGINE"),))
    family = validate_gpu_build(settings, build, checkpoint, target)
    conversion = conversion_command(settings, build, checkpoint, family, target.release)
    engine = engine_command(settings, build, checkpoint, target.release)
    return Plan(
        (Step("convert", conversion, "$CONVERTED"), Step("build", engine, "$ENGINE")),
        checkpoint_changes(build),
    )


def checkpoint_changes(build: Build) -> dict[str, Any]:
    """Return the rotary keys to replace in ``config.json``, where the convert scripts read them."""
    scaling = build.rotary_scaling
    changes = {
        "rope_theta": build.rotary_base,
        "rotary_dim": build.rotary_dim,
        "rope_scaling": scaling and {"type": scaling.type, "factor": scaling.factor},
    }
    return {key: value for key, value in changes.items() if value is not None}


def _quoted(word: str) -> str:
    return word if word.startswith("$") else shlex.quote(word)
