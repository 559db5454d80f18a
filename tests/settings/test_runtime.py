from __future__ import annotations

import pytest

from trtllm_truss.engines.host import PINNED_VERSION
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.settings.runtime import PARAMETERS, RuntimeOptions

CHOICE = "batch_scheduler_policy"


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("enable_chunked_context", True, True),
        ("enable_chunked_context", "True", True),
        ("enable_chunked_context", 0, False),
        ("max_beam_width", 4, 4),
        ("max_beam_width", " 4 ", 4),
        ("kv_cache_free_gpu_mem_fraction", 0.85, 0.85),
        ("kv_cache_free_gpu_mem_fraction", "8e-1", 0.8),
        ("gpu_weights_percent", 1, 1.0),
        ("kv_cache_host_memory_bytes", 50_000_000_000, 50_000_000_000),
        ("max_attention_window_size", "4096, 1024", (4096, 1024)),
        ("gpu_device_ids", 0, (0,)),
        ("gpu_device_ids", "1,0", (1, 0)),
        (CHOICE, "guaranteed_no_evict", "guaranteed_no_evict"),
        ("medusa_choices", "{0}, {0, 1}", "{0}, {0, 1}"),
        ("tokenizer_dir", "/tokenizer", "/tokenizer"),
        ("exclude_input_in_output", True, True),
        ("num_nodes", 1, 1),
    ],
)
def test_values(name, value, parsed):
    options = RuntimeOptions.parse({name: value})
    options.check_version(PINNED_VERSION)
    assert options.parameters == {name: parsed}
    assert getattr(options, name, parsed) == parsed


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("enable_chunked_context", "yes", "true or false"),
        ("enable_chunked_context", 2, "true or false"),
        ("max_beam_width", 0, "a whole number, at least 1"),
        ("max_beam_width", True, "a whole number, at least 1"),
        ("max_beam_width", 1.5, "a whole number, at least 1"),
        ("max_beam_width", "\u0664", "a whole number, at least 1"),
        ("sink_token_length", -1, "a whole number, at least 0"),
        ("kv_cache_free_gpu_mem_fraction", 1, "above 0 and below 1"),
        ("kv_cache_free_gpu_mem_fraction", 90, "above 0 and below 1"),
        ("kv_cache_free_gpu_mem_fraction", "nan", "above 0 and below 1"),
        ("kv_cache_free_gpu_mem_fraction", "much", "above 0 and below 1"),
        ("gpu_weights_percent", 1.1, "from 0 to 1"),
        ("max_attention_window_size", "4096,", "whole numbers, at least 1, with commas between"),
        (
            "gpu_device_ids",
            "0;1",
            "whole numbers, at least 0, with commas between them (`;` separates",
        ),
        (CHOICE, "fast", "one of max_utilization, guaranteed_no_evict"),
        ("gpt_model_type", "V1", "one of inflight_fused_batching, inflight_batching"),
        ("exclude_input_in_output", False, "true: an answer never repeats its prompt"),
        ("speculative_decoding_fast_logits", True, "false: it needs orchestrator mode"),
        ("num_nodes", 2, "1: `model_metadata.nodes` sets it"),
        ("max_beam_width", [2], "a whole number, at least 1"),
        ("eagle_choices", {"a": [1]}, "a string"),
        ("eagle_choices", [1], "a string"),
    ],
)
def test_refused_values(name, value, wanted):
    metadata = {"engine_repository": "org/model", "runtime": {name: value}}
    with pytest.raises(SettingsError) as failure:
        parse_settings({"model_metadata": metadata})
    assert failure.value.message.startswith(
        f"config.yaml: model_metadata.runtime.{name} is {value!r}; it must be {wanted}"
    )
    assert failure.value.param == name


def test_unset_parameters_stay_unset():
    assert RuntimeOptions.parse({"max_beam_width": None, "gpu_device_ids": ""}) == RuntimeOptions()


def test_fields_of_the_model_are_not_parameters():
    options = RuntimeOptions.parse({"max_batch_size": "8", "instance_count": 2})
    assert options == RuntimeOptions(max_batch_size=8, instance_count=2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kv_cache_free_gpu_memory_fraction", "mean kv_cache_free_gpu_mem_fraction?"),
        ("llm_arg", "mean llm_args?"),
        ("zzz", "zzz is not a parameter of the tensorrt_llm model."),
        ("gpt_model_path", "cannot be set"),
    ],
)
def test_refused_names(name, message):
    with pytest.raises(SettingsError) as failure:
        RuntimeOptions.parse({name: "1"})
    assert message in failure.value.message
    assert failure.value.param == name


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("max_num_sequences", "1.0.0", "before 0.8, not of 1.0.0"),
        ("num_nodes", "0.12.0", "0.19 and later, not of 0.12.0"),
    ],
)
def test_parameters_of_other_versions(name, version, message):
    with pytest.raises(SettingsError) as failure:
        RuntimeOptions.parse({name: "1"}).check_version(version)
    assert message in failure.value.message
    assert failure.value.param == name


def test_tokens_of_the_cache_set_no_fraction():
    given = {"max_tokens_in_paged_kv_cache": 5000}
    assert RuntimeOptions.parse(given).parameters == given


def test_lookahead_is_all_or_nothing():
    with pytest.raises(SettingsError, match="set without lookahead_ngram_size") as failure:
        RuntimeOptions.parse({"lookahead_window_size": 4})
    assert failure.value.param == "lookahead_ngram_size"


@pytest.mark.parametrize(
    ("name", "value", "era", "instead"),
    [
        ("max_num_sequences", 8, "0.7.1", "Set max_batch_size."),
        ("max_kv_cache_length", 4096, "0.7.1", "Set max_attention_window_size."),
        ("worker_path", "/w", "0.9.0", "It is called executor_worker_path"),
        ("use_custom_all_reduce", True, "0.11.0", "the runtime chooses by itself"),
    ],
)
def test_settings_of_older_eras(name, value, era, instead):
    options = RuntimeOptions.parse({name: value})
    options.check_version(era)
    with pytest.raises(SettingsError) as failure:
        options.check_version("1.0.0")
    assert "not of 1.0.0" in failure.value.message
    assert instead in failure.value.message


def test_older_parameters_alone_have_a_successor():
    assert all(row.until is not None for row in PARAMETERS if row.instead)
    assert all(row.instead for row in PARAMETERS if row.until is not None)
