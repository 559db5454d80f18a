"""The engines with complete logits, by release, build and settings."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engines.checkpoint.checkpoints import settings_for
from tests.engines.engine_configs import listing, new_config
from tests.support.inspection import inspect_config

from trtllm_truss.engines.compiled.engine import CompiledEngine, check_compiled
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.kinds import with_settings

SURE: dict[str, Any] = {"batch_scheduler_policy": "guaranteed_no_evict"}
BOTH = {"gather_context_logits": True, "gather_generation_logits": True}
NO_REUSE = {**SURE, "enable_kv_cache_reuse": False}
LOST = ["context_logits_incomplete", "generation_logits_incomplete"]


@pytest.mark.parametrize(
    ("version", "build", "model", "runtime", "offers", "codes"),
    [
        ("1.0.0", {}, {}, SURE, (False, False), []),
        ("1.0.0", BOTH, {}, SURE, (True, True), []),
        ("1.0.0", BOTH, {}, {**SURE, "enable_kv_cache_reuse": True}, (True, True), []),
        ("1.0.0", {"gather_context_logits": True}, {}, SURE, (True, False), []),
        ("1.0.0", {"gather_generation_logits": True}, {}, SURE, (False, True), []),
        ("1.0.0", BOTH, {}, {}, (False, False), LOST),
        ("1.0.0", BOTH, {}, {**SURE, "enable_trt_overlap": True}, (False, False), LOST),
        ("1.0.0", BOTH, {}, {"encoder_model_path": "/encoder"}, (False, False), LOST),
        ("1.0.0", {**BOTH, "speculative_decoding_mode": 4}, {}, SURE, (False, False), []),
        ("1.0.0", BOTH, {"logits_dtype": "float16"}, SURE, (False, False), []),
        ("0.21.0", BOTH, {}, SURE, (False, True), LOST[:1]),
        ("0.21.0", BOTH, {}, NO_REUSE, (True, True), []),
        ("0.18.2", BOTH, {}, NO_REUSE, (False, False), []),
    ],
)
def test_logits_need_a_build_a_release_and_settings(
    version: str,
    build: dict[str, Any],
    model: dict[str, Any],
    runtime: dict[str, Any],
    offers: tuple[bool, bool],
    codes: list[str],
) -> None:
    content = new_config()
    content["version"] = version
    content["build_config"] |= build
    content["pretrained_config"] |= model
    settings = settings_for(runtime=runtime)
    engine = with_settings(inspect_config(content, listing(content)), settings, version)
    assert isinstance(engine, CompiledEngine)
    assert (engine.reports_prompt_log_probs, engine.reports_top_log_probs) == offers
    size = content["pretrained_config"]["vocab_size"]
    assert engine.logits_vocabulary == (size if any(offers) else 0)
    told = check_compiled(engine, settings.runtime, HostInfo())
    assert [each.code for each in told if "logits" in each.code] == codes
