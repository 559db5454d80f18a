"""`import-lmi`: configurations of LMI's documentation, and every option of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from tests.engines.checkpoint.checkpoints import listing, llama
from tests.support.inspection import inspect_config
from tests.support.paths import ROOT

from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.engines.kinds import with_settings
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.settings.model import Serving, Settings
from trtllm_workbench.cli.main import main
from trtllm_workbench.importers.lmi import OPTIONS, SECTIONS, collect_options, convert_options
from trtllm_workbench.importers.reading import read_lines
from trtllm_workbench.importers.rules import ConversionResult, Outcome

DOCUMENTED = """
engine mpi_mode rolling_batch model_id revision trust_remote_code dtype tensor_parallel_degree
pipeline_parallel_degree max_rolling_batch_size job_queue_size output_formatter tgi_compat
entryPoint parallel_loading model_loading_timeout predict_timeout backend batch_size max_input_len
max_output_len max_num_tokens use_custom_all_reduce tokens_per_block batch_scheduler_policy
kv_cache_free_gpu_mem_fraction max_num_sequences enable_trt_overlap enable_kv_cache_reuse
baichuan_model_version chatglm_model_version gpt_model_version multi_block_mode use_fused_mlp
rotary_base rotary_dim rotary_scaling_type rotary_scaling_factor logits_dtype
trtllm_checkpoint_path num_checkpoint_workers num_engine_workers load_by_shard quantize
smoothquant_alpha smoothquant_per_token smoothquant_per_channel multi_query_mode awq_format
awq_calib_size q_format calib_size calib_batch_size awq_block_size use_fp8_context_fmha
max_draft_len trtllm_python_backend
""".split()  # noqa: SIM905 - shorter than a list
"""Every option in the tables and examples of LMI's guides for 0.25 to 0.36."""

BUILDS = {"model_id": "org/model"}
SAMPLES: dict[str, tuple[str, Mapping[str, str]]] = {
    "tool_call_parser": ("hermes", {}),
    "reasoning_parser": ("deepseek_r1", {}),
    "max_output_len": ("64", {"max_input_len": "64"}),
    "rotary_scaling_type": ("linear", {"rotary_scaling_factor": "2.0"}),
    "rotary_scaling_factor": ("2.0", {"rotary_scaling_type": "dynamic"}),
    "opt_num_tokens": ("64", {"max_num_tokens": "64"}),
    "quantize": ("awq", {}),
    "quant_algo": ("W4A16_AWQ", {}),
    "kv_cache_quant_algo": ("FP8", {}),
    "smoothquant_alpha": ("0.5", {"quantize": "smoothquant"}),
    "smoothquant_val": ("0.5", {"quantize": "smoothquant"}),
    "smoothquant_per_token": ("true", {"quantize": "smoothquant"}),
    "smoothquant_per_channel": ("true", {"quantize": "smoothquant"}),
    "awq_format": ("int4_awq", {"quantize": "awq"}),
    "q_format": ("int4_awq", {"quantize": "awq"}),
    "awq_calib_size": ("16", {"quantize": "awq"}),
    "calib_size": ("512", {"quantize": "awq"}),
    "calib_batch_size": ("8", {"quantize": "fp8"}),
    "awq_block_size": ("64", {"quantize": "awq"}),
    "group_size": ("64", {"quant_algo": "W4A16_AWQ"}),
    "baichuan_model_version": ("v1_13b", {}),
    "chatglm_model_version": ("chatglm3_6b_32k", {}),
    "gpt_model_version": ("starcoder", {}),
    "gemm_plugin": ("auto", {}),
    "batch_scheduler_policy": ("guaranteed_no_evict", {}),
    "guided_decoding_backend": ("xgrammar", {}),
    "max_attention_window": ("[128, 256]", {}),
    "model_id": ("org/model", {}),
    "revision": ("main", {}),
    "tokenizer": ("org/tokenizer", {}),
    "tokenizer_revision": ("main", {}),
    "dtype": ("fp16", {}),
    "logits_dtype": ("fp32", {}),
    "tokens_per_block": ("64", {}),
    "rotary_base": ("1000000.0", {}),
    "free_gpu_memory_fraction": ("0.5", {}),
    "kv_cache_free_gpu_mem_fraction": ("0.5", {}),
    "cross_kv_cache_fraction": ("0.5", {}),
}


def converted(gpus: int | None = None, **options: str) -> ConversionResult:
    values = {f"option.{name}": value for name, value in options.items()}
    return convert_options(collect_options(values), gpus)


def outcomes(imported: ConversionResult) -> dict[str, Outcome]:
    return {row.spelling.removeprefix("option."): row.outcome for row in imported.rows}


def sample_of(name: str) -> tuple[str, Mapping[str, str]]:
    if name in SAMPLES:
        return SAMPLES[name]
    return ("true" if OPTIONS[name].convert("1") is True else "2"), {}


def test_no_documented_option_is_missing() -> None:
    assert set(DOCUMENTED) <= set(OPTIONS)
    assert sum(map(len, SECTIONS.values())) == len(OPTIONS)


def test_only_the_operator_allows_code_or_names_a_repository() -> None:
    given = {name for name, option in OPTIONS.items() if option.operator_says}
    repositories = ("engine_repository", "checkpoint_repository", "tokenizer_repository")
    of_repositories = (*repositories, "_revision", "trust_remote_code", "adapters", "publish_to")
    assert given == {
        name for name, option in OPTIONS.items() if option.target.endswith(of_repositories)
    }


def test_consent_of_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serving.properties"
    file.write_text("option.model_id=org/model\noption.trust_remote_code=true\n")
    assert main(["import-lmi", str(file), "--truss", str(ROOT)]) == 0
    shown = capsys.readouterr()
    consent = f"rust_remote_code was set by {file}: Python code of org/model"
    assert consent in " ".join(shown.out.replace("\n#", "").split())
    assert f"note: t{consent}" in shown.err
    assert yaml.safe_load(shown.out)["model_metadata"]["trust_remote_code"] is True


def test_unmapped_options_have_a_reason() -> None:
    for option in OPTIONS.values():
        assert option.checkpoint or option.target or option.reason, option.name
        assert option.target if option.outcome is Outcome.MAPPED else option.reason, option.name


@pytest.mark.parametrize(
    "name", [option.name for option in OPTIONS.values() if option.outcome is Outcome.MAPPED]
)
def test_mapped_options_are_valid_settings(name: str) -> None:
    value, needed = sample_of(name)
    imported = converted(**{**BUILDS, **needed, name: value})
    assert outcomes(imported)[name] is Outcome.MAPPED
    settings = parse_settings({"model_metadata": imported.metadata})
    settings.runtime.check_version(PINNED_VERSION)
    got: Any = imported.metadata
    for key in OPTIONS[name].target.split("."):
        got = got[key]
    assert got not in (None, "")


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.checkpoint])
def test_options_of_a_checkpoint_are_arguments(name: str) -> None:
    """LMI's own samples reach the arguments of `LLM`, and mean nothing for an engine."""
    samples = {"kv_cache_dtype": "fp8", "attn_backend": "FLASHINFER", "moe_backend": "TRTLLM"}
    samples |= {"load_format": "dummy", "use_cuda_graph": "true"}
    samples |= {"enable_overlap_scheduler": "true"}
    value = samples.get(name) or sample_of(name)[0]
    imported = converted(model_id="org/model", backend="pytorch", **{name: value})
    assert outcomes(imported)[name] is Outcome.MAPPED
    settings = parse_settings({"model_metadata": imported.metadata})
    settings.runtime.check_version(PINNED_VERSION)
    assert (settings.build, settings.engine_repository) == (None, "org/model")
    engine = inspect_config(llama(), listing())
    got: Any = with_settings(engine, settings).llm_args
    for key in OPTIONS[name].checkpoint.removeprefix("runtime.llm_args.").split("."):
        got = got[key]
    wanted = OPTIONS[name].convert(value)
    assert got == ({**got, **wanted} if isinstance(wanted, dict) else wanted)  # beside defaults


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("enable_overlap_scheduler", "true", {"disable_overlap_scheduler": False}),
        ("use_cuda_graph", "true", {"cuda_graph_config": {}}),
        ("use_cuda_graph", "false", {"cuda_graph_config": None}),
        ("enable_attention_dp", "true", {"enable_attention_dp": True}),
        ("moe_backend", "TRTLLM", {"moe_config": {"backend": "TRTLLM"}}),
        ("kv_cache_quant_algo", "FP8", {"kv_cache_config": {"dtype": "fp8"}}),
    ],
)
def test_values_of_a_checkpoint(name: str, value: str, expected: dict[str, Any]) -> None:
    imported = converted(model_id="s3://bucket/model", backend="PyTorch", **{name: value})
    assert imported.metadata == {
        "engine_repository": "s3://bucket/model",
        "runtime": {"llm_args": expected},
    }


@pytest.mark.parametrize(
    ("options", "outcome", "part"),
    [
        ({"quantize": "awq"}, Outcome.UNSUPPORTED, "its own quantization"),
        ({"awq_block_size": "64"}, Outcome.UNSUPPORTED, "its own quantization"),
        ({"use_fused_mlp": "true"}, Outcome.NOT_NEEDED, "nothing is built"),
        ({"multi_block_mode": "true"}, Outcome.NOT_NEEDED, "chooses its kernels"),
        ({"sink_token_length": "4"}, Outcome.UNSUPPORTED, "has no counterpart for a checkpoint"),
        ({"max_rolling_batch_size": "8"}, Outcome.MAPPED, "runtime.max_batch_size"),
        ({"revision": "main"}, Outcome.MAPPED, "engine_revision"),
        ({"enable_chunked_prefill": "true"}, Outcome.MAPPED, "runtime.enable_chunked_context"),
        ({"enable_prefix_caching": "true"}, Outcome.MAPPED, "runtime.enable_kv_cache_reuse"),
        ({"max_model_len": "8192"}, Outcome.MAPPED, "runtime.llm_args.max_seq_len"),
        ({"tool_call_parser": "llama3_json"}, Outcome.MAPPED, "serving.tool_parser"),
        ({"enable_auto_tool_choice": "true"}, Outcome.NOT_NEEDED, "choose by themselves"),
        ({"event_buffer_max_size": "9"}, Outcome.NOT_NEEDED, "dynamo --kv-events"),
    ],
)
def test_other_options_of_a_checkpoint(
    options: dict[str, str], outcome: Outcome, part: str
) -> None:
    (name,) = options
    imported = converted(model_id="org/model", backend="pytorch", **options)
    (row,) = [row for row in imported.rows if row.spelling == f"option.{name}"]
    assert row.outcome is outcome
    assert part in row.detail
    settings = parse_settings({"model_metadata": imported.metadata})
    assert with_settings(inspect_config(llama(), listing()), settings).llm_args


@pytest.mark.parametrize("model", ["org/model", "s3://bucket/engines"])
@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({"attn_backend": "TRTLLM"}, Outcome.NOT_NEEDED),
        ({"backend": "tensorrt"}, Outcome.NOT_NEEDED),
        ({"backend": "transformers"}, Outcome.UNSUPPORTED),
        ({"enable_attention_dp": "false"}, Outcome.NOT_NEEDED),
        ({"enable_attention_dp": "true"}, Outcome.UNSUPPORTED),
        ({"moe_expert_parallel_size": "2"}, Outcome.UNSUPPORTED),
    ],
)
def test_an_engine_has_no_options_of_a_checkpoint(
    options: dict[str, str], outcome: Outcome, model: str
) -> None:
    (name,) = options
    imported = converted(model_id=model, **options)
    assert outcomes(imported)[name] is outcome
    assert "runtime" not in imported.metadata


def test_no_text_says_that_only_engines_are_served() -> None:
    texts = [option.reason for option in OPTIONS.values()]
    texts.append((ROOT / "docs/lmi.md").read_text(encoding="utf-8"))
    assert not [text for text in texts if "only engines" in text]


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_targets_exist(option: Any) -> None:
    sections: dict[str, type[BaseModel]] = {"build": Build, "serving": Serving}
    for target in filter(None, (option.target, option.prebuilt, option.checkpoint)):
        first, _, rest = target.partition(".")
        assert first in Settings.model_fields
        if first in sections:
            assert rest.split(".")[0] in sections[first].model_fields


def test_lmis_quick_start(tmp_path: Path) -> None:
    """Import the starter configuration of the user guide for eight GPUs."""
    text = """\
engine=MPI
option.tensor_parallel_degree=max
option.rolling_batch=trtllm
option.model_id=meta-llama/Llama-2-70b-hf
# Adjust the following based on model size and instance type
option.max_rolling_batch_size=64
option.max_input_len=1024 # default is 512
option.max_output_len=512
"""
    imported = convert_options(collect_options(read_lines(text, "x")), gpus=8)
    assert imported.metadata == {
        "tensor_parallelism": 8,
        "build": {
            "checkpoint_repository": "meta-llama/Llama-2-70b-hf",
            "max_batch_size": 64,
            "max_input_len": 1024,
            "max_output_len": 512,
        },
    }


def test_the_same_from_variables() -> None:
    text = """\
HF_MODEL_ID=meta-llama/Llama-2-70b-hf
TENSOR_PARALLEL_DEGREE=max
OPTION_ROLLING_BATCH=trtllm
export OPTION_MAX_ROLLING_BATCH_SIZE="64"
OPTION_MAX_INPUT_LEN=1024
OPTION_MAX_OUTPUT_LEN=512
"""
    imported = convert_options(collect_options(read_lines(text, "x")), gpus=8)
    assert imported.metadata["tensor_parallelism"] == 8
    assert imported.metadata["build"]["max_output_len"] == 512


def test_prebuilt_engines() -> None:
    """Import the two-rank engines in S3 of the manual conversion guide."""
    text = """\
engine=Python
option.mpi_mode=true
option.model_id=s3://lmi-llm/trtllm/0.12.0/baichuan-13b-tp2/
option.tensor_parallel_degree=2
option.max_rolling_batch_size=64
option.dtype=fp16
"""
    imported = convert_options(collect_options(read_lines(text, "x")), None)
    assert imported.metadata == {
        "engine_repository": "s3://lmi-llm/trtllm/0.12.0/baichuan-13b-tp2/",
        "tensor_parallelism": 2,
        "runtime": {"max_batch_size": 64},
    }
    assert outcomes(imported)["dtype"] is Outcome.NOT_NEEDED


def test_artifacts_beside_the_properties() -> None:
    imported = converted(mpi_mode="true", tensor_parallel_degree="2")
    assert imported.metadata["engine_repository"] == "/opt/ml/model"


def test_a_bucket_with_a_checkpoint() -> None:
    imported = converted(model_id="s3://bucket/llama", quantize="fp8")
    assert imported.metadata == {
        "build": {
            "checkpoint_repository": "s3://bucket/llama",
            "quantization": {"method": "fp8"},
        }
    }


def test_precedence() -> None:
    values = {
        "SM_NUM_GPUS": "8",
        "TENSOR_PARALLEL_DEGREE": "4",
        "OPTION_TENSOR_PARALLEL_DEGREE": "2",
        "option.tensor_parallel_degree": "1",
    }
    for used in reversed(list(values)):
        (given,) = collect_options(values)
        assert given.spelling == used
        del values[used]


@pytest.mark.parametrize(
    ("options", "outcome", "part"),
    [
        ({"rolling_batch": "disable"}, Outcome.UNSUPPORTED, "only auto and trtllm"),
        ({"rolling_batch": "trtllm"}, Outcome.NOT_NEEDED, "batched in flight"),
        ({"output_formatter": "sse"}, Outcome.UNSUPPORTED, "only json"),
        ({"tensor_parallel_degree": "max"}, Outcome.UNSUPPORTED, "--gpus"),
        ({"max_draft_len": "20"}, Outcome.UNSUPPORTED, "draft models are not"),
        ({"smoothquant_alpha": "0.5"}, Outcome.NOT_NEEDED, "smoothquant only"),
        ({"nothing_of_lmi": "1"}, Outcome.UNKNOWN, "unknown to LMI's"),
        ({"quantize": "awq"}, Outcome.MAPPED, "build.quantization.method"),
    ],
)
def test_every_option_has_a_reason(options: dict[str, str], outcome: Outcome, part: str) -> None:
    (name,) = options
    imported = converted(**BUILDS, **options)
    (row,) = [row for row in imported.rows if row.spelling == f"option.{name}"]
    assert row.outcome is outcome
    assert part in row.detail


def test_max_is_divided_by_the_stages() -> None:
    imported = converted(8, **BUILDS, tensor_parallel_degree="max", pipeline_parallel_degree="2")
    assert imported.metadata["tensor_parallelism"] == 4
    assert imported.metadata["pipeline_parallelism"] == 2


def test_defaults_of_lmi() -> None:
    build = converted(**BUILDS, max_output_len="512", quantize="awq", calib_size="512")
    assert build.metadata["build"]["max_input_len"] == 1024
    assert build.metadata["build"]["quantization"]["calib_size"] == 32


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"max_input_len": "many"}, "option.max_input_len is 'many'; it must be a number"),
        ({"use_fused_mlp": "yes"}, "it must be true or false"),
        ({"dtype": "int3"}, "it must be one of fp16"),
    ],
)
def test_invalid_values_are_named(options: dict[str, str], part: str) -> None:
    with pytest.raises(SettingsError, match=part):
        converted(**BUILDS, **options)


def test_the_command_writes_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, output = tmp_path / "serving.properties", tmp_path / "config.yaml"
    file.write_text(
        "option.model_id=s3://bucket/engines\noption.tensor_parallel_degree=2\nHF_TOKEN=hf_abc\n"
        "OPTION_TENSOR_PARALLEL_DEGREE=4\n"
    )
    command = ["import-lmi", str(file), "--truss", str(ROOT), "--output", str(output)]
    assert main(command) == 0
    config = yaml.safe_load(output.read_text())
    assert config["resources"]["accelerator"] == "H100:2"
    assert config["base_image"] == yaml.safe_load((ROOT / "config.yaml").read_text())["base_image"]
    assert parse_settings(config).engine_repository == "s3://bucket/engines"
    report = capsys.readouterr().err
    assert "option.tensor_parallel_degree=2 → tensor_parallelism" in report
    assert "overridden, so ignored: OPTION_TENSOR_PARALLEL_DEGREE" in report
    assert "hf_abc" not in report + output.read_text()
    assert main(command) == 2
    assert "exists; name a new file" in capsys.readouterr().err
    assert main([*command[:-1], str(output / "below")]) == 2
    assert f"--output {output / 'below'} cannot be written (" in capsys.readouterr().err


def test_the_command_reads_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_MODEL_ID", "org/model")
    monkeypatch.setenv("OPTION_DTYPE", "bf16")
    assert main(["import-lmi", "--environment", "--truss", str(ROOT)]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["model_metadata"]["build"] == {
        "checkpoint_repository": "org/model",
        "dtype": "bfloat16",
    }
    assert config["resources"]["accelerator"] == "H100"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no LMI options to import"),
        ("option.model_id", "line 1 is not key=value"),
        ("option.model_id=a/b\noption.max_input_len=0\n", "max_input_len is 0"),
        ("option.model_id=/m\noption.batch_scheduler_policy=x\n", "batch_scheduler_policy is 'x'"),
    ],
)
def test_invalid_inputs_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, part: str
) -> None:
    file = tmp_path / "serving.properties"
    file.write_text(text)
    assert main(["import-lmi", str(file), "--truss", str(ROOT)]) == 2
    assert part in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import-lmi", "/nowhere", "--truss", str(ROOT)]) == 2
    assert "/nowhere cannot be read" in capsys.readouterr().err
