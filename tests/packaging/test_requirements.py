"""requirements.txt must not change packages that TensorRT-LLM pins in the image."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import ROOT

UV = Path(sys.executable).with_name("uv")
SPEC = importlib.util.find_spec("truss")
assert SPEC is not None
assert SPEC.origin is not None
SERVER = Path(SPEC.origin).parent / "templates/server"

# From requirements.txt of TensorRT-LLM's supported releases. 1.0 is the pinned image's; 1.1 and
# 1.2 follow it.
TENSORRT_LLM_PINS = {
    "1.0": ["numpy<2", "pydantic>=2.9.1", "transformers==4.53.1"],
    "1.1": ["numpy<2", "pydantic>=2.9.1", "transformers==4.56.0"],
    "1.2": ["numpy<2", "pydantic>=2.9.1", "transformers==4.57.1"],
}
*_, NEWEST = TENSORRT_LLM_PINS
NEVER = {"torch", "torchvision", "tensorrt", "tensorrt-llm", "nvidia-modelopt", "triton"}


def resolve(*files: Path) -> dict[str, str]:
    """Return the versions that pip would install for Python 3.12 on Linux."""
    command = [UV, "pip", "compile", "--python-version", "3.12", "--no-header", "--no-annotate"]
    command += ["--python-platform", "x86_64-manylinux_2_28", "--quiet", *files]
    command += ["--constraint", SERVER / "constraints.txt"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    return dict(re.findall(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==(\S+)", result.stdout, re.MULTILINE))


@pytest.mark.server
@pytest.mark.parametrize(
    "release",
    [
        pytest.param(each, marks=[pytest.mark.thorough] if each != NEWEST else [])
        for each in TENSORRT_LLM_PINS
    ],
)
def test_resolves_with_truss_and_tensorrt_llm(release: str, tmp_path: Path) -> None:
    pins = tmp_path / "tensorrt-llm.txt"
    pins.write_text("\n".join(TENSORRT_LLM_PINS[release]))
    versions = resolve(ROOT / "requirements.txt", SERVER / "requirements.txt", pins)
    assert versions["numpy"].startswith("1.")
    assert versions["transformers"] == TENSORRT_LLM_PINS[release][2].split("==")[1]


@pytest.mark.server
def test_asks_for_nothing_heavy() -> None:
    versions = resolve(ROOT / "requirements.txt")
    assert not NEVER & versions.keys()
    assert "transformers" not in versions


def test_protobuf_is_as_new_as_the_code_that_tritonclient_generated() -> None:
    """protobuf refuses code of a newer release; an image may hold any release."""
    requirements = (ROOT / "requirements.txt").read_text()
    (oldest,) = re.findall(r"^protobuf>=([\d.]+),<8$", requirements, re.MULTILINE)
    spec = importlib.util.find_spec("tritonclient")
    assert spec is not None
    assert spec.origin is not None
    for file in (Path(spec.origin).parent / "grpc").glob("*_pb2.py"):
        call = re.search(r"ValidateProtobufRuntimeVersion\((.*?)\)", file.read_text(), re.DOTALL)
        assert call is not None
        assert ".".join(re.findall(r"\b\d+\b", call[1])[:3]) == oldest, file


def test_the_example_installs_what_the_truss_needs() -> None:
    def names(file: Path) -> set[str]:
        lines = (line.split("#")[0].strip() for line in file.read_text().splitlines())
        return {line for line in lines if line}

    example = names(ROOT / "examples/smollm2-135m-cpu/requirements.txt")
    assert names(ROOT / "requirements.txt") <= example
