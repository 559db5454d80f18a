"""The example for Baseten's weight delivery serves the mounted files."""

from __future__ import annotations

import yaml
from tests.support.paths import ROOT

from trtllm_truss.settings.loading import parse_settings

EXAMPLE = ROOT / "examples/baseten-weights"


def test_the_settings_name_the_mounts() -> None:
    content = yaml.safe_load((EXAMPLE / "config.yaml").read_text())
    mounted = {source["mount_location"] for source in content["weights"]}
    settings = parse_settings(content)
    assert {settings.engine_repository, settings.tokenizer_repository} == mounted


def test_its_links_lead_to_the_root() -> None:
    links = [path for path in EXAMPLE.rglob("*") if path.is_symlink()]
    assert {path.resolve().relative_to(ROOT).as_posix() for path in links} >= {
        "model/model.py",
        "requirements.txt",
        "data/triton_model_repository/tensorrt_llm/config.pbtxt",
    }
