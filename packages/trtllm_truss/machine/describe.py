"""Describe this machine in one object: GPUs, CUDA, limits and warnings.

Sources for the GPUs: NVML, ``nvidia-smi`` if NVML's Python module is missing, and ``/proc`` for the
driver alone.

NVIDIA's images contain the user-mode driver of their CUDA in ``/usr/local/cuda/compat/lib.real``.
On hosts with an older kernel driver the image's entrypoint puts it in front of the host's, after a
trial. Truss replaces that entrypoint, so this module makes the same decision, without root: it
prepends the folder to ``LD_LIBRARY_PATH`` of the server only. A user-mode driver older than the
kernel's must never be used. Source: "CUDA Compatibility" in NVIDIA's data-center documentation.

The limits are shared memory, rlimits, CPUs and memory of this machine's processes. NVIDIA's
entrypoint prints the same warnings.
"""

from __future__ import annotations

import csv
import enum
import importlib
import importlib.metadata
import json
import logging
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_truss.engines.diagnostics import Diagnostic, error, warning
from trtllm_truss.engines.gpus import Gpu
from trtllm_truss.engines.images import minimum_driver
from trtllm_truss.errors import TritonError
from trtllm_truss.machine.runtime import (
    ROOT,
    TensorRtLlm,
    TritonInstallation,
    find_installation,
    find_mpirun,
    find_runtime,
    read_text,
    under,
)
from trtllm_truss.processes.child import child_environment
from trtllm_truss.releases import release

logger = logging.getLogger(__name__)

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_PROC_VERSION = "/proc/driver/nvidia/version"
_PROC_DRIVER = re.compile(r"^NVRM version:.*?Kernel Module.*?\s(\d+(?:\.\d+)+)\s", re.M)
_QUERY = "uuid,name,memory.total,memory.free,compute_cap,driver_version"
_SMI_LIMIT_S = 30
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that a child process may use.

    Attributes:
        devices: in NVML's order, or that of ``CUDA_VISIBLE_DEVICES``.
        driver_version: version of the kernel module, such as ``575.57.08``; None without a driver.
        found_by: ``NVML``, ``nvidia-smi``, ``/proc/driver/nvidia/version`` or ``nothing``.
    """

    devices: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    found_by: str = "nothing"


def find_gpus(environ: Mapping[str, str] | None = None, root: Path = ROOT) -> Gpus:
    """List GPUs and driver without creating a CUDA context, which would use GPU memory.

    Args:
        environ: environment of the child process; ``CUDA_VISIBLE_DEVICES``, which NVML ignores,
            selects GPUs by number or UUID.
        root: used in place of ``/``.
    """
    environ = os.environ if environ is None else environ
    visible = environ.get(VISIBLE_DEVICES)
    found = _by_nvml() if root == ROOT else None
    source = "NVML"
    if found is None:
        found, source = _by_nvidia_smi(environ), "nvidia-smi"
    if found is not None:
        driver = found[0][1].driver_version if found else _proc_driver(root)
        return Gpus(_selected(found, visible), driver, source)
    driver = _proc_driver(root)
    return Gpus((), driver, _PROC_VERSION) if driver else Gpus()


def _by_nvml() -> list[tuple[str, Gpu]] | None:
    """Return UUIDs and GPUs; None without NVML's Python module, a driver or a GPU."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        logger.debug("cannot use NVML: %s", error)
        return None
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return [(_text(nvml.nvmlDeviceGetUUID(h)), _gpu(nvml, h, driver)) for h in handles]
    except nvml.NVMLError as error:
        logger.warning("cannot query GPUs: %s", error)
        return None
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any, driver: str) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        compute_capability=(int(major), int(minor)),
        driver_version=driver,
    )


def _by_nvidia_smi(environ: Mapping[str, str]) -> list[tuple[str, Gpu]] | None:
    """Return UUIDs and GPUs; None if the program is missing or fails."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH", ""))
    if program is None:
        return None
    command = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        ended = subprocess.run(
            command,
            env=child_environment(environ),
            capture_output=True,
            text=True,
            timeout=_SMI_LIMIT_S,
            check=True,
        )
        rows = csv.reader(ended.stdout.splitlines(), skipinitialspace=True)
        return [_row(row) for row in rows if row]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        logger.warning("cannot query GPUs: %s", error)
        return None


def _row(values: Sequence[str]) -> tuple[str, Gpu]:
    uuid, name, total, free, capability, driver = values
    major, _, minor = capability.partition(".")
    memory = (int(total) * _MIB, int(free) * _MIB)
    return uuid, Gpu(name, *memory, (int(major), int(minor)), driver)


def _proc_driver(root: Path) -> str | None:
    found = _PROC_DRIVER.search(read_text(under(root, _PROC_VERSION)))
    return found[1] if found else None


def _selected(found: Sequence[tuple[str, Gpu]], visible: str | None) -> tuple[Gpu, ...]:
    if visible is None:
        return tuple(gpu for _, gpu in found)
    chosen: list[Gpu] = []
    for wanted in (item.strip() for item in visible.split(",")):
        gpu = next(
            (
                gpu
                for number, (uuid, gpu) in enumerate(found)
                if wanted == str(number) or (wanted.startswith("GPU-") and uuid.startswith(wanted))
            ),
            None,
        )
        if gpu is None:  # CUDA also ignores everything after the first wrong entry
            break
        chosen.append(gpu)
    return tuple(chosen)


def _text(value: str | bytes) -> str:
    # Older releases of the module return bytes.
    return value.decode() if isinstance(value, bytes) else value


_HOME = "/usr/local/cuda"
_DRIVER_LIBRARY = "libcuda.so"
_VERSION_VARIABLE = "CUDA_VERSION"
_COMPAT_VARIABLE = "_CUDA_COMPAT_PATH"
_TRIAL_LIMIT_S = 60
_TRIAL = "import ctypes, sys; sys.exit(min(ctypes.CDLL('libcuda.so.1').cuInit(0), 99))"
_MODULE_VERSION = re.compile(r"libcuda\.so\.(\d+(?:\.\d+)+)$")


class CompatibilityMode(enum.Enum):
    """Modes in which the image's CUDA runs on the host's driver."""

    NO_CUDA = "no CUDA here"
    NO_DRIVER = "no NVIDIA driver"
    NATIVE = "native"
    """The driver is at least as new as the image's CUDA."""
    FORWARD = "forward compatibility"
    """The image's own user-mode driver runs on the host's older kernel driver."""
    MINOR = "minor-version compatibility"
    """The driver is older, but of the same major CUDA release; newer features are missing."""
    UNSUPPORTED = "unsupported"
    """The driver is too old."""


@dataclass(frozen=True, slots=True)
class Cuda:
    """CUDA as the server will use it.

    Attributes:
        version: version of the toolkit here, such as ``12.9.1``; None without one.
        is_of_image: True if the image names its version, which is then in use here.
        driver_version: version of the host's kernel driver; None without one.
        compat_driver_version: version of the image's own user-mode driver; None without one.
        compat_folder: contains that driver's libraries; None without one.
        mode: compatibility mode of the two.
    """

    version: str | None
    is_of_image: bool
    driver_version: str | None
    compat_driver_version: str | None
    compat_folder: Path | None
    mode: CompatibilityMode

    @property
    def driver_fits(self) -> bool | None:
        """True if the driver supports the image's toolkit; None if either is missing."""
        if self.driver_version is None or not self.is_of_image:
            return None
        return self.mode is not CompatibilityMode.UNSUPPORTED

    @property
    def library_paths(self) -> tuple[Path, ...]:
        """Folders to prepend to the server's ``LD_LIBRARY_PATH``."""
        if self.mode is CompatibilityMode.FORWARD and self.compat_folder is not None:
            return (self.compat_folder,)
        return ()


def find_cuda(
    driver_version: str | None,
    environ: Mapping[str, str] | None = None,
    root: Path = ROOT,
) -> Cuda:
    """Find CUDA and decide how it runs on a driver.

    Args:
        driver_version: version on the host, from `find_gpus`.
        environ: by default, that of this process.
        root: used in place of ``/``.
    """
    environ = os.environ if environ is None else environ
    version = _toolkit_version(environ, root)
    folder, compat = _compat_driver(environ, root)
    if driver_version is None:
        mode = CompatibilityMode.NO_DRIVER
    elif version is None and compat is None:
        mode = CompatibilityMode.NO_CUDA
    else:
        is_older = compat is not None and release(driver_version) < release(compat)
        if is_older and folder is not None and _initializes(folder, environ):
            mode = CompatibilityMode.FORWARD
        else:
            mode = _mode_without_compat(version, driver_version, is_older=is_older)
    is_of_image = bool(environ.get(_VERSION_VARIABLE))
    return Cuda(version, is_of_image, driver_version, compat, folder, mode)


def _mode_without_compat(version: str | None, driver: str, *, is_older: bool) -> CompatibilityMode:
    minimum = None if version is None else minimum_driver(version)
    if minimum is not None and release(driver) < minimum:
        return CompatibilityMode.UNSUPPORTED
    return CompatibilityMode.MINOR if is_older else CompatibilityMode.NATIVE


def _toolkit_version(environ: Mapping[str, str], root: Path) -> str | None:
    if named := environ.get(_VERSION_VARIABLE):
        return named
    try:
        found = json.loads(read_text(under(root, f"{_HOME}/version.json")))["cuda"]["version"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def _compat_driver(environ: Mapping[str, str], root: Path) -> tuple[Path | None, str | None]:
    """Return the folder and version of the image's own user-mode driver."""
    home = environ.get(_COMPAT_VARIABLE) or f"{_HOME}/compat"
    for folder in (under(root, home) / "lib.real", under(root, home)):
        for file in sorted(folder.glob(f"{_DRIVER_LIBRARY}.*")):
            if found := _MODULE_VERSION.search(file.resolve().name):
                return folder, found[1]
    return None, None


def _initializes(folder: Path, environ: Mapping[str, str]) -> bool:
    """Initialize CUDA with a folder's libraries, in a separate process."""
    environment = child_environment(environ)
    environment.pop(VISIBLE_DEVICES, None)  # hidden GPUs would look like a failure
    paths = [str(folder), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRIAL],
            env={**environment, "LD_LIBRARY_PATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRIAL_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return ended.returncode == 0


_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Linux keeps POSIX shared memory
_GROUPS = "/sys/fs/cgroup"
_UNLIMITED_BYTES = 1 << 60
"""For no limit, control groups of version 1 contain a number at least this large."""


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Limits of a child process; None means unlimited or, for memory, unknown.

    Attributes:
        shm_total_bytes: size of ``/dev/shm``; None if it does not exist.
        shm_free_bytes: free space in it.
        memlock_bytes: memory that a process may lock (``ulimit -l``).
        stack_bytes: stack of a process's main thread (``ulimit -s``).
        open_files: hard limit of open descriptors.
        cpus: CPUs that this process may run on.
        memory_bytes: memory of the container, or of the machine.
        memory_free_bytes: memory that new processes can use.
    """

    shm_total_bytes: int | None
    shm_free_bytes: int | None
    memlock_bytes: int | None
    stack_bytes: int | None
    open_files: int | None
    cpus: int
    memory_bytes: int | None
    memory_free_bytes: int | None


def read_limits(root: Path = ROOT) -> MachineLimits:
    """Read the limits of this process, which its children inherit."""
    shm_total, shm_free = _shared_memory(root)
    memory, free = _memory(root)
    return MachineLimits(
        shm_total_bytes=shm_total,
        shm_free_bytes=shm_free,
        memlock_bytes=_soft(resource.RLIMIT_MEMLOCK),
        stack_bytes=_soft(resource.RLIMIT_STACK),
        open_files=_finite(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        cpus=usable_cpus(),
        memory_bytes=memory,
        memory_free_bytes=free,
    )


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0))


def _soft(limit: int) -> int | None:
    return _finite(resource.getrlimit(limit)[0])


def _finite(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _shared_memory(root: Path) -> tuple[int | None, int | None]:
    try:
        status = os.statvfs(under(root, _SHARED_MEMORY))
    except OSError:
        return None, None
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def _memory(root: Path) -> tuple[int | None, int | None]:
    """Return total and free bytes: the lower of the machine's and the container's."""
    lines = read_text(under(root, "/proc/meminfo")).splitlines()
    machine = {
        name: int(rest.split()[0]) << 10 for name, _, rest in (x.partition(":") for x in lines)
    }
    total, free = machine.get("MemTotal"), machine.get("MemAvailable")
    limit = _group_number(root, "memory.max", "memory/memory.limit_in_bytes")
    used = _group_number(root, "memory.current", "memory/memory.usage_in_bytes")
    if limit is None or (total is not None and limit >= total):
        return total, free
    left = None if used is None else max(0, limit - used + _reclaimable(root))
    return limit, min((size for size in (free, left) if size is not None), default=None)


def _reclaimable(root: Path) -> int:
    """Return the bytes of cached files that the container can reclaim."""
    for name in ("memory.stat", "memory/memory.stat"):
        found = re.search(r"(?m)^inactive_file (\d+)$", read_text(under(root, f"{_GROUPS}/{name}")))
        if found:
            return int(found[1])
    return 0


def _group_number(root: Path, second: str, first: str) -> int | None:
    """Return a number from the container's control group, version 2 or 1."""
    for name in (second, first):
        text = read_text(under(root, f"{_GROUPS}/{name}")).strip()
        if text.isdigit():
            return int(text) if int(text) < _UNLIMITED_BYTES else None
    return None


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that runs an engine.

    Attributes:
        python: the Python of this process.
        triton: the server; None if not found.
        triton_problem: why it was not found; empty if it was.
        mpirun: the program that starts several ranks; None if not found.
        gpus: GPUs and driver.
        cuda: toolkit and compatibility mode.
        limits: limits of child processes.
    """

    python: Path
    runtime: TensorRtLlm
    triton: TritonInstallation | None
    triton_problem: str
    mpirun: Path | None
    gpus: Gpus
    cuda: Cuda
    limits: MachineLimits


def inspect_machine(
    environ: Mapping[str, str] | None = None, image: str | None = None, root: Path = ROOT
) -> Machine:
    """Describe this machine.

    Args:
        environ: environment of the server to start; by default, that of this process.
        image: `base_image.image` in config.yaml, the last resort for the runtime's version.
        root: used in place of ``/``.
    """
    environ = os.environ if environ is None else environ
    problem = ""
    try:
        triton = find_installation(environ)
    except TritonError as error:
        triton, problem = None, error.message
    try:
        mpirun = find_mpirun(environ)
    except TritonError:
        mpirun = None
    gpus = find_gpus(environ, root)
    return Machine(
        python=Path(sys.executable),
        runtime=find_runtime(environ, image, root),
        triton=triton,
        triton_problem=problem,
        mpirun=mpirun,
        gpus=gpus,
        cuda=find_cuda(gpus.driver_version, environ, root),
        limits=read_limits(root),
    )


def container_sentences(python: Path, runtime: TensorRtLlm, cuda: Cuda) -> list[str]:
    """Describe Python, driver, CUDA and compatibility mode, one sentence each."""
    return [
        f"Python: {python} ({platform.python_version()}); {_runtime_sentence(runtime)}",
        f"NVIDIA driver: {cuda.driver_version or 'none on this machine'}",
        f"CUDA: {cuda.version or 'none'}",
        f"CUDA compatibility: {_mode_sentence(cuda)}",
    ]


def _runtime_sentence(runtime: TensorRtLlm) -> str:
    if runtime.version is None:
        where = f", only {runtime.library}" if runtime.library else ""
        return f"no TensorRT-LLM found{where}"
    if not runtime.installed:
        return f"no TensorRT-LLM found; {runtime.version} by {runtime.found_by}"
    where = f"for {runtime.python}" if runtime.python else f"by {runtime.found_by}, for no Python"
    return f"TensorRT-LLM {runtime.version} {where}"


def _mode_sentence(cuda: Cuda) -> str:
    own = f"{cuda.compat_folder}, driver {cuda.compat_driver_version}"
    if cuda.mode is CompatibilityMode.FORWARD:
        return f"{cuda.mode.value} ({own})"
    if cuda.mode is CompatibilityMode.MINOR:
        return f"{cuda.mode.value} (the image's driver in {own}, does not run here)"
    return str(cuda.mode.value)


JINJA = "jinja2"
JINJA_RELEASES = ((3, 1, 6), (3, 2))
"""The first release whose sandbox has no known escape (CVE-2025-27516), and the first untested one.

`text.sandbox` relies on the code that 3.1 generates.
"""


def check_jinja(version: str | None = None) -> Iterator[Diagnostic]:
    """Yield an error if chat templates would run with an unsafe release of Jinja.

    Args:
        version: version of Jinja; by default, the installed one.
    """
    version = version or importlib.metadata.version(JINJA)
    oldest, unknown = JINJA_RELEASES
    if not oldest <= tuple(map(int, re.findall(r"\d+", version))) < unknown:
        wanted = f"jinja2>={'.'.join(map(str, oldest))},<{'.'.join(map(str, unknown))}"
        yield error(
            "unsafe_jinja",
            f"Jinja2 {version} is installed, whose sandbox for chat templates is unsafe or "
            f"unknown; add {wanted!r} to requirements.txt, or run pip install {wanted!r}.",
        )


_SHM_BYTES = 1 << 30
"""From NVIDIA's launch instructions; Docker's default is 64 MiB."""


def check_machine(cuda: Cuda, limits: MachineLimits, ranks: int) -> Iterator[Diagnostic]:
    """Yield warnings for a missing driver and for too little shared memory.

    Args:
        ranks: number of ranks, one GPU each; 0 for a CPU engine.
    """
    if ranks and cuda.version is not None and cuda.mode is CompatibilityMode.NO_DRIVER:
        yield warning(
            "no_driver",
            f"CUDA {cuda.version} is here, but no NVIDIA driver is visible; start the container "
            "with GPUs (Docker: --gpus all).",
        )
    size = limits.shm_total_bytes
    if ranks > 1 and size is not None and size < _SHM_BYTES:
        yield warning(
            "shared_memory_small",
            f"the container has {size >> 20} MiB of shared memory, through which the engine's "
            f"{ranks} ranks exchange data; "
            "give the container 1 GiB or more (Docker: --shm-size=1g).",
        )
