"""Build the paced engine's backend folder, for `TRITON_BACKEND_DIRECTORY`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from benchmarks.paths import ROOT

_SOURCE = Path(__file__).with_name("paced_engine.c")
FAKE_BACKENDS = ROOT / "tests/fakes/triton/backends"
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True, slots=True)
class Backend:
    """A folder with a backend named `tensorrtllm`.

    Attributes:
        folder: for `TRITON_BACKEND_DIRECTORY`.
        kind: description for the report.
    """

    folder: Path
    kind: str


def make_backend(cache: Path) -> Backend:
    """Compile the paced engine once; without a C compiler, use the tests' fake in Python.

    Args:
        cache: receives one folder per version of the source.

    Raises:
        RuntimeError: the compilation failed.
    """
    compiler = find_compiler()
    if compiler is None:
        return Backend(
            FAKE_BACKENDS, "fake in Python, for lack of a C compiler; it limits the figures"
        )
    digest = hashlib.sha256(_SOURCE.read_bytes() + repr((compiler, _FLAGS)).encode()).hexdigest()
    folder = cache / f"backends-{digest[:12]}"
    library = folder / "tensorrtllm/libtriton_tensorrtllm.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        partial = library.with_suffix(f".{os.getpid()}")
        command = [compiler, *_FLAGS, "-o", str(partial), str(_SOURCE)]
        compiling = subprocess.run(command, capture_output=True, text=True, check=False)
        if compiling.returncode:
            raise RuntimeError(f"{compiler} cannot compile {_SOURCE.name}:\n{compiling.stderr}")
        partial.replace(library)
    return Backend(folder.resolve(), "compiled")


def find_compiler() -> str | None:
    """Return the C compiler: `CC`, the one of Python's build, or a common name on `PATH`."""
    configured = str(sysconfig.get_config_var("CC") or "").split()
    names = [os.environ.get("CC", ""), *configured[:1], "cc", "gcc", "clang"]
    return next((path for name in names if name and (path := shutil.which(name))), None)
