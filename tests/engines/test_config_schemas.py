"""Each era's config.json is read as its runtime reads it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engines.engine_configs import (
    Json,
    config_0_9,
    config_0_12,
    config_0_18,
    listing,
    new_config,
    old_config,
)
from tests.support.inspection import inspect_config

from trtllm_truss.engines.compiled.config import parse_config
from trtllm_truss.engines.images import image_for
from trtllm_truss.errors import ArtifactError

ERAS = {
    # era: config, version, image, max sequence, longest prompt, tokens per block
    "0.5": (old_config(paged_context=None), None, "23.10", 2560, 2048, 64),
    "0.7": (old_config(), None, "24.01", 2560, 2048, 64),
    "0.9": (config_0_9(), "0.9.0", "24.04", 2048, 1024, 128),
    "0.12": (config_0_12(), "0.12.0", "24.08", 8192, 4096, 64),
    "0.18": (config_0_18(), "0.18.0", "25.03", 8192, 4096, 64),
    "1.0": (new_config(), "1.0.0", "25.10", 8192, 4096, 32),
    "1.2": (new_config("1.2.1"), "1.2.1", image_for("1.2.1").image.tag, 8192, 4096, 32),
}


@pytest.mark.parametrize("era", ERAS)
def test_each_era_is_recognised(era: str) -> None:
    content, version, tag, sequence, prompt, block = ERAS[era]
    engine = inspect_config(content, listing(content))
    config = engine.config
    assert config is not None
    assert engine.rank_files is not None
    assert config.version == version
    choice = image_for(config.assumed_version)
    assert (choice.image.tag, choice.exact) == (tag, True)
    assert engine.max_sequence_tokens == sequence
    assert engine.max_input_tokens == prompt
    assert config.plugins.tokens_per_block == block
    assert config.batching_gaps == ()
    assert engine.rank_files.missing == engine.rank_files.surplus == ()
    assert config.quantization.dtype == "float16"
    assert (config.shape.layers, config.shape.heads, config.shape.head_size) == (32, 32, 128)


def test_undocumented_images_are_marked() -> None:
    assert "older than NVIDIA's compatibility table" in str(image_for("0.7.1"))
    assert str(image_for("1.0.0")) == "nvcr.io/nvidia/tritonserver:25.10-trtllm-python-py3"


@pytest.mark.parametrize("pp", [1, 3])
@pytest.mark.parametrize("tp", [1, 4])
def test_parallelism_of_both_schemas(tp: int, pp: int) -> None:
    for content in (old_config(tp=tp, pp=pp), new_config(tp=tp, pp=pp)):
        engine = inspect_config(content, listing(content))
        assert engine.rank_files is not None
        assert (engine.tensor_parallelism, engine.pipeline_parallelism) == (tp, pp)
        assert len(engine.rank_files.names) == tp * pp
        assert not engine.rank_files.missing


def test_context_parallelism_counts_as_ranks() -> None:
    content = new_config(tp=2)
    content["pretrained_config"]["mapping"]["cp_size"] = 2
    assert parse_config(content).parallelism.world_size == 4


@pytest.mark.parametrize(
    ("changes", "chunked", "longest"),
    [
        ({}, False, 4096),
        ({}, True, 8191),
        ({"max_num_tokens": 16384}, False, 8191),
        ({"max_num_tokens": None}, False, 1024),
        ({"plugin_config": {"context_fmha": False}}, False, 1024),
        ({"plugin_config": {"remove_input_padding": False}}, False, 1024),
        ({"plugin_config": {"use_paged_context_fmha": False}}, True, 4096),
    ],
)
def test_longest_prompt(changes: Json, chunked: bool, longest: int) -> None:
    content = new_config()
    plugins = changes.pop("plugin_config", {})
    content["build_config"].update(changes)
    content["build_config"]["plugin_config"].update(plugins)
    assert parse_config(content).max_prompt_tokens(chunked_context=chunked) == longest


@pytest.mark.parametrize(
    ("mode", "algorithm", "kv_cache"),
    [
        (0, None, None),
        (2, "INT8", None),
        (1 | 32, "INT4", None),
        (2 | 64, "INT8", "INT8"),
        (128, None, "FP8"),
        (256 | 128, "FP8", "FP8"),
        (4 | 2 | 8 | 16, "INT8", None),
    ],
)
def test_quantization_flags_of_the_old_schema(
    mode: int, algorithm: str | None, kv_cache: str | None
) -> None:
    quantization = parse_config(old_config(quant_mode=mode)).quantization
    assert (quantization.algorithm, quantization.kv_cache) == (algorithm, kv_cache)


def test_quantization_of_the_new_schema() -> None:
    quantization = parse_config(new_config(algorithm="FP8", kv_cache="FP8")).quantization
    assert (quantization.algorithm, quantization.kv_cache) == ("FP8", "FP8")
    assert parse_config(new_config(algorithm="NO_QUANT")).quantization.algorithm is None


@pytest.mark.parametrize(
    ("plugins", "cache_type", "gaps"),
    [
        ({"gpt_attention_plugin": None}, "PAGED", ("gpt_attention_plugin",)),
        ({"gpt_attention_plugin": False}, "PAGED", ("gpt_attention_plugin",)),
        ({"remove_input_padding": False}, "PAGED", ("remove_input_padding",)),
        ({"paged_kv_cache": False}, "CONTINUOUS", ("paged_kv_cache",)),
        ({"paged_kv_cache": None}, "PAGED", ()),
        ({"paged_kv_cache": None}, "paged", ()),
        ({"paged_kv_cache": None}, "DISABLED", ()),
    ],
)
def test_inflight_batching(plugins: Json, cache_type: str, gaps: tuple[str, ...]) -> None:
    content = new_config()
    content["build_config"]["kv_cache_type"] = cache_type
    content["build_config"]["plugin_config"].update(plugins)
    assert parse_config(content).batching_gaps == gaps


def test_recurrent_models_have_their_own_rule_and_fewer_attention_layers() -> None:
    content = new_config(layers=26)
    content["pretrained_config"].update(
        architecture="RecurrentGemmaForCausalLM",
        layer_types=["recurrent", "recurrent", "attention"],
    )
    config = parse_config(content)
    assert config.recurrent
    assert config.batching_gaps == ()
    assert sum(heads > 0 for heads in config.shape.kv_heads) == 8
    content["build_config"]["plugin_config"]["paged_state"] = False
    assert parse_config(content).batching_gaps == ("paged_state",)


def test_key_value_heads_may_differ_by_layer() -> None:
    content = new_config(layers=3)
    content["pretrained_config"]["num_kv_heads_per_layer"] = [8, 4, 1]
    assert parse_config(content).shape.kv_heads == (8, 4, 1)


def test_head_size_follows_from_the_hidden_size() -> None:
    assert parse_config(new_config(hidden=2048, heads=16, head_size=None)).shape.head_size == 128
    with pytest.raises(ArtifactError, match=r"has no pretrained_config\.hidden_size"):
        parse_config(new_config(hidden=None, head_size=None))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("build_config.max_batch_size", None, "has no build_config.max_batch_size"),
        ("build_config.max_seq_len", "8192", 'build_config.max_seq_len is "8192"'),
        ("build_config.max_input_len", True, "must be a whole number"),
        ("build_config.plugin_config", [], "must be an object"),
        ("pretrained_config.mapping.tp_size", 0, "tp_size is 0; it must be at least 1"),
        ("pretrained_config.mapping", None, "has no pretrained_config.mapping"),
        ("pretrained_config.dtype", 16, "must be a string"),
        (
            "pretrained_config.layer_types",
            "attention",
            'layer_types is "attention"; it must be a list',
        ),
        ("build_config.plugin_config.context_fmha", "enable", "must be true or false"),
        ("version", None, "has no version"),
        ("build_config.max_batch_size", 2**31, "must be at most 2147483647"),
        ("build_config.max_seq_len", None, "has no build_config.max_seq_len"),
    ],
)
def test_wrong_values_are_named(path: str, value: Any, words: str) -> None:
    content = new_config()
    *parents, key = path.split(".")
    section = content
    for parent in parents:
        section = section[parent]
    section[key] = value
    with pytest.raises(ArtifactError) as caught:
        parse_config(content)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "does not describe a TensorRT-LLM engine"),
        ({"architectures": ["LlamaForCausalLM"]}, "It is the checkpoint's"),
    ],
)
def test_other_config_files_are_refused(content: Json, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        parse_config(content)


def test_too_many_gpus_are_refused() -> None:
    with pytest.raises(ArtifactError, match="asks for 1048576 GPUs"):
        parse_config(new_config(tp=1024, pp=1024))
