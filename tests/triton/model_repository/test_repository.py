from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tests.support.paths import ROOT, TEMPLATES
from tritonclient.grpc import model_config_pb2

from trtllm_truss.engines.engine import ModelConfig
from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import (
    CACHED_TOKENS,
    INPUTS,
    OUTPUTS,
    OWN_INPUTS,
    OWN_OUTPUTS,
    inputs_of,
    rows_for,
)
from trtllm_truss.settings.runtime import PARAMETERS
from trtllm_truss.triton.model_repository import read_config, render_repository, write_config


def render(
    folder: Path,
    *,
    backend: str = "tensorrtllm",
    max_batch_size: int = 16,
    tensorrt_llm_version: str | None = PINNED_VERSION,
    instance_count: int = 1,
    **changes: Any,
):
    model = {
        "engine_dir": Path("/engines/one"),
        "parameters": {},
        "inputs": (),
        "outputs": (),
        **changes,
    }
    repository = render_repository(
        TEMPLATES,
        folder,
        ModelConfig(**model),
        backend=backend,
        max_batch_size=max_batch_size,
        tensorrt_llm_version=tensorrt_llm_version,
        instance_count=instance_count,
    )
    return read_config(repository / "tensorrt_llm" / "config.pbtxt")


def as_row(field):
    is_input = isinstance(field, model_config_pb2.ModelInput)
    return (
        field.name,
        model_config_pb2.DataType.Name(field.data_type).removeprefix("TYPE_"),
        tuple(field.dims),
        field.optional if is_input else True,
        field.HasField("reshape"),
        field.allow_ragged_batch if is_input else False,
    )


def expected(row):
    return (row.name, row.dtype, row.dims, row.optional, row.scalar, row.ragged)


def test_the_pinned_release_gets_its_contract(tmp_path):
    config = render(tmp_path, engine_dir="", max_batch_size=8)
    assert [as_row(f) for f in config.input] == [
        expected(r) for r in rows_for(INPUTS, PINNED_VERSION)
    ]
    assert [as_row(f) for f in config.output] == [
        expected(r) for r in rows_for(OUTPUTS, PINNED_VERSION)
    ]
    assert {k: v.string_value for k, v in config.parameters.items()} == {
        r.name: r.default for r in rows_for(PARAMETERS, PINNED_VERSION) if r.default is not None
    }
    assert config.model_transaction_policy.decoupled
    assert config == read_config(ROOT / "tests/selftest/template.pbtxt")


@pytest.mark.parametrize("version", ["0.7.1", "0.9.0", "0.12.0", "0.18.2", "1.0.0", None])
def test_every_version_gets_exactly_its_tensors(tmp_path, version):
    config = render(tmp_path, tensorrt_llm_version=version)
    assert {as_row(f) for f in config.input} == {expected(r) for r in inputs_of(version)}
    assert {f.name for f in config.output} == {r.name for r in rows_for(OUTPUTS, version)}
    assert set(config.parameters) <= {r.name for r in rows_for(PARAMETERS, version)}


@pytest.mark.parametrize(
    ("version", "spelled"), [("0.12.0", True), ("0.14.0", True), ("0.15.0", False)]
)
def test_a_parameter_has_the_key_that_the_backend_reads(tmp_path, version, spelled):
    """NVIDIA's template of 0.12 to 0.14 has other keys than its backend reads."""
    given = {"multi_block_mode": True, "enable_context_fmha_fp32_acc": False}
    config = render(tmp_path, tensorrt_llm_version=version, parameters=given)
    values = {name: value.string_value for name, value in config.parameters.items()}
    assert values["multi_block_mode"] == "true"
    assert values.get("multiBlockMode") == ("true" if spelled else None)
    assert values.get("enableContextFMHAFP32Acc") == ("false" if spelled else None)
    plain = render(tmp_path, tensorrt_llm_version=version)
    assert not {"multiBlockMode", "enableContextFMHAFP32Acc"} & plain.parameters.keys()


def test_rendering_changes_only_the_given_fields(tmp_path):
    config = render(
        tmp_path,
        engine_dir=Path('/a "quoted" folder/ü'),
        backend="openvino_genai",
        inputs=(),
        outputs=(CACHED_TOKENS,),
        parameters={
            "kv_cache_free_gpu_mem_fraction": 0.5,
            "lora_prefetch_dir": "/lora",
            "enable_chunked_context": True,
            "gpu_device_ids": (1, 0),
        },
        instance_count=2,
    )
    wanted = render(tmp_path / "plain")
    wanted.backend = "openvino_genai"
    wanted.instance_group[0].count = 2
    wanted.parameters["gpt_model_path"].string_value = '/a "quoted" folder/ü'
    wanted.parameters["kv_cache_free_gpu_mem_fraction"].string_value = "0.5"
    wanted.parameters["lora_prefetch_dir"].string_value = "/lora"
    wanted.parameters["enable_chunked_context"].string_value = "true"
    wanted.parameters["gpu_device_ids"].string_value = "1,0"
    assert as_row(config.output.pop())[:3] == ("cached_tokens", "INT32", (1,))
    assert text_format.MessageToString(config) == text_format.MessageToString(wanted)
    assert list((tmp_path / "tensorrt_llm" / "1").iterdir()) == []


def test_a_checkpoints_backend_has_its_own_parameters_and_more_tensors(tmp_path):
    config = render(
        tmp_path,
        backend="llm_api",
        of_executor=False,
        inputs=OWN_INPUTS,
        outputs=OWN_OUTPUTS,
        parameters={"llm_args": "{}"},
    )
    assert {name: value.string_value for name, value in config.parameters.items()} == {
        "gpt_model_path": "/engines/one",
        "llm_args": "{}",
    }
    declared = {field.name for field in (*config.input, *config.output)}
    more = {row.name for row in (*OWN_INPUTS, *OWN_OUTPUTS)}
    assert more <= declared
    assert not more & {row.name for row in (*INPUTS, *OUTPUTS)}


def test_an_older_template_of_a_truss_gives_way(tmp_path):
    template = read_config(TEMPLATES / "tensorrt_llm" / "config.pbtxt")
    template.input.add(name="input_ids")
    template.parameters["unknown"].string_value = "x"
    template.parameters["sink_token_length"].string_value = "3"
    write_config(template, tmp_path / "template")
    repository = render_repository(
        tmp_path / "template",
        tmp_path / "repository",
        ModelConfig(Path("/engines/one"), {"sink_token_length": 3}, inputs=(), outputs=()),
        backend="tensorrtllm",
        max_batch_size=16,
        tensorrt_llm_version=PINNED_VERSION,
    )
    config = read_config(repository / "tensorrt_llm" / "config.pbtxt")
    assert config == render(tmp_path, parameters={"sink_token_length": 3})


def test_rendering_twice_replaces_the_first(tmp_path):
    render(tmp_path, parameters={"sink_token_length": 2})
    (tmp_path / "tensorrt_llm" / "stale").touch()
    assert render(tmp_path).parameters["sink_token_length"].string_value == ""
    assert not (tmp_path / "tensorrt_llm" / "stale").exists()


def test_broken_template_is_named(tmp_path):
    (tmp_path / "tensorrt_llm").mkdir()
    (tmp_path / "tensorrt_llm" / "config.pbtxt").write_text("max_batch_size: ${x}")
    with pytest.raises(SettingsError, match=r"config\.pbtxt is not a readable"):
        read_config(tmp_path / "tensorrt_llm" / "config.pbtxt")
