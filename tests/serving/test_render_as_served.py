"""`render` and `serve` write the same repository for every version of the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes.triton import write_engine
from tests.support.paths import ROOT
from tokenizers import Tokenizer, models

from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.images import IMAGES, PINNED_VERSION
from trtllm_truss.errors import TritonError
from trtllm_truss.serving.service import Service
from trtllm_truss.settings.loading import Environment, parse_settings
from trtllm_workbench.cli.main import main

KEEP_AND_END = """#!/bin/sh
for word; do case $word in --model-repository=*) cp -rL "${word#*=}" "$KEPT"; esac; done
exit 1
"""
NEWEST = {image.tensorrt_llm: image for image in IMAGES}


def files(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def served(config: dict[str, Any], folder: Path) -> dict[str, bytes]:
    """Return the repository that a start passes to a server which keeps it and exits."""
    executable = folder / "tritonserver"
    executable.write_text(KEEP_AND_END)
    executable.chmod(0o755)
    (folder / "backends/tensorrtllm").mkdir(parents=True)
    variables = {
        "TRITON_BACKEND_DIRECTORY": str(folder / "backends"),
        "TRITON_SERVER_EXECUTABLE": str(executable),
        "KEPT": str(folder / "kept"),
        "PATH": "/usr/bin:/bin",
    }
    settings = parse_settings(config)
    image = config["base_image"]["image"]
    service = Service(settings, Environment(None, variables), ROOT / "data", image)
    with pytest.raises(TritonError):
        service.start()
    return files(folder / "kept")


@pytest.mark.parametrize("version", NEWEST)
def test_render_writes_what_serve_uses(tmp_path: Path, version: str) -> None:
    engine = write_engine(tmp_path / "engine")
    Tokenizer(models.WordLevel({"<unk>": 0, "Hello": 1}, "<unk>")).save(f"{engine}/tokenizer.json")
    config = {
        "base_image": {"image": NEWEST[version].name},
        "model_metadata": {
            "engine_repository": str(engine),
            "serving": {"pass_environment": ["KEPT"]},
        },
    }
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    output = tmp_path / "rendered"
    arguments = ["--truss", str(ROOT), "--config", str(file), "--output", str(output)]
    assert main(["render", *arguments]) == 0
    rendered = files(output)
    assert rendered == served(config, tmp_path)
    is_new = b'"min_tokens"' in rendered["tensorrt_llm/config.pbtxt"]
    assert is_new == (NEWEST[version].tag >= "25.06")


def test_the_installed_version_wins_over_the_image() -> None:
    image = NEWEST["0.12.0"].name
    assert HostInfo(image=image, runtime_version="1.1.0").version_for("0.9.0") == "1.1.0"
    assert HostInfo(image=image).version_for("0.9.0") == "0.12.0"


def test_the_engine_decides_where_the_version_is_unknown() -> None:
    assert HostInfo(image="my/image:1").version_for("0.9.0") == "0.9.0"
    assert HostInfo().version_for() == PINNED_VERSION
