"""Arguments that a TensorRT-LLM release does not combine."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engines.checkpoint.checkpoints import listing, llama, settings_for
from tests.engines.checkpoint.model_configs import MODELS
from tests.support.inspection import inspect_config
from tests.support.lora import SQL

from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.kinds import check_compatibility, with_settings
from trtllm_truss.errors import SettingsError

DEEPSEEK = "deepseek-ai/DeepSeek-V3"
GRAPHS = {"enable_padding": True, "max_batch_size": 256}
NGRAM = {"decoding_type": "NGram", "max_draft_len": 3}
EAGLE = {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model_dir": "/draft"}


def engine_of(
    version: str | None,
    name: str | None = None,
    *,
    adapters: int = 0,
    gpu: tuple[int, int] | None = None,
    **runtime: Any,
) -> Engine:
    content = MODELS[name][0] if name else llama()
    engine = inspect_config(content, listing())
    return with_settings(engine, settings_for(runtime=runtime), version, [SQL] * adapters, gpu)


def arguments(*given: Any, **options: Any) -> dict[str, Any]:
    return dict(engine_of(*given, **options).llm_args or {})


@pytest.mark.parametrize(
    ("version", "adapters", "graphs"),
    [
        ("1.0.0", 0, GRAPHS),
        ("1.2.1", 0, GRAPHS),
        ("1.0.0", 1, None),
        ("1.1.0", 2, None),
        ("1.2.1", 1, None),
        ("1.3.0rc0", 1, None),
        (None, 1, None),
        ("1.3.0rc19", 1, GRAPHS),
        ("1.3.0", 1, GRAPHS),
    ],
)
def test_adapters_are_not_replayed_away(version: str | None, adapters: int, graphs: object) -> None:
    assert arguments(version, adapters=adapters)["cuda_graph_config"] == graphs


@pytest.mark.parametrize(
    "runtime",
    [{"cuda_graph_mode": True}, {"llm_args": {"cuda_graph_config": {"batch_sizes": [1]}}}],
)
def test_graphs_of_the_user_beside_adapters_are_refused(runtime: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="must be null: CUDA graphs before") as caught:
        engine_of("1.2.1", adapters=1, **runtime)
    assert caught.value.param == "llm_args.cuda_graph_config"
    assert arguments("1.3.0", adapters=1, **runtime)["cuda_graph_config"]
    off = {"llm_args": {"cuda_graph_config": None}}
    assert arguments("1.2.1", adapters=1, **off)["cuda_graph_config"] is None


def test_graphs_cover_every_batch() -> None:
    small = arguments("1.2.1", llm_args={"max_batch_size": 48})
    assert small["cuda_graph_config"] == {"enable_padding": True, "max_batch_size": 48}
    own = {"cuda_graph_config": {"batch_sizes": [1, 2]}}
    assert arguments("1.2.1", llm_args=own)["cuda_graph_config"] == {"batch_sizes": [1, 2]}
    assert arguments("1.2.1", llm_args={"cuda_graph_config": None})["cuda_graph_config"] is None
    assert "cuda_graph_config" not in arguments("1.2.1", "Qwen/Qwen3-Next-80B-A3B-Instruct")


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0"])
def test_beams_before_1_2_run_without_overlap_and_graphs(version: str) -> None:
    found = arguments(version, max_beam_width=2)
    assert found["disable_overlap_scheduler"] is True
    assert found["cuda_graph_config"] is None
    assert "disable_overlap_scheduler" not in arguments(version)
    assert "disable_overlap_scheduler" not in arguments("1.2.1", max_beam_width=2)
    with pytest.raises(SettingsError, match="must be true: beams need it in TensorRT-LLM 1"):
        engine_of(version, max_beam_width=2, enable_trt_overlap=True)


@pytest.mark.parametrize(
    ("version", "drafts", "refused"),
    [
        ("1.0.0", NGRAM, True),
        ("1.1.0", NGRAM, False),
        ("1.0.0", {**EAGLE, "eagle3_one_model": False}, True),
        ("1.1.0", {**EAGLE, "eagle3_one_model": False}, False),
        ("1.2.1", {"decoding_type": "MTP"}, False),
    ],
)
def test_guides_with_drafts(version: str, drafts: dict[str, Any], refused: bool) -> None:
    runtime = {
        "guided_decoding_backend": "xgrammar",
        "llm_args": {"speculative_config": drafts},
    }
    if refused:
        with pytest.raises(SettingsError, match="does not combine") as caught:
            engine_of(version, **runtime)
        assert caught.value.param == "guided_decoding_backend"
    else:
        assert arguments(version, **runtime)["guided_decoding_backend"] == "xgrammar"


@pytest.mark.parametrize(
    ("architecture", "version", "chunks", "reuses"),
    [
        ("GptOssForCausalLM", "1.1.0", False, False),
        ("GptOssForCausalLM", "1.2.1", True, True),
        ("HCXVisionForCausalLM", "1.1.0", False, False),
        ("HCXVisionForCausalLM", "1.2.1", False, True),
        ("LlavaLlamaModel", "1.2.1", False, False),
        ("LlamaForCausalLM", "1.0.0", True, True),
    ],
)
def test_models_without_a_feature(
    architecture: str, version: str, chunks: bool, reuses: bool
) -> None:
    engine = inspect_config(llama(architectures=[architecture]), listing())
    engine = with_settings(engine, settings_for(), version)
    found = dict(engine.llm_args or {})
    assert found["enable_chunked_prefill"] is chunks
    assert found["kv_cache_config"]["enable_block_reuse"] is reuses
    assert engine.max_input_tokens == (32_767 if chunks else 8192)


@pytest.mark.parametrize(
    ("architecture", "version", "runtime", "codes"),
    [
        ("GptOssForCausalLM", "1.1.0", {}, []),
        ("GptOssForCausalLM", "1.1.0", {"enable_chunked_context": True}, ["feature_unsupported"]),
        ("GptOssForCausalLM", "1.1.0", {"enable_kv_cache_reuse": True}, ["feature_unsupported"]),
        ("GptOssForCausalLM", "1.2.1", {"enable_chunked_context": True}, []),
    ],
)
def test_features_that_a_model_lacks_are_reported(
    architecture: str, version: str, runtime: dict[str, Any], codes: list[str]
) -> None:
    engine = inspect_config(llama(architectures=[architecture]), listing())
    settings = settings_for(runtime=runtime)
    found = check_compatibility(
        settings, with_settings(engine, settings, version), HostInfo(runtime_version=version)
    )
    assert [each.code for each in found] == codes


def test_adapters_with_drafts_are_reported() -> None:
    runtime = {"llm_args": {"speculative_config": NGRAM}}
    host = HostInfo(runtime_version="1.3.0")
    engine = engine_of("1.3.0", adapters=1, **runtime)
    codes = [each.code for each in check_compatibility(settings_for(runtime=runtime), engine, host)]
    assert codes == ["combination_untested"]


@pytest.mark.parametrize(
    ("version", "gpu", "longest"),
    [
        ("1.0.0", (9, 0), 8192),
        ("1.0.0", (10, 0), 32_767),
        ("1.1.0", (9, 0), 32_767),
        ("1.1.0", (10, 3), 8192),
        ("1.2.1", (10, 3), 32_767),
        ("1.2.1", (8, 9), 8192),
        ("1.2.1", None, 32_767),
        (None, (8, 0), 32_767),
    ],
)
def test_prompts_of_latent_attention_fit_a_step_where_they_are_not_chunked(
    version: str | None, gpu: tuple[int, int] | None, longest: int
) -> None:
    engine = engine_of(version, DEEPSEEK, gpu=gpu)
    assert engine.max_input_tokens == longest
    assert (engine.llm_args or {})["enable_chunked_prefill"] is (longest > 8192)
    own = engine_of(version, DEEPSEEK, gpu=gpu, enable_chunked_context=True)
    assert own.max_input_tokens == longest


def test_the_gpu_is_that_of_the_host_or_of_config_yaml() -> None:
    assert HostInfo(accelerator="H100:8").capability == (9, 0)
    assert HostInfo(accelerator="X1").capability is None
    assert HostInfo().capability is None
