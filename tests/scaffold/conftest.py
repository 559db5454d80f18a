"""Fixtures: a Hub and S3 on loopback, engines of every kind, and the round trip of `init`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.model_module import truss_config
from tests.support.repositories import cache, hub, s3, s3_session  # noqa: F401 - fixtures

from trtllm_workbench.cli.main import main

TOKENIZER = {
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b'{"chat_template": "{{ messages }}"}',
}


class Written:
    """A Truss that `init` wrote and `check` accepted."""

    def __init__(self, folder: Path, printed: str, report: dict[str, Any]) -> None:
        self.folder = folder
        self.printed = printed
        self.report = report
        self.text = (folder / "config.yaml").read_text()
        self.config = yaml.safe_load(self.text)
        self.metadata = self.config["model_metadata"]
        self.readme = (folder / "README.md").read_text()
        self.requirements = (folder / "requirements.txt").read_text()

    @property
    def tag(self) -> str:
        """The month of the image."""
        return str(self.config["base_image"]["image"].partition(":")[2][:5])


Initialize = Callable[..., Written]


@pytest.fixture
def initialize(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Initialize:
    """Run `init` with arguments, then `check` and Truss's own validation on the folder."""

    def run(*arguments: str) -> Written:
        folder = tmp_path / "truss"
        assert main(["init", *arguments, "--output", str(folder)]) == 0
        shown = capsys.readouterr()
        status = main(["check", "--truss", str(folder), "--json"])
        report = json.loads(capsys.readouterr().out)
        assert status == 0, report
        known = {f"{each['severity']}: {each['sentence']}" for each in report["findings"]}
        told = [line for line in shown.err.splitlines() if line.startswith(("warning", "error"))]
        assert set(told) <= known, (told, known)
        truss_config().from_yaml(folder / "config.yaml")
        return Written(folder, shown.out + shown.err, report)

    return run


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `init` with arguments that fail; return the error. Nothing may be written."""

    def run(*arguments: str) -> str:
        folder = tmp_path / "refused"
        output = () if "--output" in arguments else ("--output", str(folder))
        assert main(["init", *arguments, *output]) in (1, 2)
        assert not folder.exists()
        assert list(tmp_path.glob(".*-*")) == []
        return capsys.readouterr().err

    return run


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for name, data in TOKENIZER.items():
        (folder / name).write_bytes(data)
    return str(folder)
