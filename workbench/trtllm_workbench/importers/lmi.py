"""Rules for all options of LMI's TensorRT-LLM containers.

Sources: LMI's "TensorRT-LLM Engine User Guide" and "Configurations" for 0.25 to 0.36
(https://docs.djl.ai/master/docs/serving/serving/docs/lmi/), and, from 0.33 on, the arguments
that its handler passes to TensorRT-LLM's LLM API.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trtllm_workbench.importers.rules import (
    ConversionResult,
    Given,
    Kind,
    OptionRule,
    Outcome,
    Refused,
    Row,
    RuleTable,
    WordMap,
    apply_rules,
    comma_separated,
    default_object,
    flag,
    inverted_flag,
    not_needed,
    token_count,
    unsupported,
)
from trtllm_workbench.importers.trtllm_serve import (
    EVENTS_NOT_NEEDED,
    REASONING_PARSERS,
    TOOL_PARSERS,
)

MOUNTED_MODEL = "/opt/ml/model"
"""SageMaker's folder for the artifacts of a serving.properties."""

MOUNTS = (MOUNTED_MODEL, ".")
"""Names of the folder that contains a serving.properties."""

PYTORCH = "pytorch"
"""The value of `backend` with which LMI serves a checkpoint without a build."""

_DEGREE = "tensor_parallel_degree"
_INPUT_LEN = 1024
"""LMI's default max_input_len if only max_output_len is set."""
_FOLDERS = ("s3://", "/", ".", "~")
_BUILD = "build."
_PYTORCH_ONLY = "LMI reads it with `backend=pytorch` only"
_LLM = "runtime.llm_args"
_KV_CACHE = f"{_LLM}.kv_cache_config"
_NOT_BUILT_IN = "the build does not support it"
_BUILDER_DECIDES = "the build sets it"

_DTYPES = WordMap(
    {
        **dict.fromkeys(("fp16", "float16"), "float16"),
        **dict.fromkeys(("bf16", "bfloat16"), "bfloat16"),
        **dict.fromkeys(("fp32", "float32"), "float32"),
        "auto": "auto",
    }
)
_CHATGLM = WordMap(
    {
        "chatglm_6b": "chatglm",
        **dict.fromkeys(("chatglm2_6b", "chatglm2_6b_32k"), "chatglm2"),
        **dict.fromkeys(("chatglm3_6b", "chatglm3_6b_base", "chatglm3_6b_32k"), "chatglm3"),
        "glm_10b": "glm",
        "unspecified": None,
        **{name: name for name in ("glm", "chatglm", "chatglm2", "chatglm3", "glm4")},
    }
)
_ALGORITHMS = WordMap(
    {
        "fp8": "fp8",
        "w8a16": "int8_weight_only",
        "w4a16": "int4_weight_only",
        "w4a16_awq": "awq",
        "w8a8_sq_per_channel": "smoothquant",
        "none": None,
    }
)
_METHODS = WordMap({"smoothquant": "smoothquant", "awq": "awq", "fp8": "fp8"})


def _degree(text: str) -> int:
    if text.lower() == "max":
        raise Refused("give the number of GPUs with --gpus")
    return int(text)


def _build(
    name: str, convert: Callable[[str], object] = str, target: str = "", checkpoint: str = ""
) -> OptionRule:
    return OptionRule(
        name=name, target=f"build.{target or name}", convert=convert, checkpoint=checkpoint
    )


def _runtime(name: str, convert: Callable[[str], object] = str, target: str = "") -> OptionRule:
    return OptionRule(name=name, target=f"runtime.{target or name}", convert=convert)


def _either(name: str, convert: Callable[[str], object], target: str = "") -> OptionRule:
    """Map to the build or, for a prebuilt engine, to the runtime, under the same name."""
    key = target or name
    return OptionRule(name=name, target=f"build.{key}", prebuilt=f"runtime.{key}", convert=convert)


def _not_needed(name: str, reason: str, *only: str) -> OptionRule:
    return not_needed(reason, name, only=only)[0]


def _of_checkpoints(
    name: str, target: str, convert: Callable[[str], object] = str, *only: str, reason: str = ""
) -> OptionRule:
    """Map for a checkpoint; an engine needs none, or only the values in `only`."""
    return OptionRule(
        name=name,
        outcome=Outcome.NOT_NEEDED,
        checkpoint=target,
        convert=convert,
        only=only,
        reason=reason or _PYTORCH_ONLY,
    )


def _quantization(
    name: str, target: str, convert: Callable[[str], object], *methods: str
) -> OptionRule:
    path = f"build.quantization.{target}"
    return OptionRule(name=name, target=path, convert=convert, methods=methods)


SERVER = (
    _not_needed("engine", "the engine's folder determines the backend"),
    _not_needed("mpi_mode", "several ranks always start under mpirun"),
    _not_needed("rolling_batch", "requests are always batched in flight", "auto", "trtllm"),
    _not_needed("batch_size", "requests are always batched in flight", "1"),
    _not_needed("enable_streaming", "a request sets `stream`"),
    _not_needed("async_mode", "requests always run concurrently"),
    OptionRule(
        name="model_id",
        target="build.checkpoint_repository",
        prebuilt="engine_repository",
        operator_says="ENGINE",
    ),
    OptionRule(
        name="revision",
        target="build.checkpoint_revision",
        prebuilt="engine_revision",
        operator_says="ENGINE@REVISION",
    ),
    _not_needed("hf_token", "set the secret `hf_access_token` if a repository needs it"),
    _not_needed("task", "only text generation is served", "text-generation"),
    OptionRule(
        name="trust_remote_code",
        target="trust_remote_code",
        convert=flag,
        operator_says="--trust-remote-code",
    ),
    OptionRule(name=_DEGREE, target="tensor_parallelism", convert=_degree),
    OptionRule(name="pipeline_parallel_degree", target="pipeline_parallelism", convert=int),
    OptionRule(name="pipeline_parallel_size", target="pipeline_parallelism", convert=int),
    _either("max_rolling_batch_size", int, "max_batch_size"),
    _not_needed("max_rolling_batch_prefill_tokens", "TensorRT-LLM's handler never read it"),
    OptionRule(name="job_queue_size", target="serving.queue_limit", convert=int),
    _not_needed("output_formatter", "a request sets `stream` or `output_formatter`", "json"),
    _not_needed("tgi_compat", "responses to huggingface_hub's client have TGI's shapes"),
    _not_needed(
        "entryPoint",
        "one entry point serves all",
        *("djl_python.tensorrt_llm", "djl_python.lmi_trtllm.trtllm_async_service"),
    ),
    _not_needed("parallel_loading", "ranks always load at once"),
    OptionRule(name="model_loading_timeout", target="serving.start_timeout_s", convert=float),
    OptionRule(name="predict_timeout", target="serving.request_timeout_s", convert=float),
    *unsupported("only decoder models are served", "trtllm_python_backend"),
    _not_needed("backend", "`pytorch` serves the checkpoint itself", PYTORCH, "tensorrt"),
)

ENGINE = (
    _build("dtype", _DTYPES, checkpoint=f"{_LLM}.dtype"),
    _build("max_input_len", int, checkpoint=f"{_LLM}.max_input_len"),
    OptionRule(
        name="max_output_len",
        target="build.max_output_len",
        convert=int,
        reason="as before LMI 0.30; later it meant `max_seq_len`",
    ),
    _build("max_seq_len", int, checkpoint=f"{_LLM}.max_seq_len"),
    _build("max_num_tokens", int, checkpoint=f"{_LLM}.max_num_tokens"),
    _build("opt_num_tokens", int),
    _either("max_batch_size", int),
    _either("max_beam_width", int),
    _build("tokens_per_block", int, checkpoint=f"{_KV_CACHE}.tokens_per_block"),
    _build("use_custom_all_reduce", flag),
    _build("use_paged_context_fmha", flag),
    _build("use_fp8_context_fmha", flag),
    _build("context_fmha_fp32_acc", flag),
    _either("multi_block_mode", flag),
    _build("use_fused_mlp", flag),
    _build("gemm_plugin"),
    _build("logits_dtype", _DTYPES),
    _build("gather_context_logits", flag),
    _build("gather_generation_logits", flag),
    _build("rotary_base", float),
    _build("rotary_dim", int),
    _build("rotary_scaling_type", str, "rotary_scaling.type"),
    _build("rotary_scaling_factor", float, "rotary_scaling.factor"),
    _build("baichuan_model_version"),
    _build("chatglm_model_version", _CHATGLM),
    _build("gpt_model_version"),
    _build("load_by_shard", flag),
    _build("num_engine_workers", int, "workers"),
    _not_needed("num_checkpoint_workers", "`build.workers` is for both steps"),
    _not_needed("trtllm_checkpoint_path", "the build caches its steps"),
    _not_needed("enable_build_cache", "finished builds are always cached"),
    *unsupported("draft models are not supported", "max_draft_len", "speculative_decoding_mode"),
    *unsupported(
        _NOT_BUILT_IN,
        *("max_prompt_embedding_table_size", "weight_sparsity", "weight_streaming"),
        *("max_encoder_input_len", "build_config", "context_parallel_size"),
    ),
    *(
        OptionRule(
            name=name,
            outcome=Outcome.UNSUPPORTED,
            checkpoint=f"{_LLM}.{name}",
            convert=int,
            reason=_NOT_BUILT_IN,
        )
        for name in ("moe_tensor_parallel_size", "moe_expert_parallel_size")
    ),
    *(
        _not_needed(name, _BUILDER_DECIDES)
        for name in ("kv_cache_type", "profiling_verbosity", "input_timing_cache", "monitor_memory")
    ),
    _of_checkpoints("load_format", f"{_LLM}.load_format", str, "auto", reason=_BUILDER_DECIDES),
    _not_needed("auto_parallel", _BUILDER_DECIDES, "false"),
    _not_needed("embedding_parallel_mode", _BUILDER_DECIDES, "SHARDING_ALONG_VOCAB"),
)

QUANTIZATION = (
    _build("quantize", _METHODS, "quantization.method"),
    _build("quant_algo", _ALGORITHMS, "quantization.method"),
    _build(
        "kv_cache_quant_algo",
        WordMap({"int8": "int8", "fp8": "fp8"}),
        "kv_cache_dtype",
        checkpoint=f"{_KV_CACHE}.dtype",
    ),
    _quantization("smoothquant_alpha", "alpha", float, "smoothquant"),
    _quantization("smoothquant_val", "alpha", float, "smoothquant"),
    _quantization("smoothquant_per_token", "per_token", flag, "smoothquant"),
    _quantization("smoothquant_per_channel", "per_channel", flag, "smoothquant"),
    _not_needed("multi_query_mode", "determined by the checkpoint's number of key-value heads"),
    _quantization("awq_format", "format", str, "awq"),
    _quantization("q_format", "format", str, "awq"),
    _quantization("awq_calib_size", "calib_size", int, "awq"),
    _quantization("calib_size", "calib_size", int, "awq", "fp8"),
    _quantization("calib_batch_size", "calib_batch_size", int, "awq", "fp8"),
    _quantization("awq_block_size", "block_size", int, "awq"),
    _quantization("group_size", "block_size", int, "awq"),
    *unsupported(
        _NOT_BUILT_IN,
        *("clamp_val", "use_meta_recipe", "has_zero_point", "pre_quant_scales", "exclude_modules"),
        *("device", "calib_dataset", "calib_batches", "calib_max_seq_length", "random_seed"),
        "tokenizer_max_seq_length",
    ),
)

RUNTIME = (
    _runtime("batch_scheduler_policy"),
    _runtime("kv_cache_free_gpu_mem_fraction", float),
    _runtime("free_gpu_memory_fraction", float, "kv_cache_free_gpu_mem_fraction"),
    _runtime("max_num_sequences", int, "max_batch_size"),
    _not_needed("enable_trt_overlap", "it has had no effect since TensorRT-LLM 0.10"),
    _runtime("enable_kv_cache_reuse", flag),
    _runtime("enable_block_reuse", flag, "enable_kv_cache_reuse"),
    _runtime("max_tokens", int, "max_tokens_in_paged_kv_cache"),
    _runtime("max_attention_window", comma_separated, "max_attention_window_size"),
    _runtime("sink_token_length", int),
    _runtime("host_cache_size", int, "kv_cache_host_memory_bytes"),
    _runtime("onboard_blocks", flag, "kv_cache_onboard_blocks"),
    _runtime("cross_kv_cache_fraction", float),
    _runtime("enable_chunked_prefill", flag, "enable_chunked_context"),
    _runtime("guided_decoding_backend"),
    _runtime("normalize_log_probs", flag),
    OptionRule(name="tokenizer", target="tokenizer_repository", operator_says="--tokenizer REPO"),
    OptionRule(
        name="tokenizer_revision",
        target="tokenizer_revision",
        operator_says="--tokenizer REPO@REVISION",
    ),
    _not_needed("tokenizer_mode", "all tokenizers are of one kind", "auto"),
    _not_needed("skip_tokenizer_init", "the engine never sees text"),
    _of_checkpoints(
        "enable_attention_dp",
        f"{_LLM}.enable_attention_dp",
        flag,
        "false",
        reason="an engine's attention is never data-parallel",
    ),
    OptionRule(
        name="secondary_offload_min_priority",
        outcome=Outcome.UNSUPPORTED,
        checkpoint=f"{_KV_CACHE}.secondary_offload_min_priority",
        convert=int,
        reason="the engine's defaults apply",
    ),
    _not_needed("event_buffer_max_size", EVENTS_NOT_NEEDED),
    _of_checkpoints("enable_overlap_scheduler", f"{_LLM}.disable_overlap_scheduler", inverted_flag),
    _of_checkpoints("kv_cache_dtype", f"{_KV_CACHE}.dtype"),
    _of_checkpoints("attn_backend", f"{_LLM}.attn_backend"),
    _of_checkpoints("use_cuda_graph", f"{_LLM}.cuda_graph_config", default_object),
    _of_checkpoints("moe_backend", f"{_LLM}.moe_config.backend"),
)

OF_VLLM = (
    _build("max_model_len", token_count, "max_seq_len", checkpoint=f"{_LLM}.max_seq_len"),
    _runtime("enable_prefix_caching", flag, "enable_kv_cache_reuse"),
    OptionRule(name="tool_call_parser", target="serving.tool_parser", convert=TOOL_PARSERS),
    OptionRule(
        name="reasoning_parser", target="serving.reasoning_parser", convert=REASONING_PARSERS
    ),
    _not_needed("enable_auto_tool_choice", "requests with `tools` choose by themselves"),
    _not_needed("enable_reasoning", "reasoning is found with its parser"),
)
"""Options of LMI's container with vLLM. Source: djl-serving's vLLM user guide (0.33) and its issue
2757."""

SECTIONS = {
    "Server": SERVER,
    "Engine": ENGINE,
    "Quantization": QUANTIZATION,
    "Runtime": RUNTIME,
    "The container with vLLM": OF_VLLM,
}
TABLE = RuleTable("LMI", SECTIONS)
OPTIONS = TABLE.rules

_VARIABLES = {
    "HF_MODEL_ID": "model_id",
    "HF_REVISION": "revision",
    "HF_TOKEN": "hf_token",
    "HF_TASK": "task",
    "HF_MODEL_TRUST_REMOTE_CODE": "trust_remote_code",
    "HF_MODEL_QUANTIZE": "quantize",
    "TENSOR_PARALLEL_DEGREE": "tensor_parallel_degree",
    "SM_NUM_GPUS": "tensor_parallel_degree",
    "MAX_BATCH_SIZE": "max_rolling_batch_size",
    "MAX_BATCH_PREFILL_TOKENS": "max_rolling_batch_prefill_tokens",
    "MAX_CONCURRENT_REQUESTS": "job_queue_size",
    "CUDA_MEMORY_FRACTION": "kv_cache_free_gpu_mem_fraction",
    "MODEL_LOADING_TIMEOUT": "model_loading_timeout",
    "PREDICT_TIMEOUT": "predict_timeout",
}
"""Variables with special names; of two for one option, the earlier row takes precedence."""

INLINE_COMMENT = re.compile(r"\s#.*$")
_PREFIXES = ("OPTION_", "SERVING_")


def lmi_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name in _VARIABLES or name.startswith(_PREFIXES)
    }


def collect_options(values: Mapping[str, str]) -> list[Given]:
    """Collect each option once, in order of first mention; empty values count as not set."""
    found: dict[str, tuple[int, Given]] = {}
    for spelling, value in values.items():
        if not value:
            continue
        rank, name = _meaning(spelling)
        if name not in found or rank < found[name][0]:
            found[name] = (rank, Given(name, spelling, value))
    return [given for _, given in found.values()]


def overridden(values: Mapping[str, str], given: Iterable[Given]) -> list[str]:
    """List the spellings overridden by another one of the same option."""
    used = {option.spelling for option in given}
    return [spelling for spelling, value in values.items() if value and spelling not in used]


def _meaning(spelling: str) -> tuple[int, str]:
    """Return (precedence, option name); 0 takes precedence."""
    if spelling.startswith("option."):
        return 0, spelling.removeprefix("option.")
    if spelling.startswith("OPTION_"):
        return 1, _folded(spelling.removeprefix("OPTION_"))
    if spelling in _VARIABLES:
        return 2 + list(_VARIABLES).index(spelling), _VARIABLES[spelling]
    if spelling.startswith("SERVING_"):
        return 1, _folded(spelling.removeprefix("SERVING_"))
    return 0, spelling


def _folded(name: str) -> str:
    lower = name.lower()
    return "entryPoint" if lower == "entrypoint" else lower


def convert_options(
    given: Sequence[Given],
    gpus: int | None,
    *,
    of_repository: bool = False,
    beside_checkpoint: bool = False,
) -> ConversionResult:
    """Convert options.

    Args:
        given: each option once.
        gpus: number of GPUs of the machine; None if unknown.
        of_repository: the options come from a repository, not from the operator, so they can
            neither allow code to run nor specify another repository.
        beside_checkpoint: the options' folder contains a checkpoint.

    Raises:
        SettingsError: an option has an invalid value.
    """
    not_taken = [_not_taken(each) for each in given if of_repository and _is_operators(each)]
    if of_repository:
        given = [option for option in given if not _is_operators(option)]
    values = {option.name: option for option in given}
    kind = _kind(values, beside_checkpoint)
    if gpus is not None:
        given = [_with_gpus(option, values, gpus) for option in given]
    result = apply_rules(given, OPTIONS, kind, title=TABLE.title)
    if "model_id" not in values:
        result.metadata["engine_repository"] = MOUNTED_MODEL
    build: dict[str, Any] = result.metadata.get("build", {})
    if "max_output_len" in build:
        build.setdefault("max_input_len", _INPUT_LEN)
    return replace(result, rows=(*result.rows, *not_taken))


def _with_gpus(option: Given, values: Mapping[str, Given], gpus: int) -> Given:
    """Replace `tensor_parallel_degree=max` with its number."""
    if option.name != _DEGREE or option.value.lower() != "max":
        return option
    stages = values.get("pipeline_parallel_degree")
    count = int(stages.value) if stages and stages.value.isdecimal() else 1
    return replace(option, value=str(gpus // max(count, 1)), text=option.value)


def _is_operators(option: Given) -> bool:
    if option.name == "model_id" and is_mounted(option.value):
        return False
    return option.name in OPTIONS and bool(OPTIONS[option.name].operator_says)


def _not_taken(option: Given) -> Row:
    detail = f"only you choose it, with {OPTIONS[option.name].operator_says} of init"
    return Row(option.spelling, option.shown, Outcome.NOT_TAKEN, detail)


def is_mounted(model: str) -> bool:
    """Return True if `model_id` is the folder of its serving.properties, or one below it."""
    return any(model.rstrip("/") == mount or model.startswith(f"{mount}/") for mount in MOUNTS)


def _kind(values: Mapping[str, Given], beside_checkpoint: bool) -> Kind:
    """Return "build" if LMI would build: from a model on the Hub, or with build options.

    `dtype` alone decides nothing, because configurations of prebuilt engines contain it too.
    """
    if "backend" in values and values["backend"].value.lower() == PYTORCH:
        return "checkpoint"
    model = values.get("model_id")
    if model is not None:
        options = [OPTIONS[name] for name in values if name in OPTIONS and name != "dtype"]
        asked = any(each.target.startswith(_BUILD) and not each.prebuilt for each in options)
        if asked or not model.value.startswith(_FOLDERS):
            return "build"
    is_beside = model is None or model.value.rstrip("/") in MOUNTS
    return "checkpoint" if is_beside and beside_checkpoint else "engine"
