"""What the steps of a build need on this machine, looked for before anything is downloaded."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from trtllm_truss.builder.planning.target import Target
from trtllm_truss.engines.versions import image_for
from trtllm_truss.errors import BuildError
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.child_environment import child_environment

EXAMPLES_VARIABLE = "TENSORRT_LLM_EXAMPLES"
_EXAMPLES = (Path("/app/tensorrt_llm/examples"), Path("/app/examples"))
_MARK = "quantization/quantize.py"


def find_tools(build: Build, target: Target, variables: Mapping[str, str]) -> dict[str, str]:
    """Values of the shell variables that name tools: ``$PYTHON`` and, for GPUs, ``$EXAMPLES``.

    Raises:
        BuildError: a tool is not installed; the message says how to get it.
    """
    if build.backend == "openvino_genai":
        if importlib.util.find_spec("gguf") is None:
            raise BuildError(
                "building for the CPU needs the Python package gguf; `pip install gguf`, or "
                "install trtllm-truss[build-cpu]."
            )
        return {"$PYTHON": sys.executable}
    if shutil.which("trtllm-build", path=variables.get("PATH")) is None:
        raise BuildError(
            "building for GPUs needs trtllm-build, which is not on PATH; run this in "
            f"{image_for(target.version)}, on the kind of GPU that is going to serve."
        )
    return {"$PYTHON": _interpreter(variables), "$EXAMPLES": str(_examples(target, variables))}


def step_environment(variables: Mapping[str, str], passed: Collection[str]) -> dict[str, str]:
    """The environment of a step: ours without secrets, and with this package to be found.

    Args:
        variables: our own environment.
        passed: names of further variables for the step.
    """
    environment = child_environment(variables, passed, online=True)
    packages = str(Path(__file__).parents[3])
    known = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*known, packages]))
    return environment


def _interpreter(variables: Mapping[str, str]) -> str:
    """The Python beside ``trtllm-build`` has TensorRT-LLM; ours may be another."""
    tool = Path(shutil.which("trtllm-build", path=variables.get("PATH")) or "")
    beside = tool.with_name("python3")
    return str(beside) if beside.exists() else sys.executable


def _examples(target: Target, variables: Mapping[str, str]) -> Path:
    named = variables.get(EXAMPLES_VARIABLE)
    for folder in [Path(named)] if named else _EXAMPLES:
        if (folder / _MARK).is_file():
            return folder
    where = f"{EXAMPLES_VARIABLE} is {named!r}, which" if named else "This image"
    raise BuildError(
        f"{where} does not hold TensorRT-LLM's examples, whose scripts convert checkpoints; "
        f"`git clone --depth 1 -b v{target.version} https://github.com/NVIDIA/TensorRT-LLM` and "
        f"set {EXAMPLES_VARIABLE} to its folder examples."
    )
