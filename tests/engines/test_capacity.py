"""Capacity of a KV cache in bytes, tokens and sequences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.engine_configs import Json, listing, new_config, old_config
from tests.support.inspection import inspect_config

from trtllm_truss.engines.capacity import (
    CacheSettings,
    Capacity,
    free_after_weights,
    kv_cache_capacity,
)
from trtllm_truss.engines.compiled.config import EngineConfig, parse_config
from trtllm_truss.engines.compiled.engine import cache_shape
from trtllm_truss.engines.diagnostics import Severity
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.settings.runtime import RuntimeOptions

GB = 10**9


def shape(layers: int, hidden: int, heads: int, kv_heads: int, head_size: int) -> Json:
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": head_size,
    }


MODELS = {
    "llama-2-7b": shape(32, 4096, 32, 32, 128),
    "llama-2-13b": shape(40, 5120, 40, 40, 128),
    "llama-2-70b": shape(80, 8192, 64, 8, 128),
    "llama-3-8b": shape(32, 4096, 32, 8, 128),
    "mixtral-8x7b": shape(32, 4096, 32, 8, 128),
    "qwen2.5-7b": shape(28, 3584, 28, 4, 128),
    "qwen2.5-32b": shape(64, 5120, 40, 8, 128),
    "gemma-7b": shape(28, 3072, 16, 16, 256),
    "falcon-7b": shape(32, 4544, 71, 1, 64),
    "phi-2": shape(32, 2560, 32, 32, 80),
}

# Bytes per token and GPU, calculated by hand: 2 × layers × kv heads × head size × bytes.
GOLDEN = [
    # model, tp, pp, fp16, fp8 or int8
    ("llama-2-7b", 1, 1, 524_288, 262_144),
    ("llama-2-7b", 2, 1, 262_144, 131_072),
    ("llama-2-13b", 1, 1, 819_200, 409_600),
    ("llama-2-13b", 4, 1, 204_800, 102_400),
    ("llama-2-70b", 1, 1, 327_680, 163_840),
    ("llama-2-70b", 8, 1, 40_960, 20_480),
    ("llama-2-70b", 16, 1, 40_960, 20_480),  # 8 heads on 16 GPUs: one on each
    ("llama-2-70b", 4, 2, 40_960, 20_480),
    ("llama-3-8b", 1, 1, 131_072, 65_536),
    ("llama-3-8b", 2, 1, 65_536, 32_768),
    ("llama-3-8b", 1, 4, 32_768, 16_384),
    ("llama-3-8b", 1, 3, 45_056, 22_528),  # 11 of 32 layers on the fullest GPU
    ("mixtral-8x7b", 2, 1, 65_536, 32_768),
    ("qwen2.5-7b", 1, 1, 57_344, 28_672),
    ("qwen2.5-7b", 4, 1, 14_336, 7_168),
    ("qwen2.5-32b", 1, 1, 262_144, 131_072),
    ("gemma-7b", 1, 1, 458_752, 229_376),
    ("falcon-7b", 1, 1, 8_192, 4_096),
    ("falcon-7b", 2, 1, 8_192, 4_096),
    ("phi-2", 1, 1, 327_680, 163_840),
]


def bytes_per_token(config: EngineConfig) -> int:
    return cache_shape(config).bytes_per_token


@pytest.mark.parametrize(("model", "tp", "pp", "half", "byte"), GOLDEN)
def test_bytes_per_token(model: str, tp: int, pp: int, half: int, byte: int) -> None:
    def measured(**quantization: str) -> int:
        content = new_config(tp=tp, pp=pp, **MODELS[model], **quantization)
        return bytes_per_token(parse_config(content))

    assert measured() == measured(dtype="bfloat16") == half
    assert measured(dtype="float32") == 2 * half
    assert measured(kv_cache="FP8") == measured(kv_cache="INT8") == byte
    assert measured(kv_cache="NVFP4") == byte * 9 // 16


def test_bytes_per_token_of_the_old_schema() -> None:
    assert bytes_per_token(parse_config(old_config())) == 524_288
    assert bytes_per_token(parse_config(old_config(tp=2, quant_mode=64))) == 131_072


def test_layers_without_attention_take_no_cache() -> None:
    content = new_config(layers=26)
    content["pretrained_config"]["layer_types"] = ["recurrent", "recurrent", "attention"]
    assert bytes_per_token(parse_config(content)) == 2 * 8 * 8 * 128 * 2
    content["pretrained_config"]["layer_types"] = ["recurrent"]
    assert kv_cache_capacity(cache_shape(parse_config(content)), CacheSettings(), 10 * GB) is None


def capacity(free_bytes: int = 20 * GB, **runtime: bool | int | float | str | None) -> Capacity:
    config = parse_config(new_config())
    measured = kv_cache_capacity(
        cache_shape(config),
        CacheSettings.from_runtime(RuntimeOptions.parse(runtime)),
        free_bytes,
    )
    assert measured is not None
    return measured


def codes(measured: Capacity) -> list[str]:
    return [diagnostic.code for diagnostic in measured.diagnostics]


def test_the_summary_has_bytes_tokens_and_sequences() -> None:
    assert capacity().summary == (
        "18.0 GB of KV cache per GPU → 137,312 tokens → 16 sequences of 8,192 tokens"
    )
    assert capacity().diagnostics == ()


def test_the_fraction_is_of_the_free_memory() -> None:
    assert capacity(kv_cache_free_gpu_mem_fraction=0.45).sequences == 8
    assert capacity(kv_cache_free_gpu_mem_fraction="0.45").sequences == 8


def test_max_tokens_alone_replaces_the_fraction() -> None:
    measured = capacity(max_tokens_in_paged_kv_cache=150_000)
    assert measured.tokens == 149_984  # whole blocks of 32
    assert measured.diagnostics == ()


def test_max_tokens_beyond_the_memory_is_refused() -> None:
    measured = capacity(max_tokens_in_paged_kv_cache=200_000)
    assert codes(measured) == ["kv_cache_exceeds_memory"]
    assert "26.2 GB, but only 20.0 GB" in measured.diagnostics[0].message


@pytest.mark.parametrize(("tokens", "held"), [(100_000, 100_000), (200_000, 137_312)])
def test_the_smaller_of_two_knobs_wins(tokens: int, held: int) -> None:
    measured = capacity(max_tokens_in_paged_kv_cache=tokens, kv_cache_free_gpu_mem_fraction=0.9)
    assert measured.tokens == held
    (diagnostic,) = measured.diagnostics
    assert diagnostic.severity is Severity.WARNING
    assert "137,329 tokens" in diagnostic.message
    assert f"{tokens:,} tokens" in diagnostic.message


def test_admission_believes_the_smaller_of_two_knobs() -> None:
    both = {"max_tokens_in_paged_kv_cache": 1_000_000, "kv_cache_free_gpu_mem_fraction": 0.5}
    content = new_config()
    engine = inspect_config(content, listing(content))
    config = {"model_metadata": {"engine_repository": "org/engine", "runtime": both}}
    given = parse_settings(config)
    assert engine.kv_cache_tokens(given, capacity(**both)) == capacity(**both).tokens == 76_288
    assert engine.kv_cache_tokens(given, None) == 1_000_000


def test_a_low_limit_of_tokens_is_reported() -> None:
    measured = capacity(60 * GB, max_tokens_in_paged_kv_cache=10_000)
    assert codes(measured) == ["kv_cache_idle_memory"]
    assert "52.7 GB of each GPU idle" in measured.diagnostics[0].message


def test_a_cache_below_one_sequence_is_refused_with_what_to_change() -> None:
    small = capacity(GB)
    assert codes(small) == ["kv_cache_too_small"]
    assert "6,848 tokens" in small.diagnostics[0].message
    assert "raise model_metadata.runtime.kv_cache_free" in small.diagnostics[0].message
    capped = capacity(max_tokens_in_paged_kv_cache=8_191)
    assert "raise model_metadata.runtime.max_tokens" in capped.diagnostics[0].message
    assert capacity(max_tokens_in_paged_kv_cache=8_192).sequences == 1


def test_blank_knobs_are_not_set() -> None:
    assert CacheSettings.from_runtime(RuntimeOptions()) == CacheSettings()


def test_no_memory_at_all_is_refused() -> None:
    assert codes(capacity(-GB)) == ["weights_exceed_memory"]


def test_an_attention_window_shortens_sequences() -> None:
    assert capacity(GB, max_attention_window_size=4096).sequence_tokens == 4096
    assert capacity(GB, max_attention_window_size="1024,4096").diagnostics == ()
    assert capacity(max_attention_window_size=100_000).sequence_tokens == 8192


def test_weights_are_estimated_by_the_largest_rank() -> None:
    content = new_config(tp=2)
    engine = inspect_config(
        content, [("config.json", 1), ("rank0.engine", 7 * GB), ("rank1.engine", 8 * GB)]
    )
    assert engine.largest_rank_bytes is not None
    assert free_after_weights(80 * GB, engine.largest_rank_bytes) == 72 * GB
    assert free_after_weights(GB, engine.largest_rank_bytes) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_cache_free_gpu_mem_fraction", 1.0),
        ("kv_cache_free_gpu_mem_fraction", 0),
        ("kv_cache_free_gpu_mem_fraction", "most"),
        ("kv_cache_free_gpu_mem_fraction", True),
        ("kv_cache_free_gpu_mem_fraction", "nan"),
        ("max_tokens_in_paged_kv_cache", 0),
        ("max_tokens_in_paged_kv_cache", 1.5),
        ("max_tokens_in_paged_kv_cache", True),
        ("max_attention_window_size", "a,b"),
        ("max_attention_window_size", True),
    ],
)
def test_wrong_knobs_are_named(name: str, value: bool | int | float | str) -> None:
    with pytest.raises(SettingsError, match=f"runtime.{name} is {value!r}"):
        RuntimeOptions.parse({name: value})


@given(
    model=st.sampled_from(sorted(MODELS)),
    tp=st.sampled_from([1, 2, 3, 4, 8, 16]),
    pp=st.integers(1, 5),
    kv_cache=st.sampled_from([None, "FP8", "INT8", "NVFP4"]),
    block=st.sampled_from([1, 16, 32, 64, 128]),
    max_seq_len=st.integers(2, 200_000),
    free_bytes=st.integers(0, 200 * GB),
    fraction=st.none() | st.floats(0.001, 0.999),
    max_tokens=st.none() | st.integers(1, 3_000_000),
)
def test_accepted_caches_hold_one_sequence_and_fit(
    model: str,
    tp: int,
    pp: int,
    kv_cache: str | None,
    block: int,
    max_seq_len: int,
    free_bytes: int,
    fraction: float | None,
    max_tokens: int | None,
) -> None:
    content = new_config(tp=tp, pp=pp, kv_cache=kv_cache, max_seq_len=max_seq_len, **MODELS[model])
    content["build_config"]["plugin_config"]["tokens_per_block"] = block
    knobs = CacheSettings(free_fraction=fraction, max_tokens=max_tokens)
    measured = kv_cache_capacity(cache_shape(parse_config(content)), knobs, free_bytes)
    assert measured is not None
    if any(diagnostic.severity is Severity.ERROR for diagnostic in measured.diagnostics):
        return
    assert measured.tokens >= max_seq_len
    assert measured.tokens % block == 0
    assert measured.cache_bytes <= free_bytes
    assert measured.sequences >= 1
