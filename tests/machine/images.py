"""NVIDIA's Triton images as folder trees, as far as this project looks at them.

The layout follows the build files of triton-inference-server/tensorrtllm_backend. Both eras have
the Python package in different places; see `trtllm_truss.machine.runtime`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

NVIDIA_FOLDERS = (
    *("scripts", "all_models", "client", "tools", "examples"),
    *("tensorrt_llm", "inflight_batcher_llm"),
)
"""Folders of NVIDIA's images in ``/app``; some images lack the last two."""


@dataclass(frozen=True)
class ImageTree:
    """A folder used in place of ``/`` of a container.

    Attributes:
        root: the folder.
        environ: the variables that the image sets.
        python: the executable that has TensorRT-LLM.
    """

    root: Path
    environ: dict[str, str]
    python: Path


def lay_out(
    root: Path,
    version: str | None,
    *,
    in_environment: bool,
    release: str = "26.07",
    driver: str | None = "590.44.01",
    cuda: str = "13.1.0.036",
    compat: str | None = "590.44.01",
) -> ImageTree:
    """Lay out an image.

    Args:
        root: created.
        version: TensorRT-LLM's; None for an image that has only the libraries.
        in_environment: True for the era with a virtual environment.
        release: ``NVIDIA_TRITON_SERVER_VERSION``.
        driver: of the host; None without one.
        cuda: the toolkit's version.
        compat: version of the image's own user-mode driver; None without one.
    """
    python_home = root / ("opt/venv-tritonserver" if in_environment else "usr")
    python = _program(python_home / "bin/python3.12")
    link = python.with_name("python3")
    link.symlink_to(python.name)
    if in_environment:
        system = _program(root / "usr/bin/python3.12")
        system.with_name("python3").symlink_to(system.name)
        python.unlink()
        python.symlink_to(system)
        _write(python_home / "pyvenv.cfg", f"home = {system.parent}\nversion = 3.12.3\n")
        packages = python_home / "lib/python3.12/site-packages"
    else:
        packages = root / "usr/local/lib/python3.12/dist-packages"
    backend = root / "opt/tritonserver/backends/tensorrtllm"
    if version is None:
        _write(backend / "libtensorrt_llm.so")
    else:
        _write(
            packages / f"tensorrt_llm-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.4\nName: tensorrt_llm\nVersion: {version}\n",
        )
        _write(packages / "tensorrt_llm/version.py", f'__version__ = "{version}"\n')
        _write(packages / "tensorrt_llm/__init__.py", "raise SystemExit('imported')\n")
        _write(packages / "tensorrt_llm/libs/libtensorrt_llm.so")
        inside = packages.relative_to(root)
        _write(root / "etc/ld.so.conf.d/tensorrt-llm.conf", f"/{inside}/tensorrt_llm/libs\n")
    _write(backend / "libtriton_tensorrtllm.so")
    _write(root / "opt/tritonserver/TRITON_VERSION", "2.61.0\n")
    _program(root / "opt/tritonserver/bin/tritonserver")
    for name in NVIDIA_FOLDERS:
        _write(root / "app" / name / "README.md")
    if compat is not None:
        real = root / "usr/local/cuda/compat/lib.real"
        _write(real / f"libcuda.so.{compat}")
        (real / "libcuda.so.1").symlink_to(f"libcuda.so.{compat}")
    if driver is not None:
        module = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Sat Aug 19 01:15:15\n"
        _write(root / "proc/driver/nvidia/version", module)
    programs = [link.parent, root / "opt/tritonserver/bin", root / "usr/bin"]
    environ = {
        "PATH": os.pathsep.join(map(str, programs)),
        "LD_LIBRARY_PATH": "/usr/local/tensorrt/lib:/usr/local/nvidia/lib64",
        "CUDA_VERSION": cuda,
        "NVIDIA_TRITON_SERVER_VERSION": release,
    }
    return ImageTree(root, environ, link)


def _write(file: Path, text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def _program(file: Path) -> Path:
    _write(file, "#!/bin/sh\n").chmod(0o755)
    return file
