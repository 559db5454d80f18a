"""`runtime.llm_args`: names, types and releases."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_truss.configuration import load_configuration
from trtllm_truss.engines.checkpoint.llm_args import doubtful_arguments, parse_llm_args
from trtllm_truss.errors import SettingsError


def parse(llm_args: Any, version: str = "1.2.1") -> dict[str, Any]:
    metadata = {"engine_repository": "org/model", "runtime": {"llm_args": llm_args}}
    settings = load_configuration({"model_metadata": metadata}, version).settings
    return parse_llm_args(settings.runtime.llm_args, version)


def refusal(llm_args: Any, version: str = "1.2.1") -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        parse(llm_args, version)
    return caught.value


EAGLE = {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "/draft"}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"max_seq_len": 4096, "enable_chunked_prefill": False},
        {"kv_cache_config": {"dtype": "nvfp4", "free_gpu_memory_fraction": 1}},
        {"scheduler_config": {"capacity_scheduler_policy": "STATIC_BATCH"}},
        {"cuda_graph_config": {"batch_sizes": [1, 2, 4], "enable_padding": True}},
        {"cuda_graph_config": None},
        {"moe_config": {"backend": "CUTLASS"}, "batch_wait_timeout_ms": 1.5},
        {"speculative_config": EAGLE},
        {"speculative_config": None},
        {"load_format": "dummy", "sampler_type": "TRTLLMSampler"},
    ],
)
def test_values(values: dict[str, Any]) -> None:
    assert parse(values) == values


def test_null_is_not_set() -> None:
    assert parse({"max_seq_len": None}) == {}
    assert parse({"kv_cache_config": {"max_tokens": None}}) == {"kv_cache_config": {}}
    assert parse(None) == {}


@pytest.mark.parametrize(
    ("values", "param", "words"),
    [
        ([], "llm_args", "is []; it must be a mapping of arguments"),
        ("x", "llm_args", "must be a mapping"),
        ({1: 2}, "llm_args", "must be a mapping"),
        ({"max_seq_len": float("nan")}, "llm_args", "that JSON cannot express"),
        ({"max_seq_len": "4096"}, "max_seq_len", 'is "4096"; it must be a whole number, at least'),
        ({"max_seq_len": 1}, "max_seq_len", "a whole number, at least 2"),
        ({"max_batch_size": True}, "max_batch_size", "a whole number, at least 1"),
        ({"enable_autotuner": 1}, "enable_autotuner", "true or false"),
        ({"attn_backend": 1}, "attn_backend", "a string"),
        ({"moe_config": []}, "moe_config", "a mapping"),
        ({"batch_wait_max_tokens_ratio": 2}, "batch_wait_max_tokens_ratio", "from 0 to 1"),
        ({"guided_decoding_backend": "no"}, "guided_decoding_backend", "xgrammar, llguidance"),
        (
            {"kv_cache_config": {"free_gpu_memory_fraction": 90}},
            "kv_cache_config.free_gpu_memory_fraction",
            "a number from 0 to 1",
        ),
        (
            {"kv_cache_config": {"max_attention_window": []}},
            "kv_cache_config.max_attention_window",
            "a list of whole numbers, at least 1",
        ),
        ({"max_seq_length": 1}, "max_seq_length", "Did you mean max_seq_len?"),
        (
            {"kv_cache_config": {"free_gpu_mem_fraction": 0.5}},
            "kv_cache_config.free_gpu_mem_fraction",
            "is not a field of kv_cache_config in TensorRT-LLM 1.2.1. Did you mean "
            "free_gpu_memory_fraction?",
        ),
        (
            {"speculative_config": {"decoding_type": "Medusa"}},
            "speculative_config.decoding_type",
            'is "Medusa"; it must be one of MTP, Eagle3',
        ),
        (
            {"speculative_config": {"decoding_type": ["MTP"]}},
            "speculative_config.decoding_type",
            '["MTP"]; it must be one of',
        ),
        ({"speculative_config": {"max_draft_len": 3}}, "speculative_config.decoding_type", "null"),
        (
            {"speculative_config": {**EAGLE, "speculative_model": "org/draft"}},
            "speculative_config.speculative_model",
            "it must be a folder in the container",
        ),
        (
            {"speculative_config": {"decoding_type": "NGram", "max_matching_ngram_size": 2}},
            "speculative_config.max_draft_len",
            "is missing; NGram needs it, for example 3.",
        ),
        (
            {"speculative_config": {"decoding_type": "Eagle", "max_draft_len": 3}},
            "speculative_config.speculative_model",
            "is missing; Eagle needs the draft model's folder.",
        ),
        (
            {"speculative_config": {**EAGLE, "speculative_model_dir": "/other"}},
            "speculative_config.speculative_model_dir",
            "differs from speculative_model, which is another name of the same field; remove one.",
        ),
        (
            {"cuda_graph_config": {"batch_sizes": [1, 2], "max_batch_size": 4}},
            "cuda_graph_config.max_batch_size",
            "is 4, but the largest of batch_sizes is 2; remove one of them.",
        ),
        (
            {"moe_config": {"load_balancer": "balancer.yaml"}},
            "moe_config.load_balancer",
            "it must be a file in the container, or a mapping.",
        ),
        (
            {"kv_connector_config": {"connector_module": "cache"}},
            "kv_connector_config.connector_scheduler_class",
            "is missing; set it to a string.",
        ),
        (
            {"sparse_attention_config": {"algorithm": "dsa", "page_size": 4}},
            "sparse_attention_config.page_size",
            "is not a field of sparse_attention_config in TensorRT-LLM 1.2.1.",
        ),
        ({"enable_iter_req_stats": True}, "enable_iter_req_stats", "Nothing here reads statistics"),
        ({"kv_cache_config": {1: 2}}, "kv_cache_config.1", "is not a field of kv_cache_config"),
        ({"model": "/m"}, "model", "cannot be set. It is the folder"),
        ({"tokenizer": "/t"}, "tokenizer", "cannot be set"),
        ({"backend": "pytorch"}, "backend", "PyTorch backend"),
        ({"skip_tokenizer_init": True}, "skip_tokenizer_init", "token ids"),
        ({"env_overrides": {}}, "env_overrides", "environment_variables"),
        ({"orchestrator_type": "ray"}, "orchestrator_type", "process of its own"),
        ({"build_config": {}}, "build_config", "belongs to prebuilt engines"),
        ({"batching_type": "INFLIGHT"}, "batching_type", "belongs to prebuilt engines"),
        (
            {"kv_cache_config": {"sink_token_length": 4}},
            "kv_cache_config.sink_token_length",
            "The PyTorch backend ignores it",
        ),
    ],
)
def test_refused_values(values: Any, param: str, words: str) -> None:
    refused = refusal(values)
    param = param if param == "llm_args" else f"llm_args.{param}"
    assert refused.message.startswith(f"config.yaml: model_metadata.runtime.{param} ")
    assert words in refused.message
    assert refused.param == param


@pytest.mark.parametrize(
    ("name", "value", "version", "words"),
    [
        ("kv_cache_config", {"tokens_per_block": 64}, "1.0.0", "1.1 and later, not of 1.0.0"),
        ("model_kwargs", {"a": 1}, "1.2.1", "1.3 and later"),
        ("sampler_type", "TRTLLMSampler", "1.3.0rc25", "one of auto, TorchSampler"),
        (
            "speculative_config",
            {"decoding_type": "MTP", "mtp_eagle_one_model": True},
            "1.0.0",
            "1.1 and later",
        ),
        ("sampler_type", "auto", "1.0.0", "1.1 and later, not of 1.0.0. Remove it."),
        ("enable_trtllm_sampler", True, "1.2.1", "before 1.1, not of 1.2.1"),
        ("max_stats_len", 9, "1.1.0", "1.2 and later"),
        ("custom_tokenizer", "x", "1.1.0", "1.2 and later"),
        ("fail_fast_on_attention_window_too_large", True, "1.3.0", "before 1.3"),
        (
            "speculative_config",
            {"decoding_type": "PARD", "max_draft_len": 3, "speculative_model": "/draft"},
            "1.2.1",
            "decoding_type is PARD, a kind of TensorRT-LLM 1.3 and later, not of 1.2.1",
        ),
    ],
)
def test_arguments_of_other_releases(name: str, value: Any, version: str, words: str) -> None:
    assert words in refusal({name: value}, version).message


def test_arguments_that_1_2_1_added() -> None:
    values = {
        "custom_tokenizer": "x.Tokenizer",
        "pp_partition": [20, 12],
        "otlp_traces_endpoint": "http://collector:4317",
        "disable_flashinfer_sampling": True,
        "max_stats_len": 100,
        "enable_sleep": False,
    }
    assert parse(values, "1.2.1") == values
    assert "process of its own" in refusal({"ray_placement_config": {}}).message


def test_names_outside_the_table_pass_in_later_releases() -> None:
    drafts = {"decoding_type": "NGram", "max_draft_len": 3, "newer": 1}
    unknown = {"new_argument": 1, "kv_cache_config": {"new_field": 2}, "speculative_config": drafts}
    assert parse(unknown, "1.3.0rc29") == unknown
    assert [d.message.split()[1] for d in doubtful_arguments(unknown, "1.3.0rc29")] == [
        f"model_metadata.runtime.llm_args.{name}"
        for name in ("new_argument", "kv_cache_config.new_field", "speculative_config.newer")
    ]
    assert "is not an argument of LLM(…) in TensorRT-LLM 1.2.1." in refusal(unknown).message
