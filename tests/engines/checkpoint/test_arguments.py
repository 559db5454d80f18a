"""The arguments of `tensorrt_llm.LLM`, by checkpoint and settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.checkpoint.checkpoints import complete, llama, settings_for
from tests.engines.checkpoint.model_configs import MODELS
from tests.engines.engine_configs import listing as engine_listing
from tests.engines.engine_configs import new_config
from tests.fakes.triton import write_engine
from tests.support.inspection import inspect_config

from trtllm_truss.engines.checkpoint.arguments import RUNTIME_KEYS
from trtllm_truss.engines.checkpoint.llm_args import LLM_ARGUMENTS
from trtllm_truss.engines.cpu.engine import CpuEngine
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.kinds import check_compatibility, inspect_engine, with_settings
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import rows_for
from trtllm_truss.settings.runtime import PARAMETERS

DEFAULTS = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "max_batch_size": 256,
    "max_num_tokens": 8192,
    "max_seq_len": 32768,
    "max_input_len": 32767,
    "max_beam_width": 1,
    "enable_chunked_prefill": True,
    "sampler_type": "TRTLLMSampler",
    "cuda_graph_config": {"enable_padding": True, "max_batch_size": 256},
    "kv_cache_config": {"free_gpu_memory_fraction": 0.9, "enable_block_reuse": True},
}


def graphs_of(size: int) -> dict[str, Any]:
    return {"cuda_graph_config": {"enable_padding": True, "max_batch_size": size}}


def arguments(
    config: dict[str, Any] | None = None, version: str = "1.2.1", **runtime: Any
) -> dict[str, Any]:
    engine = complete(config or llama(), version=version, runtime=runtime)
    assert engine.llm_args is not None
    return dict(engine.llm_args)


def refusal(**runtime: Any) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        complete(llama(), runtime=runtime)
    return caught.value


def test_defaults() -> None:
    assert arguments() == DEFAULTS
    short = arguments(llama(max_position_embeddings=4096))
    assert (short["max_seq_len"], short["max_input_len"]) == (4096, 4095)


def test_recurrent_layers_reuse_no_blocks() -> None:
    for name, reuse in (
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", False),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", False),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", True),
        ("openai/gpt-oss-20b", True),
    ):
        assert arguments(MODELS[name][0])["kv_cache_config"]["enable_block_reuse"] is reuse


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        ({"max_batch_size": 8}, {"max_batch_size": 8, **graphs_of(8)}),
        ({"max_beam_width": 4}, {"max_beam_width": 4}),
        ({"enable_chunked_context": "true"}, {"enable_chunked_prefill": True}),
        (
            {"enable_chunked_context": False},
            {"enable_chunked_prefill": False, "max_input_len": 8192},
        ),
        (
            {"batch_scheduler_policy": "max_utilization"},
            {"scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"}},
        ),
        ({"enable_trt_overlap": True}, {"disable_overlap_scheduler": False}),
        ({"cuda_graph_mode": False}, {"cuda_graph_config": None}),
        ({"cuda_graph_mode": True}, {}),
        ({"guided_decoding_backend": "xgrammar"}, {"guided_decoding_backend": "xgrammar"}),
        (
            {"lora_cache_host_memory_bytes": 7, "lora_cache_gpu_memory_fraction": 0.5},
            {"peft_cache_config": {"host_cache_size": 7, "device_cache_percent": 0.5}},
        ),
        ({"FORCE_CPU_ONLY_INPUT_TENSORS": "no"}, {}),
        ({"llm_args": {"max_seq_len": 131072}}, {"max_seq_len": 131072, "max_input_len": 131071}),
        ({"llm_args": {"max_input_len": 100}}, {"max_input_len": 100}),
        ({"llm_args": {"stream_interval": 4}}, {"stream_interval": 4}),
        ({"llm_args": {"cuda_graph_config": None}}, {"cuda_graph_config": None}),
        ({"llm_args": {"max_batch_size": None}}, {}),
        (
            {"max_batch_size": 8, "llm_args": {"max_batch_size": 8}},
            {"max_batch_size": 8, **graphs_of(8)},
        ),
        ({"llm_args": {"tensor_parallel_size": 1}}, {}),
    ],
)
def test_keys_of_runtime(runtime: dict[str, Any], expected: dict[str, Any]) -> None:
    assert arguments(**runtime) == {**DEFAULTS, **expected}


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        ({"kv_cache_free_gpu_mem_fraction": 0.5}, {"free_gpu_memory_fraction": 0.5}),
        ({"max_tokens_in_paged_kv_cache": 4096}, {"max_tokens": 4096}),
        ({"enable_kv_cache_reuse": False}, {"enable_block_reuse": False}),
        ({"kv_cache_host_memory_bytes": 9}, {"host_cache_size": 9}),
        ({"max_attention_window_size": "1024,4096"}, {"max_attention_window": [1024, 4096]}),
        ({"llm_args": {"kv_cache_config": {"dtype": "fp8"}}}, {"dtype": "fp8"}),
        (
            {
                "max_tokens_in_paged_kv_cache": 4096,
                "llm_args": {"kv_cache_config": {"tokens_per_block": 64}},
            },
            {"max_tokens": 4096, "tokens_per_block": 64},
        ),
    ],
)
def test_keys_of_the_kv_cache(runtime: dict[str, Any], expected: dict[str, Any]) -> None:
    cache = {"free_gpu_memory_fraction": 0.9, "enable_block_reuse": True, **expected}
    assert arguments(**runtime) == {**DEFAULTS, "kv_cache_config": cache}


@pytest.mark.parametrize(
    ("runtime", "param", "words"),
    [
        ({"instance_count": 2}, "instance_count", "which the LLM API does not support"),
        ({"gpu_device_ids": "0"}, "gpu_device_ids", "set CUDA_VISIBLE_DEVICES"),
        ({"decoding_mode": "medusa"}, "decoding_mode", "needs a prebuilt engine"),
        ({"sink_token_length": 4}, "sink_token_length", "has no counterpart"),
        ({"tokenizer_dir": "/t"}, "tokenizer_dir", "tokenizer_repository"),
        (
            {"llm_args": {"tensor_parallel_size": 2}},
            "llm_args.tensor_parallel_size",
            "but model_metadata.tensor_parallelism is 1",
        ),
        (
            {"max_batch_size": 8, "llm_args": {"max_batch_size": 16}},
            "llm_args.max_batch_size",
            "is 16, but the key of runtime that sets the same argument makes it 8",
        ),
        (
            {
                "kv_cache_free_gpu_mem_fraction": 0.5,
                "llm_args": {"kv_cache_config": {"free_gpu_memory_fraction": 0.6}},
            },
            "llm_args.kv_cache_config.free_gpu_memory_fraction",
            "is 0.6, but",
        ),
    ],
)
def test_refused_keys(runtime: dict[str, Any], param: str, words: str) -> None:
    refused = refusal(**runtime)
    assert words in refused.message
    assert refused.message.startswith(f"config.yaml: model_metadata.runtime.{param} ")
    assert refused.param == param


def test_every_key_of_runtime_has_a_fate() -> None:
    for version in ("1.0.0", "1.2.1"):
        names = {row.name for row in rows_for(PARAMETERS, version)} - {"gpt_model_path"}
        assert names <= RUNTIME_KEYS.keys()
    for key in RUNTIME_KEYS.values():
        assert sum(map(bool, (key.argument, key.handled, key.unused, key.refused))) == 1


def test_mapped_keys_exist() -> None:
    rows = {row.name: row for row in LLM_ARGUMENTS}
    for key in RUNTIME_KEYS.values():
        if key.argument:
            name, _, field = key.argument.partition(".")
            assert not field or field in {row.name for row in rows[name].fields}


def test_unused_keys_are_reported() -> None:
    runtime = {"multi_block_mode": True, "gpt_model_type": "inflight_batching"}
    settings = settings_for(runtime=runtime)
    found = check_compatibility(settings, complete(llama(), runtime=runtime), HostInfo())
    assert [each.code for each in found] == ["runtime_key_unused"] * 2
    assert "runtime.multi_block_mode has no effect on a checkpoint: the PyTorch" in found[0].message


@pytest.mark.parametrize(
    ("llm_args", "words"),
    [
        ({"print_iter_log": True}, "print_iter_log writes a line into the log for each step"),
        ({"perf_metrics_max_requests": 9}, "perf_metrics_max_requests has no effect here"),
        ({"print_iter_log": False, "enable_iter_perf_stats": True}, ""),
    ],
)
def test_doubtful_arguments_are_reported(llm_args: dict[str, Any], words: str) -> None:
    settings = settings_for(runtime={"llm_args": llm_args})
    found = check_compatibility(settings, complete(llama()), HostInfo())
    assert [each.code for each in found] == ["llm_argument_doubtful"] * bool(words)
    assert all(words in each.message for each in found)


def test_llm_args_need_a_checkpoint(tmp_path) -> None:
    settings = settings_for(runtime={"llm_args": {"max_seq_len": 9}})
    for engine in (
        inspect_engine(write_engine(tmp_path / "engine")),
        CpuEngine(max_sequence_tokens=9, max_input_tokens=8, max_batch_size=1),
    ):
        with pytest.raises(SettingsError, match=r"runtime\.llm_args is set, but the engine in"):
            with_settings(engine, settings)
        assert with_settings(engine, settings_for()) == engine


@pytest.mark.parametrize(("built_for_it", "longest"), [(True, 8191), (False, 4096)])
def test_context_chunking_lengthens_the_prompts_of_an_engine(
    built_for_it: bool, longest: int
) -> None:
    content = new_config()
    content["build_config"]["plugin_config"]["use_paged_context_fmha"] = built_for_it
    engine = inspect_config(content, engine_listing(content))
    assert with_settings(engine, settings_for()).max_input_tokens == longest
    unchunked = settings_for(runtime={"enable_chunked_context": False})
    assert with_settings(engine, unchunked).max_input_tokens == 4096


def test_limits_follow_the_arguments() -> None:
    runtime = {
        "guided_decoding_backend": "xgrammar",
        "batch_scheduler_policy": "max_utilization",
        "llm_args": {
            "max_batch_size": 4,
            "max_beam_width": 2,
            "max_seq_len": 9000,
            "enable_chunked_prefill": False,
            "kv_cache_config": {"max_tokens": 64},
        },
    }
    settings, engine = settings_for(runtime=runtime), complete(llama(), runtime=runtime)
    assert (engine.max_sequence_tokens, engine.max_input_tokens) == (9000, 8192)
    assert engine.batch_size(settings) == 4
    assert engine.beam_limit(settings) == 2
    assert engine.kv_cache_tokens(settings, None) == 64
    assert engine.overcommits(settings)
    assert engine.guided_decoding_backend(settings) == "xgrammar"
    plain = complete(llama())
    assert not plain.overcommits(settings_for())
    assert plain.guided_decoding_backend(settings_for()) is None


def test_code_runs_only_with_trust() -> None:
    assert "trust_remote_code" not in arguments()
    engine = complete(llama(), trust_remote_code=True)
    assert engine.llm_args is not None
    assert engine.llm_args["trust_remote_code"] is True


EVENTS = Path("/run/events")


def test_events_of_the_kv_cache_need_a_buffer() -> None:
    engine = complete(llama()).reporting_kv_events(EVENTS)
    cache = {**DEFAULTS["kv_cache_config"], "event_buffer_max_size": 100_000}
    assert engine.llm_args == {**DEFAULTS, "kv_cache_config": cache}
    given = {"llm_args": {"kv_cache_config": {"event_buffer_max_size": 8}}}
    engine = complete(llama(), runtime=given).reporting_kv_events(EVENTS)
    assert engine.llm_args["kv_cache_config"]["event_buffer_max_size"] == 8


@pytest.mark.parametrize("reports", [False, True])
def test_events_that_nothing_reads_are_not_asked_for(reports: bool, tmp_path: Path) -> None:
    """Up to 1.2 they would fill a queue without a limit."""
    settings = settings_for(
        runtime={"llm_args": {"kv_cache_config": {"event_buffer_max_size": 8, "dtype": "fp8"}}}
    )
    engine = replace(with_settings(complete(llama()), settings, "1.2.1"), folder=tmp_path)
    (found,) = check_compatibility(settings, engine, HostInfo())
    assert found.code == "llm_argument_doubtful"
    assert "kv_cache_config.event_buffer_max_size is used by trtllm-truss dynamo" in found.message

    engine = engine.reporting_kv_events(EVENTS) if reports else engine
    config = engine.model_config(
        settings, "1.2.1", tokenizer_dir=tmp_path, tokenizer_info=None, adapters={}
    )
    passed = json.loads(config.parameters["llm_args"])["kv_cache_config"]
    assert passed["dtype"] == "fp8"
    assert ("event_buffer_max_size" in passed) == reports


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ({"llm_args": {"enable_attention_dp": True}}, "enable_attention_dp: a router"),
        ({"max_beam_width": 2}, "max_beam_width above 1"),
        ({"llm_args": {"kv_cache_config": {"enable_block_reuse": False}}}, "enable_block_reuse"),
    ],
)
def test_events_that_would_mislead_a_router(runtime: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        complete(llama(), runtime=runtime).reporting_kv_events(EVENTS)


def test_other_engines_have_no_events() -> None:
    engine = CpuEngine(max_sequence_tokens=9, max_input_tokens=8, max_batch_size=1)
    with pytest.raises(SettingsError, match="Leave out --kv-events"):
        engine.reporting_kv_events(EVENTS)
