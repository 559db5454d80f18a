"""The effective scheduling of an engine: one fact for rendering, admission, limits and `check`."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engines.checkpoint.checkpoints import settings_for
from tests.engines.engine_configs import config_0_9, listing, new_config
from tests.support.inspection import inspect_config

from trtllm_truss.engines.compiled.engine import check_compiled
from trtllm_truss.engines.cpu.engine import CpuEngine
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.kinds import with_settings

MAX, SURE = "max_utilization", "guaranteed_no_evict"
ENCODER = {"encoder_model_path": "/encoder"}
CPU = CpuEngine(max_sequence_tokens=9, max_input_tokens=8, max_batch_size=1)


def engine(content: dict[str, Any] | None = None, *, paged: bool = True) -> Engine:
    content = content or new_config()
    if "build_config" in content:
        content["build_config"]["plugin_config"]["use_paged_context_fmha"] = paged
    return inspect_config(content, listing(content))


@pytest.mark.parametrize(
    ("described", "runtime", "policy", "chunked"),
    [
        (engine(), {}, MAX, True),
        (engine(paged=False), {}, SURE, False),
        (engine(), {"enable_chunked_context": False}, SURE, False),
        (engine(), {"batch_scheduler_policy": SURE}, SURE, True),
        (engine(paged=False), {"batch_scheduler_policy": MAX}, MAX, False),
        (engine(), ENCODER, SURE, False),
        (engine(), {**ENCODER, "batch_scheduler_policy": MAX}, SURE, False),
        (engine(config_0_9()), {}, SURE, False),
        (engine(config_0_9()), {"batch_scheduler_policy": MAX}, SURE, False),
        (CPU, {}, MAX, True),
        (CPU, {"batch_scheduler_policy": SURE, "enable_chunked_context": False}, SURE, False),
    ],
)
def test_chunks_decide_the_policy_unless_it_is_set(
    described: Engine, runtime: dict[str, Any], policy: str, chunked: bool
) -> None:
    settings = settings_for(runtime=runtime)
    scheduling = described.scheduling(settings.runtime)
    assert (scheduling.policy, scheduling.chunked_context) == (policy, chunked)
    is_meant = described is not CPU or "batch_scheduler_policy" in runtime
    assert described.overcommits(settings) is (is_meant and policy == MAX)


@pytest.mark.parametrize(
    ("paged", "runtime", "limit", "codes"),
    [
        (True, {}, None, []),
        (True, {"batch_scheduler_policy": MAX}, None, []),
        (False, {}, None, []),
        (False, {"batch_scheduler_policy": MAX}, 4097, ["streams_limited"]),
        (True, {"batch_scheduler_policy": MAX, **ENCODER}, None, ["policy_unsupported"]),
    ],
)
def test_streams_that_could_be_evicted_are_limited(
    paged: bool, runtime: dict[str, Any], limit: int | None, codes: list[str]
) -> None:
    settings = settings_for(runtime=runtime)
    described = with_settings(engine(paged=paged), settings)
    assert described.max_sequence_tokens == 8192
    assert described.max_stream_tokens(settings.runtime) == limit
    found = [
        one
        for one in check_compiled(described, settings.runtime, HostInfo())
        if one.code in ("streams_limited", "policy_unsupported")
    ]
    assert [finding.code for finding in found] == codes
    assert all("batch_scheduler_policy is max_utilization" in one.message for one in found)
