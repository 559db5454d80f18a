"""The wheel carries what `init` writes, and its Truss is complete without this repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.engines.llm_api.checkpoints import write_checkpoint
from tests.support.paths import ROOT
from tests.support.warm_python import run_warm

from trtllm_truss.scaffold.folder import PARTS

pytestmark = pytest.mark.server  # asks the package index for setuptools

SOURCES = ("packages", "pyproject.toml", "setup.py", "README.md", *PARTS)
TRUSS = Path(sys.executable).with_name("truss")


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
            if not {"__pycache__", "trtllm_truss.egg-info"} & set(file.parts):
                name = file.relative_to(ROOT)
                assert (written / name).read_bytes() == file.read_bytes(), name
    assert {file.name for file in written.iterdir()} == {
        *(*PARTS, "packages", "config.yaml", "README.md")
    }


def test_its_own_package_initializes_another(written: Path) -> None:
    model = written.parent / "model"
    run(written / "packages", "init", str(model), "--output", "another")
    assert (written / "another/config.yaml").is_file()
    shutil.rmtree(written / "another")


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
    assert (tmp_path / "context/packages/trtllm_truss/scaffold/folder.py").is_file()
