"""`join` prepares the same files for a member as the leader for its own workers."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.engines.checkpoint.checkpoints import llama, write_checkpoint
from tests.support.lora import adapter_config, write_adapter
from tests.support.paths import ROOT
from tokenizers import Tokenizer, models

from trtllm_truss.releases import MODEL_NAME
from trtllm_truss.serving import group
from trtllm_truss.settings.loading import GROUP_KEY_SECRET
from trtllm_truss.triton.model_repository import CONFIG_FILE, read_config
from trtllm_workbench.cli.main import main

LAUNCHER = "trtllm-llmapi-launch"


@pytest.fixture
def identities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Make this host the second of two; return what it says of itself to the leader."""
    said: list[dict[str, Any]] = []

    class Member:
        def __init__(self, *of: Any) -> None:
            said.append(of[3])

        def serve(self) -> None:
            pass

    monkeypatch.setattr(group, "Member", Member)
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.setattr(group, "temporary_folder", lambda: nullcontext(run))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in (LAUNCHER, "tritonserver"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    (tmp_path / "backends").mkdir()
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setenv(f"TRUSS_SECRET_{GROUP_KEY_SECRET}", "k" * 64)
    monkeypatch.setenv("LWS_WORKER_INDEX", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    return said


def test_a_member_has_the_adapters_and_the_leaders_settings(
    identities: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = write_checkpoint(tmp_path / "model", llama(), shards=1)
    Tokenizer(models.WordLevel({"<unk>": 0}, "<unk>")).save(str(model / "tokenizer.json"))
    adapter = write_adapter(tmp_path / "sql", adapter_config(auto_map={"a": "b"}))
    metadata = {
        "engine_repository": str(model),
        "pipeline_parallelism": 2,
        "nodes": ["127.0.0.1", "127.0.0.2"],
    }
    image = {"image": "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"}
    for name, folder in {"relative": "./sql", "absolute": str(adapter)}.items():
        config = {
            "base_image": image,
            "model_metadata": {**metadata, "lora_adapters": {"sql": folder}},
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
        monkeypatch.chdir(tmp_path)
        command = ["join", "--truss", str(ROOT), "--config", f"{name}.yaml"]
        assert main(command) == 0
        assert " Python: " in capsys.readouterr().err
        file = tmp_path / "run/repository" / MODEL_NAME / CONFIG_FILE
        adapters = json.loads(read_config(file).parameters["lora_adapters"].string_value)
        (tmp_path / "run/repository").rename(tmp_path / f"run/{name}")
    path = Path(adapters["1"]["path"])
    assert path.is_relative_to(tmp_path / "home")
    assert "auto_map" not in (path / "adapter_config.json").read_text()
    of_relative, of_absolute = identities
    assert of_relative == of_absolute
    assert of_absolute["folders"] == {"the checkpoint": str(model), "the adapter sql": str(adapter)}
