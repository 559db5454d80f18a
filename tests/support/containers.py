"""Containers without Docker: namespaces with the folders of an image."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.paths import PROGRAMS, ROOT
from tests.support.waiting import PATIENCE_S

from trtllm_workbench.scaffold.docker_server import SLIM

USER = 60000
_TRUSS = Path(sys.executable).with_name("truss")
_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--net", "--kill-child")
_BUILD_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders of this machine that a container shows.

    Attributes:
        base: installation of Python.
        layers: of an image, the upper one first; without them the Python is this environment's.
        shown: folders at their own paths.
    """

    base: Path = Path(sys.base_prefix)
    layers: Sequence[Path] = ()
    shown: Sequence[Path] = ()

    @property
    def variables(self) -> dict[str, str]:
        """The variables of container.sh."""
        return {
            "BASE": str(self.base),
            "VENV": sys.prefix,
            "SHOWN": ":".join(map(str, self.shown)),
            "LAYERS": ":".join(map(str, self.layers)),
            "BUILD": "",
        }


class Container:
    """A server in namespaces of its own.

    Attributes:
        log: everything that it prints.
    """

    def __init__(
        self,
        folder: Path,
        context: Path,
        command: str,
        environment: Mapping[str, str],
        folders: Folders | None = None,
    ) -> None:
        root = folder / "root"
        root.mkdir()
        self._output = folder / "log"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*_NAMESPACES, *_arguments(root, context, command, environment)],
                env={**os.environ, **(folders or Folders()).variables},
                stdout=output,
                stderr=output,
            )

    @property
    def log(self) -> str:
        return self._output.read_text()

    @property
    def pid(self) -> int:
        """The server's process id outside."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        (pid,) = children.read_text().split()
        return int(pid)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def run(self, *command: str) -> str:
        inside = ["nsenter", "--net", "--target", str(self.pid), *command]
        return subprocess.run(inside, capture_output=True, text=True, timeout=PATIENCE_S).stdout

    def end(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        self.process.wait(PATIENCE_S)


def build(
    folder: Path,
    context: Path,
    command: str,
    environment: Mapping[str, str],
    folders: Folders,
) -> str:
    """Run a command as a line `RUN` of a Dockerfile; return what it prints.

    Raises:
        AssertionError: it failed.
    """
    root = folder / "root"
    root.mkdir(exist_ok=True)
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "TMPDIR" and not name.startswith("PYTHON")
    }
    ended = subprocess.run(
        ["unshare", "--mount", *_arguments(root, context, command, environment)],
        env={**kept, **folders.variables, "BUILD": "1"},
        capture_output=True,
        text=True,
        timeout=_BUILD_LIMIT_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _arguments(
    root: Path, context: Path, command: str, environment: Mapping[str, str]
) -> list[str | Path]:
    variables = [f"{name}={value}" for name, value in environment.items()]
    return ["bash", PROGRAMS / "container.sh", root, context, command, *variables]


def require_namespaces() -> None:
    """Skip the test where namespaces cannot be created."""
    trial = [*_NAMESPACES, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if os.geteuid() != 0 or subprocess.run(trial, capture_output=True).returncode:
        pytest.skip("needs the right to create namespaces")


def write_context(folder: Path, truss: Path) -> Path:
    """Write a Truss's build context, as its `docker build` gets it; return `folder`."""
    environment = {"TRUSS_NO_UPDATE_CHECK": "1", "BT_USE_NON_ROOT_USER": "1", SLIM: "true"}
    subprocess.run(
        [_TRUSS, "image", "build-context", "--non-interactive", folder, truss],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
    )
    return folder


def documented_request() -> list[str]:
    """Return the last of the five commands of docs/docker.md."""
    page = (ROOT / "docs/docker.md").read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^\$ (curl --retry .*)$", page, re.MULTILINE)
    return shlex.split(command)
