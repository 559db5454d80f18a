"""Every mismatch has one message with both values and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.engines.engine_configs import (
    Json,
    config_0_9,
    config_0_12,
    listing,
    new_config,
    old_config,
)
from tests.support.inspection import inspect_config

from trtllm_truss.engines.cpu.engine import CpuEngine
from trtllm_truss.engines.diagnostics import Diagnostic, Severity
from trtllm_truss.engines.gpus import Gpu
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.images import PINNED_IMAGE
from trtllm_truss.engines.kinds import check_compatibility
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.model import Settings

ERROR, WARNING = Severity.ERROR, Severity.WARNING
H100 = Gpu("NVIDIA H100 80GB HBM3", 85 * 10**9, 85 * 10**9, (9, 0), "575.57.08")
A100 = Gpu("NVIDIA A100-SXM4-80GB", 85 * 10**9, 85 * 10**9, (8, 0), "575.57.08")
OLD_DRIVER = Gpu("NVIDIA H100 80GB HBM3", 85 * 10**9, 85 * 10**9, (9, 0), "560.35.05")
CPU = CpuEngine(max_sequence_tokens=2048, max_input_tokens=2047, max_batch_size=64)


def image(tag: str) -> str:
    return f"nvcr.io/nvidia/tritonserver:{tag}-trtllm-python-py3"


def find(
    config: Json | None = None,
    *,
    files: Sequence[tuple[str, int]] | None = None,
    manifest: Json | None = None,
    settings: Json | None = None,
    **host: Any,
) -> list[Diagnostic]:
    config = new_config() if config is None else config
    engine = inspect_config(config, listing(config) if files is None else files, manifest)
    return check_compatibility(
        Settings.model_validate({"engine_repository": "org/engine", **(settings or {})}),
        engine,
        HostInfo(**host),
    )


def plugins(**changes: Any) -> Json:
    config = new_config()
    config["build_config"]["plugin_config"].update(changes)
    return config


def runtime(**values: Any) -> Json:
    return {"runtime": values}


TP2: Json = {"tensor_parallelism": 2}
H100_MANIFEST: Json = {"gpu": {"name": "NVIDIA H100 PCIe", "compute_capability": "9.0"}}

TABLE: dict[str, tuple[dict[str, Any], Severity, list[str]]] = {
    # code: the mismatch, severity, parts of the message
    "tensor_parallelism_mismatch": (
        {"settings": {"tensor_parallelism": 2}},
        ERROR,
        ["model_metadata.tensor_parallelism is 2", "org/engine was built for 1", "set it to 1"],
    ),
    "pipeline_parallelism_mismatch": (
        {"config": new_config(pp=4)},
        ERROR,
        ["model_metadata.pipeline_parallelism is 1", "built for 4", "set it to 4"],
    ),
    "rank_files_missing": (
        {
            "config": new_config(tp=8),
            "files": [("config.json", 1), ("rank1.engine", 1)],
            "settings": {"tensor_parallelism": 8},
        },
        ERROR,
        ["8 files", "missing: rank0.engine, rank2.engine, rank3.engine, rank4.engine and 3 more"],
    ),
    "rank_files_surplus": (
        {"files": [*listing(new_config()), ("rank1.engine", 1)]},
        WARNING,
        ["config.json does not name rank1.engine", "remove"],
    ),
    "nodes_mismatch": (
        {"config": new_config(tp=2), "settings": {**TP2, "nodes": 3}},
        ERROR,
        ["model_metadata.nodes is 3", "has 2 ranks", "a divisor of 2"],
    ),
    "http_unrestricted": (
        {
            "config": old_config(paged_context=None),
            "settings": {"serving": {"triton_native": True}},
            "runtime_version": "0.5.0",
        },
        ERROR,
        ["serving.triton_native opens", "TensorRT-LLM 0.5.0", "remove the setting", "0.7 or newer"],
    ),
    "nodes_version": (
        {
            "config": new_config("0.18.2", tp=2),
            "settings": {**TP2, "nodes": 2},
            "runtime_version": "0.18.2",
        },
        ERROR,
        ["model_metadata.nodes is 2", "0.18.2", "0.19 or newer"],
    ),
    "nodes_unsupported": (
        {"engine": CPU, "settings": {"nodes": 2}},
        ERROR,
        ["model_metadata.nodes is 2", "a CPU engine runs on one host"],
    ),
    "max_batch_size_above_engine": (
        {"settings": runtime(max_batch_size=4096)},
        ERROR,
        ["runtime.max_batch_size is 4096", "limit is 2048", "--max_batch_size 4096"],
    ),
    "max_beam_width_above_engine": (
        {"settings": runtime(max_beam_width="4")},
        ERROR,
        ["runtime.max_beam_width is 4", "limit is 1"],
    ),
    "no_inflight_batching": (
        {"config": plugins(remove_input_padding=False, gpt_attention_plugin=None)},
        ERROR,
        [
            "needs gpt_attention_plugin, remove_input_padding and paged_kv_cache",
            "rebuild it with gpt_attention_plugin, remove_input_padding.",
        ],
    ),
    "enable_kv_cache_reuse_unsupported": (
        {
            "config": plugins(use_paged_context_fmha=False),
            "settings": runtime(enable_kv_cache_reuse=True),
        },
        ERROR,
        ["runtime.enable_kv_cache_reuse is true", "--use_paged_context_fmha enable"],
    ),
    "enable_chunked_context_unsupported": (
        {
            "config": plugins(use_paged_context_fmha=False),
            "settings": runtime(enable_chunked_context="True"),
        },
        ERROR,
        ["runtime.enable_chunked_context is true", "--use_paged_context_fmha enable"],
    ),
    "streams_limited": (
        {
            "config": plugins(use_paged_context_fmha=False),
            "settings": runtime(batch_scheduler_policy="max_utilization"),
        },
        WARNING,
        ["limited to 4097 tokens together"],
    ),
    "policy_unsupported": (
        {
            "settings": runtime(
                batch_scheduler_policy="max_utilization", encoder_model_path="/encoder"
            ),
        },
        ERROR,
        ["runtime.batch_scheduler_policy is max_utilization", "guaranteed_no_evict"],
    ),
    "runtime_key_unused": (
        {"settings": runtime(recv_poll_period_ms=10)},
        WARNING,
        ["runtime.recv_poll_period_ms has no effect"],
    ),
    "decoding_mode_incomplete": (
        {"settings": runtime(decoding_mode="top_p")},
        ERROR,
        ["runtime.decoding_mode is top_p", "greedy or have a top_k", "remove it"],
    ),
    "quantization_unknown": (
        {"config": new_config(algorithm="W1A1", kv_cache="INT2")},
        WARNING,
        ["W1A1 and INT2 is unknown"],
    ),
    "version_mismatch": (
        {"config": config_0_12(), "runtime_version": "1.0.0"},
        ERROR,
        [
            "built by TensorRT-LLM 0.12.0",
            "TensorRT-LLM 1.0.0",
            image("24.08"),
            "rebuild the engine with 1.0.0",
        ],
    ),
    "image_version_mismatch": (
        {"config": old_config(), "image": PINNED_IMAGE.name},
        ERROR,
        ["0.5 to 0.7", "(about 0.7.1)", "config.yaml's image 25.10", image("24.01"), "older than"],
    ),
    "driver_too_old": (
        {
            "config": new_config("1.2.1"),
            "image": image("26.07"),
            "python": "/usr/bin/python3",
            "gpus": [OLD_DRIVER],
        },
        WARNING,
        ["driver here is 560.35.05", "CUDA 13.1.0.036", "update the driver to 580"],
    ),
    "python_missing": (
        {"image": PINNED_IMAGE.name, "python": "/opt/venv-tritonserver/bin/python3"},
        ERROR,
        ["/opt/venv-tritonserver/bin/python3", "image 25.10", "set it to /usr/bin/python3"],
    ),
    "python_of_tensorrt_llm": (
        {"config": new_config("1.2.1"), "image": image("26.07"), "python": None},
        WARNING,
        ["is not set", "/opt/venv-tritonserver", "Set it to /usr/bin/python3."],
    ),
    "runtime_key_of_another_version": (
        {"config": config_0_12(), "settings": runtime(guided_decoding_backend="xgrammar")},
        ERROR,
        ["runtime.guided_decoding_backend", "not of 0.12.0"],
    ),
    "runtime_key_without_effect": (
        {"config": config_0_12(), "settings": runtime(enable_trt_overlap=True)},
        WARNING,
        ["runtime.enable_trt_overlap has no effect on TensorRT-LLM 0.12.0", "remove it"],
    ),
    "accelerator_count": (
        {"config": new_config(tp=2), "settings": TP2, "accelerator": "H100"},
        ERROR,
        ["asks for 1 of H100", "built for 2", "set it to H100:2"],
    ),
    "accelerator_unknown": (
        {"accelerator": "H100s"},
        WARNING,
        ["names H100s", "did you mean H100"],
    ),
    "accelerator_unused": (
        {"engine": CPU, "accelerator": "L4"},
        WARNING,
        ["resources.accelerator is L4", "runs on the CPU", "remove it"],
    ),
    "default_refused": (
        {"settings": {"generation": {"beam_width": 9}}},
        ERROR,
        ["generation.beam_width is 9, but this engine has at most", "Remove it"],
    ),
    "accelerator_differs": (
        {"accelerator": "H100", "gpus": [A100]},
        WARNING,
        ["names H100", "this machine has NVIDIA A100-SXM4-80GB"],
    ),
    "gpus_missing": (
        {"config": new_config(tp=2), "settings": TP2, "gpus": [H100]},
        ERROR,
        ["built for 2 GPU(s) and 1 are visible here"],
    ),
    "gpu_not_the_builders": (
        {"manifest": H100_MANIFEST, "gpus": [A100]},
        ERROR,
        ["built on NVIDIA H100 PCIe (compute capability 9.0)", "NVIDIA A100-SXM4-80GB (8.0)"],
    ),
    "gpu_too_old": (
        {"config": new_config(kv_cache="FP8"), "accelerator": "A100"},
        ERROR,
        ["computes in FP8", "compute capability 8.9", "A100 has 8.0"],
    ),
}


@pytest.mark.parametrize("code", TABLE)
def test_each_mismatch(code: str) -> None:
    case, severity, words = TABLE[code]
    if "engine" in case:
        given = {"engine_repository": "org/engine", **case.get("settings", {})}
        settings = Settings.model_validate(given)
        host = HostInfo(accelerator=case.get("accelerator"))
        diagnostics = check_compatibility(settings, case["engine"], host)
    else:
        diagnostics = find(**case)
    (diagnostic,) = diagnostics
    assert (diagnostic.code, diagnostic.severity) == (code, severity)
    for word in words:
        assert word in diagnostic.message
    assert diagnostic.message.endswith((".", "?"))


@pytest.mark.parametrize(
    ("config", "given", "words"),
    [
        (
            *(config_0_12(), {"max_attention_window_size": "2048,1024"}),
            "is 2048,1024; for TensorRT-LLM 0.12.0 it must be a whole number",
        ),
        (config_0_12(), {"decoding_mode": "eagle"}, "is eagle; for TensorRT-LLM 0.12.0 it must be"),
        (new_config(), {"decoding_mode": "lookahead"}, "set lookahead_window_size"),
    ],
)
def test_values_that_the_engines_release_would_drop(
    config: Json, given: dict[str, Any], words: str
) -> None:
    (diagnostic,) = find(config, settings=runtime(**given))
    assert (diagnostic.code, diagnostic.severity) == ("runtime_key_of_another_version", ERROR)
    assert words in diagnostic.message


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"accelerator": "H100", "gpus": [H100], "image": PINNED_IMAGE.name},
        {"accelerator": "H100:1", "runtime_version": "1.0.0"},
        {"accelerator": "H100_40GB", "gpus": [H100, H100]},
        {"accelerator": "not: valid", "image": "my/own:image"},
        {"config": config_0_9(), "image": image("24.04")},
        {"config": new_config(tp=2), "settings": TP2, "accelerator": "L4:2"},
        {"config": new_config(dtype="bfloat16", algorithm="FP8"), "accelerator": "L4"},
        {"config": new_config(algorithm="NVFP4"), "accelerator": "B200"},
        {"manifest": H100_MANIFEST, "accelerator": "H200", "image": None},
        {"settings": runtime(max_batch_size=2048, max_beam_width=1)},
        {"settings": runtime(enable_chunked_context=True, enable_kv_cache_reuse="false")},
        {"config": plugins(use_paged_context_fmha=False)},
        {"config": new_config(tp=2), "settings": {**TP2, "nodes": 2}, "accelerator": "L4"},
        {"config": new_config(tp=2), "settings": {**TP2, "nodes": 2}, "gpus": [H100]},
    ],
)
def test_compatible_engines_have_no_diagnostics(case: dict[str, Any]) -> None:
    assert find(**case) == []


def test_the_cuda_installed_here_decides_before_the_image() -> None:
    case = {"image": image("26.07"), "python": "/usr/bin/python3", "gpus": [OLD_DRIVER]}
    here = {"driver_version": "560.35.05", "cuda_version": "13.1.0"}
    assert find(new_config("1.2.1"), **case, **here, driver_fits=True) == []
    (diagnostic,) = find(new_config("1.2.1"), **case, **here, driver_fits=False)
    assert (diagnostic.code, diagnostic.severity) == ("driver_too_old", ERROR)
    assert "too old for CUDA 13.1.0 here" in diagnostic.message
    assert "update the driver to 580" in diagnostic.message


def test_no_gpu_at_all() -> None:
    (diagnostic,) = find(gpus=[])
    assert "built for 1 GPU(s) and 0 are visible here" in diagnostic.message


@pytest.mark.parametrize(
    ("config", "accelerator"),
    [
        (new_config(dtype="bfloat16"), "T4"),
        (new_config(algorithm="W4A8_AWQ"), "A10G"),
        (new_config(algorithm="FP8_BLOCK_SCALES"), "L40S"),
        (new_config(algorithm="NVFP4"), "H200"),
        (old_config(quant_mode=256), "A100"),
    ],
)
def test_formats_that_a_gpu_lacks(config: Json, accelerator: str) -> None:
    assert [diagnostic.code for diagnostic in find(config, accelerator=accelerator)] == [
        "gpu_too_old"
    ]


def test_versions_with_the_same_numbers_are_a_warning() -> None:
    (diagnostic,) = find(new_config("0.17.0.post1"), runtime_version="0.17.0")
    assert (diagnostic.code, diagnostic.severity) == ("version_mismatch", WARNING)


def test_equal_image_and_runtime_are_reported_once() -> None:
    diagnostics = find(new_config("0.20.0"), image=PINNED_IMAGE.name, runtime_version="1.0.0")
    assert [diagnostic.code for diagnostic in diagnostics] == ["image_version_mismatch"]


def test_defaults_that_the_engine_refuses() -> None:
    def found(**generation: Any) -> list[str]:
        given = {"engine_repository": "org/engine", "generation": generation}
        findings = check_compatibility(Settings.model_validate(given), CPU, HostInfo())
        return [each.message for each in findings]

    (sentence,) = found(bad_words_list=["x"], temperature=0.5)
    assert 'generation.bad_words_list is ["x"], but the CPU engine refuses it' in sentence
    assert not found(bad_words=[], beam_width=1, min_tokens=3)


def test_all_mismatches_are_reported() -> None:
    diagnostics = find(config_0_12(), settings=TP2, accelerator="H100:2", runtime_version="1.0.0")
    assert [diagnostic.code for diagnostic in diagnostics] == [
        "tensor_parallelism_mismatch",
        "version_mismatch",
        "accelerator_count",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_batch_size", 0), ("max_beam_width", True), ("enable_kv_cache_reuse", "perhaps")],
)
def test_wrong_types_are_settings_errors(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"runtime.{name} is {value!r}"):
        find(settings=runtime(**{name: value}))


def test_host_info_from_config_yaml() -> None:
    config = {"resources": {"accelerator": "H100:2"}, "base_image": {"image": PINNED_IMAGE.name}}
    host = HostInfo.from_config(config, HostInfo(runtime_version="1.0.0"))
    assert host == HostInfo("H100:2", PINNED_IMAGE.name, None, "1.0.0")
    for odd in ({}, {"resources": None}, {"resources": {"accelerator": None}}, {"base_image": "x"}):
        assert HostInfo.from_config(odd) == HostInfo()
