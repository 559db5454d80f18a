"""CUDA of this machine: the toolkit, the driver, and the mode that connects them.

NVIDIA's images hold the user-mode driver of their CUDA in ``/usr/local/cuda/compat/lib.real``. On
hosts with an older kernel driver the image's entrypoint puts it in front of the host's, after a
trial. Truss replaces that entrypoint, so the same decision is made here, without root: the folder
is prepended to ``LD_LIBRARY_PATH`` of the server alone. A user-mode driver older than the kernel's
must never be used.

Source: "CUDA Compatibility" in NVIDIA's data-center documentation.
"""

from __future__ import annotations

import enum
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.engines.versions import minimum_driver
from trtllm_truss.machine.gpus import VISIBLE_DEVICES
from trtllm_truss.machine.runtime import ROOT, read_text, under
from trtllm_truss.releases.versions import release
from trtllm_truss.settings.child_environment import child_environment

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
    """The driver is older, of the same major release of CUDA; newer features of it are missing."""
    UNSUPPORTED = "unsupported"
    """The driver is too old."""


@dataclass(frozen=True, slots=True)
class Cuda:
    """CUDA as the server will use it.

    Attributes:
        version: of the toolkit here, such as ``12.9.1``; None without one.
        is_of_image: True if the image names its version, so that what runs here uses it.
        driver_version: of the host's kernel driver; None without one.
        compat_driver_version: of the image's own user-mode driver; None without one.
        compat_folder: holds that driver's libraries; None without one.
        mode: the compatibility mode of the two.
    """

    version: str | None
    is_of_image: bool
    driver_version: str | None
    compat_driver_version: str | None
    compat_folder: Path | None
    mode: CompatibilityMode

    @property
    def driver_fits(self) -> bool | None:
        """True if the image's toolkit runs on the driver; None without either of them."""
        if self.driver_version is None or not self.is_of_image:
            return None
        return self.mode is not CompatibilityMode.UNSUPPORTED

    @property
    def library_paths(self) -> tuple[Path, ...]:
        """Folders that the server's ``LD_LIBRARY_PATH`` must begin with."""
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
        driver_version: of the host, from `find_gpus`.
        environ: of this process by default.
        root: stands for ``/``.
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
    """Initialize CUDA with the libraries of a folder, in a process of its own."""
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
