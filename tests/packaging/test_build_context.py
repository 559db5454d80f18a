"""The image's build context has all files of `load()` and no others."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from tests.support.paths import ROOT
from tests.support.warm_python import run_warm

from trtllm_builder.converters import INSTALL_COMMAND

pytestmark = pytest.mark.server

TRUSS = Path(sys.executable).with_name("truss")
LIMIT_BYTES = 4_000_000
CACHES = (".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__")
ENVIRONMENTS = (".venv", ".venv-clients", ".venv-dynamo", ".venv-fleet", ".venv-peers")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository whose caches and environments hold one file each.

    Truss reads all files of a folder, and other tests write into the caches meanwhile.
    """
    copy = tmp_path_factory.mktemp("repository") / "repository"
    light = (*CACHES, *ENVIRONMENTS)
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*light, "*.pyc"))
    for folder in (copy, copy / "packages/trtllm_truss", copy / "packages/trtllm_backends"):
        for name in light:
            (folder / name).mkdir()
            (folder / name / "file").touch()
    return copy


@pytest.fixture(scope="module", params=[".", "examples/smollm2-135m-cpu"])
def context(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return written(tmp_path_factory.mktemp("context") / "context", request.param, repository)


def written(context: Path, truss: str, folder: Path) -> Path:
    result = run_warm(
        *(str(TRUSS), "image", "build-context", "--non-interactive", str(context), truss),
        env={**os.environ, "TRUSS_NO_UPDATE_CHECK": "1", "BT_USE_NON_ROOT_USER": "1"},
        cwd=folder,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return context


def copied(context: Path) -> list[Path]:
    """Return the files that the Dockerfile copies into the image."""
    dockerfile = (context / "Dockerfile").read_text()
    sources = re.findall(r"^COPY (?:--chown=\S+ )?(\S+) ", dockerfile, re.MULTILINE)
    files: list[Path] = []
    for source in sources:
        path = context / source
        assert path.exists(), f"{source} is copied but not in the context"
        files += [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return files


def test_the_image_gets_what_load_needs(context: Path) -> None:
    names = {str(path.relative_to(context)) for path in copied(context)}
    packages = ROOT / "packages"
    files = [*packages.rglob("*.py"), *packages.rglob("*.toml")]
    ours = {str(p.relative_to(ROOT)) for p in files if "__pycache__" not in str(p)}
    assert ours <= names
    assert {
        "config.yaml",
        "requirements.txt",
        "model/model.py",
        "data/triton_model_repository/tensorrt_llm/config.pbtxt",
    } <= names


def test_the_image_gets_nothing_heavy(context: Path) -> None:
    files = copied(context)
    assert sum(path.stat().st_size for path in files) < LIMIT_BYTES
    for path in files:
        parts = path.relative_to(context).parts
        unwanted = {
            "tests",
            *CACHES,
            *ENVIRONMENTS,
            "docs",
            "benchmarks",
            "examples",
            "tools",
            "workbench",
        }
        assert not unwanted & set(parts), path
        assert not any(part.endswith((".egg-info", "_cache")) for part in parts), path


def test_build_commands_reach_the_shell_unchanged(context: Path) -> None:
    """tests/scaffold/test_wheels.py runs such a command."""
    commands = yaml.safe_load((context / "config.yaml").read_text()).get("build_commands", [])
    dockerfile = (context / "Dockerfile").read_text()
    for command in commands:
        assert re.search(rf"^RUN +{re.escape(command)}$", dockerfile, re.MULTILINE), dockerfile
    assert bool(commands) == ("--require-hashes" in dockerfile)


def test_build_commands_run_as_root_behind_the_requirements(
    repository: Path, tmp_path: Path
) -> None:
    """The conversion scripts' packages, in `/opt`, replace what the requirements brought."""
    truss = tmp_path / "truss"
    for name in ("model", "data"):
        shutil.copytree(repository / name, truss / name)
    shutil.copytree(repository / "packages", truss / "packages")
    shutil.copy(repository / "requirements.txt", truss)
    shutil.copy(repository / "examples/llama-3-8b-build/config.yaml", truss)
    lines = (written(tmp_path / "context", ".", truss) / "Dockerfile").read_text().splitlines()
    installs = [number for number, line in enumerate(lines) if INSTALL_COMMAND in line]
    requirements = [
        number for number, line in enumerate(lines) if re.match("RUN .*install .*-r .*requ", line)
    ]
    root, switch = (lines.index(f"USER {user}") for user in ("root", "60000"))
    assert len(requirements) >= 2  # Truss's and ours
    order = [root, *requirements, *installs, switch]
    assert order == sorted(order)
    assert len(installs) == 1


def test_the_runtime_is_pinned(context: Path) -> None:
    dockerfile = (context / "Dockerfile").read_text()
    first = re.search(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    assert first
    assert first[1] in (
        "nvcr.io/nvidia/tritonserver:25.10-trtllm-python-py3",
        "baseten/truss-server-base:3.12-v0.13.0",
    )


def test_the_container_runs_as_the_user_of_the_pages(context: Path) -> None:
    """docs/docker.md and examples/kubernetes rely on its number, its home and its folder."""
    dockerfile = (context / "Dockerfile").read_text()
    assert re.search(r"^ENV HOME=\$\{HOME:-/home/app\}$", dockerfile, re.MULTILINE)
    assert re.search(
        r"^RUN chown -R 60000:60000 .*/workspace *\nUSER 60000$", dockerfile, re.MULTILINE
    )
    assert re.search(r'^ENTRYPOINT \["[\w/]*python3", "/app/main.py"\]$', dockerfile, re.MULTILINE)
    assert re.search(r'^ENV INFERENCE_SERVER_PORT="8080"$', dockerfile, re.MULTILINE)
