"""Fixtures: a Hub on loopback, a cache per test, checkpoints and fakes of NVIDIA's tools."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.builder.llama_checkpoint import write_smollm2_checkpoint
from tests.support.repositories import cache, hub, s3, s3_session  # noqa: F401 - fixtures

TOOLS = Path(__file__).parent / "fake_tools"


@pytest.fixture(scope="session")
def smollm2_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct in Hugging Face's format, converted from its GGUF file."""
    folder = tmp_path_factory.mktemp("smollm2")
    write_smollm2_checkpoint(folder)
    return folder


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install fakes of `trtllm-build` and the scripts; they record their calls in the folder."""
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
