"""Six of NVIDIA's images: the build of a Truss's image, the packages that it changes, one answer.

Neither Docker nor the images are here: `tests/support/nvidia_images.py` lays them out. Triton is
that of nvidia-pytriton, with the fake `tensorrtllm` backend. docs/deploy.md has the results.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.fakes.triton import FAKE_ENGINE, write_engine
from tests.support.containers import (
    Container,
    documented_request,
    require_namespaces,
    write_context,
)
from tests.support.nvidia_images import IMAGES, LaidOut
from tests.support.paths import FAKES, ROOT
from tests.support.smollm2 import write_smollm2_tokenizer
from tests.support.waiting import settles

from trtllm_builder.converters import FOLDER, INSTALL_COMMAND

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]
COMMAND = Path(sys.executable).with_name("trtllm-truss")
PORTS = {"truss": 8080, "own": 8081}
NAMES = {"truss": "Truss's", "own": "own"}
QUESTION = "What is machine learning?"


@pytest.fixture(scope="module", params=IMAGES)
def laid_out(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LaidOut]:
    require_namespaces()
    folder = tmp_path_factory.mktemp("image") / "image"
    yield LaidOut(IMAGES[request.param], folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def broken(laid_out: LaidOut) -> dict[str, str]:
    """Packages that cannot be imported as laid out."""
    return laid_out.broken_imports()


@pytest.fixture(params=PORTS)
def shape(request: pytest.FixtureRequest) -> str:
    """The server of `init --server`."""
    return str(request.param)


@pytest.fixture
def context(laid_out: LaidOut, shape: str, tmp_path: Path) -> Path:
    """The build context of a Truss for an engine of the image's TensorRT-LLM."""
    engine = write_engine(tmp_path / "engine", version=laid_out.image.tensorrt_llm)
    tokenizer = write_smollm2_tokenizer(tmp_path / "tokenizer")
    truss = tmp_path / "truss"
    command = [COMMAND, "init", engine, "--tokenizer", tokenizer, "--server", shape]
    subprocess.run([*command, "--output", truss], check=True, capture_output=True)
    file = truss / "config.yaml"
    config = yaml.safe_load(file.read_text())
    assert f"tritonserver:{laid_out.image.tag}-trtllm" in config["base_image"]["image"]
    if laid_out.image.converts:  # as in a Truss that builds
        config["build_commands"] = [INSTALL_COMMAND]
        file.write_text(yaml.safe_dump(config))
    return write_context(tmp_path / "context", truss)


@pytest.fixture
def layer(laid_out: LaidOut, tmp_path: Path) -> Iterator[LaidOut]:
    folder = tmp_path / "layer"
    yield laid_out.layer(folder, [tmp_path / "engine", tmp_path / "tokenizer", FAKES])
    shutil.rmtree(folder)


def test_a_truss_in_an_image(
    context: Path, layer: LaidOut, shape: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dockerfile = (context / "Dockerfile").read_text()
    layer.install_uv(dockerfile)
    rows = install(dockerfile, context, layer, shape)
    if not all(row.endswith("| none |") for row in rows):
        check_imports(layer, request.getfixturevalue("broken"))

    container = start(dockerfile, context, layer, tmp_path)
    try:
        assert settles(lambda: "ready after" in container.log or container.has_ended), container.log
        assert f"TensorRT-LLM {layer.image.tensorrt_llm} for {layer.python}" in container.log
        question = [word.replace("8080", str(PORTS[shape])) for word in documented_request()]
        assert container.run(*question).startswith(QUESTION * 2), container.log
        container.end()
        assert "Finished server process [1]" in container.log
    finally:
        container.process.kill()
        container.process.wait()
    page = (ROOT / "docs/deploy.md").read_text()
    assert [row for row in rows if row not in page] == []


def install(dockerfile: str, context: Path, layer: LaidOut, shape: str) -> list[str]:
    """Run the lines that install packages; return what each changed as a row of a table."""
    rows = []
    before = layer.versions()
    for line in re.findall(r"^RUN +(.*pip install.*)$", dockerfile, re.MULTILINE):
        layer.install(line, context)
        after = layer.versions()
        changes = [
            f"{name} {old} → {after.get(name, 'none')}"
            for name, old in sorted(before.items())
            if old != after.get(name)
        ]
        before = {name: version for name, version in after.items() if name in before}
        (file,) = re.findall(r"-r (\S+)", line)
        what = "conversion scripts' packages" if str(FOLDER) in line else f"`{file}`"
        tag, server = layer.image.tag, NAMES[shape]
        rows.append(f"| {tag} | {server} | {what} | {', '.join(changes) or 'none'} |")
    return rows


def check_imports(layer: LaidOut, broken: dict[str, str]) -> None:
    """Compare the packages that cannot be imported with those of the image."""
    assert "transformers" not in broken
    if layer.image.converts:
        assert {*layer.broken_imports()} - {*broken} == {"transformers"}
        assert layer.broken_imports(str(FOLDER)) == broken
    else:
        assert layer.broken_imports() == broken


def start(dockerfile: str, context: Path, layer: LaidOut, folder: Path) -> Container:
    """Start the command of the image."""
    command = re.findall(r"^(?:CMD|ENTRYPOINT) (\[.*\])$", dockerfile, re.MULTILINE)[-1]
    spec = importlib.util.find_spec("pytriton")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent.relative_to(sys.prefix)
    triton = {"TRITON_SERVER_EXECUTABLE": f"/venv/{package}/tritonserver/bin/tritonserver"}
    environment = {**layer.variables, **FAKE_ENGINE, **triton}
    return Container(folder, context, " ".join(json.loads(command)), environment, layer.folders)
