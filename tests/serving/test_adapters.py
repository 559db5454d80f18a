"""Repositories of LoRA adapters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.engines.checkpoint.checkpoints import settings_for

from trtllm_truss.serving.adapters import open_adapters
from trtllm_truss.settings.loading import Environment


@pytest.mark.parametrize("name", ["sql", "sql@2"])
def test_a_folder_has_no_revision(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    settings = settings_for(lora_adapters={"sql": str(folder)})
    (adapter,) = open_adapters(settings, Environment(None, {}))
    assert adapter.fetch() == folder
