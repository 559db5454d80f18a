from __future__ import annotations

import pytest

from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.settings.runtime import PARAMETERS, RuntimeOptions

CHOICE = "batch_scheduler_policy"
TREE = "of the form {0}, {0, 0}, {1}"
LOOKAHEAD = {
    "decoding_mode": "lookahead",
    "lookahead_window_size": 4,
    "lookahead_ngram_size": 3,
    "lookahead_verification_set_size": 4,
}


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
        ("max_tokens_in_paged_kv_cache", 2**31 - 1, 2**31 - 1),
        ("gpu_weights_percent", 0, 0.0),
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
        ("max_beam_width", 0, "a whole number from 1 to 2147483647."),
        ("max_beam_width", True, "a whole number from 1 to 2147483647."),
        ("max_beam_width", 1.5, "a whole number from 1 to 2147483647."),
        ("max_beam_width", "\u0664", "a whole number from 1 to 2147483647."),
        ("sink_token_length", 0, "a whole number from 1 to 2147483647."),
        ("iter_stats_max_iterations", -1, "a whole number from 0 to 2147483647."),
        ("max_batch_size", 2**31, "a whole number from 1 to 2147483647."),
        ("max_tokens_in_paged_kv_cache", 2**31, "a whole number from 1 to 2147483647."),
        ("max_tokens_in_paged_kv_cache", "0x10", "a whole number from 1 to 2147483647."),
        ("max_tokens_in_paged_kv_cache", "1e3", "a whole number from 1 to 2147483647."),
        ("max_tokens_in_paged_kv_cache", "1_000", "a whole number from 1 to 2147483647."),
        ("max_tokens_in_paged_kv_cache", "9" * 5000, "a whole number from 1 to 2147483647."),
        ("kv_cache_host_memory_bytes", 2**64, "a whole number from 0 to 9223372036854775807."),
        ("kv_cache_free_gpu_mem_fraction", 1e-39, "above 0 and below 1"),
        ("kv_cache_free_gpu_mem_fraction", 0.99999999, "above 0 and below 1"),
        ("gpu_weights_percent", 1e-45, "from 0 to 1"),
        ("enable_chunked_context", 1.0, "true or false"),
        ("kv_cache_free_gpu_mem_fraction", 1, "above 0 and below 1"),
        ("kv_cache_free_gpu_mem_fraction", 90, "above 0 and below 1"),
        ("kv_cache_free_gpu_mem_fraction", "nan", "above 0 and below 1"),
        ("kv_cache_free_gpu_mem_fraction", "much", "above 0 and below 1"),
        ("gpu_weights_percent", 1.1, "from 0 to 1"),
        ("max_attention_window_size", f"4096,{2**31}", "whole numbers from 1 to 2147483647"),
        ("max_attention_window_size", "4096,,1024", "whole numbers from 1 to 2147483647"),
        (
            "max_attention_window_size",
            "4096,",
            "whole numbers from 1 to 2147483647 with commas between",
        ),
        (
            "gpu_device_ids",
            "0;1",
            "whole numbers from 0 to 2147483647 with commas between them (`;` separates",
        ),
        (CHOICE, "fast", "one of max_utilization, guaranteed_no_evict"),
        ("gpt_model_type", "V1", "one of inflight_fused_batching, inflight_batching"),
        ("exclude_input_in_output", False, "true: a response never repeats its prompt"),
        ("speculative_decoding_fast_logits", True, "false: it needs orchestrator mode"),
        ("num_nodes", 2, "1: `model_metadata.nodes` sets it"),
        ("max_beam_width", [2], "a whole number from 1 to 2147483647."),
        ("eagle_choices", {"a": [1]}, TREE),
        ("eagle_choices", [1], TREE),
        ("medusa_choices", "nonsense", TREE),
        ("medusa_choices", "{0}, {0, 0", TREE),
        ("medusa_choices", "{0},, {0, 0}", TREE),
        ("medusa_choices", "{0}, {}", TREE),
        ("medusa_choices", "[0], [0, 0]", TREE),
        ("medusa_choices", f"{{{2**31}}}", TREE),
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
        ("max_kv_cache_length", "is not a parameter of the tensorrt_llm model."),
        ("use_custom_all_reduce", "is not a parameter of the tensorrt_llm model."),
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


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        (
            {"lookahead_ngram_size": None},
            "lookahead_ngram_size",
            "set without lookahead_ngram_size",
        ),
        ({"decoding_mode": None}, "lookahead_window_size", "unless decoding_mode is lookahead"),
        ({"decoding_mode": "top_k"}, "lookahead_window_size", "unless decoding_mode is lookahead"),
        ({"lookahead_ngram_size": 1}, "lookahead_ngram_size", "needs lookahead_window_size 1 and"),
        (dict.fromkeys(list(LOOKAHEAD)[1:]), "decoding_mode", "is lookahead; set lookahead_window"),
        ({"lookahead_verification_set_size": 0}, None, ""),
    ],
)
def test_lookahead_needs_its_mode_and_its_sizes(changes, param, message):
    given = {**LOOKAHEAD, **changes}
    if param is None:
        RuntimeOptions.parse(given).check_version("1.0.0")
        return
    with pytest.raises(SettingsError, match=message) as failure:
        RuntimeOptions.parse(given).check_version("1.0.0")
    assert failure.value.param == param


@pytest.mark.parametrize(
    ("name", "value", "wrong", "right", "message"),
    [
        (
            *("max_attention_window_size", "2048,1024", "0.12.0", "0.13.0"),
            "is 2048,1024; for TensorRT-LLM 0.12.0 it must be a whole number from 1 to 2147483647.",
        ),
        (
            *("decoding_mode", "medusa", "0.9.0", "0.10.0"),
            "is medusa; for TensorRT-LLM 0.9.0 it must be one of top_k, top_p, top_k_top_p, "
            "beam_search.",
        ),
        (
            *("decoding_mode", "eagle", "0.15.0", "0.16.0"),
            "is eagle; for TensorRT-LLM 0.15.0 it must be one of top_k, top_p, top_k_top_p, "
            "beam_search, medusa.",
        ),
        ("decoding_mode", "top_k", "0.8.0", "0.9.0", "0.9 and later, not of 0.8.0"),
    ],
)
def test_values_that_an_older_release_would_drop(name, value, wrong, right, message):
    options = RuntimeOptions.parse({name: value})
    options.check_version(right)
    with pytest.raises(SettingsError) as failure:
        options.check_version(wrong)
    assert message in failure.value.message
    assert failure.value.param == name


@pytest.mark.parametrize(
    ("version", "ignored"),
    [("0.9.0", []), ("0.10.0", ["enable_trt_overlap"]), ("0.19.0", ["enable_trt_overlap"])],
)
def test_what_the_backend_ignores_is_told(version, ignored):
    options = RuntimeOptions.parse({"enable_trt_overlap": True})
    options.check_version(version)
    assert [name for name, _ in options.ignored_by(version)] == ignored
    assert not [*options.ignored_by("1.0.0")]


@pytest.mark.parametrize(
    ("name", "value", "era", "instead"),
    [
        ("max_num_sequences", 8, "0.7.1", "Set max_batch_size."),
        ("worker_path", "/w", "0.9.0", "It is called executor_worker_path"),
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
    newest = {row.name: row for row in PARAMETERS}
    assert not [row.name for row in PARAMETERS if row.instead and row is not newest[row.name]]
    assert all((row.until is None) == (row.instead == "") for row in newest.values())
