"""config.pbtxt's parameters -> settings of the CPU engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtllm_backends.openvino_genai.engine import EngineSettings, ParameterError, read_settings
from trtllm_truss.engines.cpu.engine import PARAMETERS as CPU_KEYS
from trtllm_truss.settings.runtime import PARAMETERS


def config(**parameters: str) -> dict[str, Any]:
    given = {"gpt_model_path": "/engine", **parameters}
    return {
        "max_batch_size": 16,
        "parameters": {key: {"string_value": value} for key, value in given.items()},
    }


def test_unset_empty_and_unfilled_parameters_have_their_defaults() -> None:
    expected = EngineSettings(Path("/engine"), max_batch_size=16)

    assert read_settings(config()) == expected
    unfilled = config(max_beam_width="${max_beam_width}", enable_kv_cache_reuse="")
    assert read_settings(unfilled) == expected


def test_check_names_the_parameters_without_a_meaning() -> None:
    everywhere = {"gpt_model_path", "gpt_model_type", "FORCE_CPU_ONLY_INPUT_TENSORS"}
    given = {row.name: "1" for row in PARAMETERS if row.name not in CPU_KEYS | everywhere}
    used = {"batch_scheduler_policy": "max_utilization", "cancellation_check_period_ms": "20"}
    used |= dict.fromkeys(CPU_KEYS - used.keys(), "1")
    assert set(read_settings(config(**given, **used)).ignored) == given.keys()


def test_every_parameter_with_a_meaning_on_a_cpu() -> None:
    read = read_settings(
        config(
            max_beam_width="4",
            max_tokens_in_paged_kv_cache="2048",
            enable_kv_cache_reuse="False",
            enable_chunked_context="0",
            batch_scheduler_policy="max_utilization",
            exclude_input_in_output="true",
            normalize_log_probs="FALSE",
            cancellation_check_period_ms="20",
        )
    )

    assert read == EngineSettings(
        Path("/engine"),
        max_batch_size=16,
        max_beam_width=4,
        kv_cache_tokens=2048,
        prefix_caching=False,
        chunked_context=False,
        evict=True,
        exclude_input_in_output=True,
        normalize_log_probs=False,
        cancellation_check_s=0.02,
    )


def test_parameters_without_a_meaning_on_a_cpu_are_listed() -> None:
    read = read_settings(
        config(
            kv_cache_free_gpu_mem_fraction="0.9",
            decoding_mode="top_k_top_p",
            gpt_model_type="inflight_fused_batching",
            gpu_device_ids="${gpu_device_ids}",
        )
    )

    assert read.ignored == ("decoding_mode", "kv_cache_free_gpu_mem_fraction")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_beam_width", "0"),
        ("max_tokens_in_paged_kv_cache", "many"),
        ("enable_kv_cache_reuse", "maybe"),
        ("batch_scheduler_policy", "static_batch"),
    ],
)
def test_wrong_values_are_named(name: str, value: str) -> None:
    with pytest.raises(ParameterError, match=f"Parameter {name} cannot be '{value}'"):
        read_settings(config(**{name: value}))


def test_the_engine_folder_is_mandatory() -> None:
    with pytest.raises(ParameterError, match="gpt_model_path"):
        read_settings(config(gpt_model_path=""))
