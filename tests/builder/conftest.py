"""Fixtures: a Hub on loopback, a cache per test, checkpoints and fakes of NVIDIA's tools."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.builder.llama_checkpoint import write_smollm2_checkpoint
from tests.support.hub_server import HubServer, hub_server
from tests.support.s3_server import S3Server, s3_server

from trtllm_truss.artifacts import retrying

TOOLS = Path(__file__).parent / "fake_tools"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`HF_HOME`, here and in child processes."""
    home = tmp_path / "hf-home"
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setattr(constants, "HF_HOME", str(home))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    return home


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_server() as hub:
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # this Hub has no Xet storage
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(retrying, "_FIRST_DELAY_S", 0.01)
        yield hub


@pytest.fixture
def s3(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server() as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        yield s3


@pytest.fixture(scope="session")
def smollm2_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct as Hugging Face would have it, out of its GGUF file."""
    folder = tmp_path_factory.mktemp("smollm2")
    write_smollm2_checkpoint(folder)
    return folder


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install fakes of `trtllm-build` and the scripts, which record their calls in the folder."""
    folder = tmp_path / "tools"
    programs = folder / "bin"
    programs.mkdir(parents=True)
    program = programs / "trtllm-build"
    program.write_text(f"#!{sys.executable}\n" + (TOOLS / "trtllm_build.py").read_text())
    program.chmod(0o755)
    for name in ("quantization/quantize.py", "models/core/llama/convert_checkpoint.py"):
        script = folder / "examples" / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text((TOOLS / "convert_checkpoint.py").read_text())
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TENSORRT_LLM_EXAMPLES", str(folder / "examples"))
    monkeypatch.setenv("TENSORRT_LLM_FAKE_NOTES", str(folder))
    return folder
