"""The Triton server of this machine, the paths that it needs, and one folder with every backend.

Two layouts are known. In NVIDIA's images ``/opt/tritonserver`` is complete and nothing is added.
The ``nvidia-pytriton`` wheel holds the same server, but its libraries are in a sibling folder of
the package, its Python backend comes with one stub executable per Python version, and that stub
finds neither libpython nor the environment's packages without help.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.engines.kinds import own_backends
from trtllm_truss.errors import TritonError
from trtllm_truss.machine.runtime import read_text

EXECUTABLE_VARIABLE = "TRITON_SERVER_EXECUTABLE"
WHEEL = "nvidia-pytriton==0.7.0"
"""The pin of requirements-wheels.txt. It is unpacked, not installed: its dependencies conflict with
tritonclient's on Python 3.13 (numpy<2), and include gevent."""

_IMAGE_EXECUTABLE = Path("/opt/tritonserver/bin/tritonserver")
_OWN_PACKAGE = Path(__file__).resolve().parents[1]
_STUB = "triton_python_backend_stub"


@dataclass(frozen=True, slots=True)
class TritonInstallation:
    """A server that can be started.

    Attributes:
        executable: ``tritonserver``.
        backends: the folder with the server's own backends.
        version: such as ``2.61.0``; None without a file ``TRITON_VERSION``.
        stub: the Python backend's stub for the running Python, where the backend has none itself.
        library_paths: prepended to ``LD_LIBRARY_PATH``.
        python_paths: prepended to ``PYTHONPATH``.
        site_paths: packages of this process, which Python models search last.
        program_path: prepended to ``PATH``; its ``python3`` runs Python models.
    """

    executable: Path
    backends: Path
    version: str | None = None
    stub: Path | None = None
    library_paths: tuple[Path, ...] = ()
    python_paths: tuple[Path, ...] = ()
    site_paths: tuple[Path, ...] = ()
    program_path: Path | None = None


def find_installation(environ: Mapping[str, str] | None = None) -> TritonInstallation:
    """Find the server: ``TRITON_SERVER_EXECUTABLE``, ``PATH``, NVIDIA's image, then the wheel.

    Raises:
        TritonError: no server was found, or the one named or found cannot run here.
    """
    environ = os.environ if environ is None else environ
    executable = _find_executable(environ)
    root = executable.parent.parent
    if (root / "python_backend_stubs").is_dir():
        return _wheel_installation(executable, root)
    return TritonInstallation(
        executable,
        root / "backends",
        version=read_text(root / "TRITON_VERSION").strip() or None,
        python_paths=(_OWN_PACKAGE.parent,),
        site_paths=_site_folders(),
        # Triton's stub takes its interpreter's packages from the `python3` it finds on PATH.
        program_path=Path(sys.executable).parent,
    )


def _find_executable(environ: Mapping[str, str]) -> Path:
    named = environ.get(EXECUTABLE_VARIABLE)
    if named:
        path = shutil.which(named, path=environ.get("PATH"))
        if path is None:
            raise TritonError(
                f"{EXECUTABLE_VARIABLE}={named} is not an executable file. "
                "Give the full path of tritonserver, or unset it to have one found."
            )
        return Path(path).resolve()
    on_path = shutil.which("tritonserver", path=environ.get("PATH"))
    candidates = [Path(on_path)] if on_path else []
    candidates += [_IMAGE_EXECUTABLE, *_wheel_executables()]
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return candidate.resolve()
    raise TritonError(
        "Triton Inference Server is not installed here. Run inside an NVIDIA Triton image, "
        f"set {EXECUTABLE_VARIABLE}, or `pip install --no-deps {WHEEL}` (CPU only)."
    )


def _wheel_executables() -> list[Path]:
    """Return the path of the wheel's server; the package is located, never imported."""
    spec = importlib.util.find_spec("pytriton")
    folders = spec.submodule_search_locations if spec is not None else None
    return [Path(folder) / "tritonserver/bin/tritonserver" for folder in folders or ()]


def _wheel_installation(executable: Path, root: Path) -> TritonInstallation:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / version / _STUB
    if not stub.is_file():
        known = ", ".join(sorted(p.name for p in stub.parent.parent.iterdir()))
        raise TritonError(
            f"nvidia-pytriton has no Python backend for Python {version}, only for {known}. "
            "Use one of those versions."
        )
    return TritonInstallation(
        executable,
        root / "backends",
        stub=stub,
        library_paths=(root.parent.parent / "nvidia_pytriton.libs", _libpython_folder(version)),
        python_paths=(_OWN_PACKAGE.parent,),
        site_paths=_site_folders(),
        # The stub's interpreter runs isolated: it ignores PYTHONPATH and PYTHONHOME, and takes its
        # library and packages, a virtual environment's too, from the `python3` it finds on PATH.
        program_path=Path(sys.executable).parent,
    )


def _libpython_folder(version: str) -> Path:
    """Return the folder of the shared library that the stub is linked against.

    Raises:
        TritonError: neither this Python nor the system has it.
    """
    name = f"libpython{version}.so.1.0"
    base, machine = Path(sys.base_prefix), platform.machine()
    folders = [
        *filter(None, (sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBPL"))),
        *(base / "lib", base / f"lib/{machine}-linux-gnu"),
        *(Path(f"/usr/lib/{machine}-linux-gnu"), Path("/usr/lib64"), Path("/usr/local/lib")),
    ]
    for folder in map(Path, folders):
        if (folder / name).exists():
            return folder
    raise TritonError(
        f"Triton's Python backend needs {name}, and {sys.base_prefix} has none. Install it "
        f"(Debian, Ubuntu: `apt install libpython{version}`) or use a Python built with "
        f"--enable-shared (`uv python install {version}`)."
    )


def _site_folders() -> tuple[Path, ...]:
    """Return the package folders that this process imports from, virtual environment included."""
    return tuple(Path(p) for p in sys.path if Path(p).name in ("site-packages", "dist-packages"))


BACKENDS_VARIABLE = "TRITON_BACKEND_DIRECTORY"


def assemble_backends(
    installation: TritonInstallation, folder: Path, environ: Mapping[str, str] | None = None
) -> Path:
    """Fill one folder with links to every backend, since Triton accepts a single folder.

    The folder is created, or emptied of earlier links, and returned. A backend of
    ``TRITON_BACKEND_DIRECTORY`` wins over one of ours with the same name, and ours over the
    server's.

    Raises:
        TritonError: ``TRITON_BACKEND_DIRECTORY`` is not a folder.
    """
    environ = os.environ if environ is None else environ
    backends = {**_backends_of(installation.backends), **own_backends()}
    if override := environ.get(BACKENDS_VARIABLE):
        if not Path(override).is_dir():
            raise TritonError(
                f"{BACKENDS_VARIABLE}={override} is not a folder. "
                "Name a folder that holds Triton backends, or unset it."
            )
        backends |= _backends_of(Path(override).resolve())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, source in backends.items():
        if name == "python" and source.parent == installation.backends and installation.stub:
            _link_python_backend(source, installation.stub, folder / name)
        else:
            (folder / name).symlink_to(source)
    return folder


def _backends_of(folder: Path) -> dict[str, Path]:
    """Return the backends in a folder, by name; none without the folder."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else ()
    return {
        path.name: path for path in paths if path.is_dir() and not path.name.startswith(("_", "."))
    }


def _link_python_backend(backend: Path, stub: Path, folder: Path) -> None:
    folder.mkdir()
    for file in (*backend.iterdir(), stub):
        if file.is_file():
            # Copied: Triton refuses a library whose real path lies outside the backend's folder.
            shutil.copy2(file, folder / file.name)
