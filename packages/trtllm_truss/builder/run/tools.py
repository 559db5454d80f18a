"""Find the tools of a build on this machine, before any download."""

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
from trtllm_truss.machine.cuda import find_cuda
from trtllm_truss.machine.gpus import find_gpus
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.child_environment import child_environment

EXAMPLES_VARIABLE = "TENSORRT_LLM_EXAMPLES"
_EXAMPLES = (Path("/app/tensorrt_llm/examples"), Path("/app/examples"))
_MARK = "quantization/quantize.py"


def find_tools(build: Build, target: Target, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the shell variables of the tools: ``$PYTHON`` and, for GPUs, ``$EXAMPLES``.

    Raises:
        BuildError: a tool is not installed; the message names the remedy.
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
            f"{image_for(target.version)}, on the GPU model that will serve the engine."
        )
    return {"$PYTHON": _interpreter(variables), "$EXAMPLES": str(_examples(target, variables))}


def step_environment(variables: Mapping[str, str], passed: Collection[str]) -> dict[str, str]:
    """Return the environment of a step: without secrets, with this package importable.

    `passed` names further variables of this process to pass on.
    """
    environment = child_environment(variables, passed, online=True)
    packages = str(Path(__file__).parents[3])
    known = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*known, packages]))
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
