"""docs/llm-api.md agrees with the code, and its example with the checks."""

from __future__ import annotations

import yaml
from tests.engines.checkpoint.checkpoints import GB, listing, llama
from tests.support.inspection import inspect_config
from tests.support.paths import ROOT

from trtllm_truss.configuration import load_configuration
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.kinds import check_compatibility, with_settings
from trtllm_truss.serving.preparation import cache_capacity

PAGE = ROOT / "docs/llm-api.md"
EXAMPLE = ROOT / "examples/llama-3.1-8b-checkpoint/config.yaml"


def test_the_example_fits_its_gpu() -> None:
    content = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    settings, _ = load_configuration(content)
    host = HostInfo.from_config(content)
    engine = with_settings(
        inspect_config(llama(), listing(16_060_556_376)), settings, host.known_version
    )
    assert check_compatibility(settings, engine, host) == []
    capacity = cache_capacity(settings, engine, host)
    assert capacity is not None
    assert capacity.diagnostics == ()
    assert capacity.summary in PAGE.read_text(encoding="utf-8")
    assert capacity.tokens // 131_072 == 3  # as the example says
    assert capacity.free_bytes > 60 * GB
