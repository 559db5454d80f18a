"""Baseten's Engine-Builder: `trt_llm` of config.yaml, in the form of both inference stacks.

Source: `truss/base/trt_llm_config.py` in truss 0.18.35, and basetenlabs/truss-examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from trtllm_workbench.importers.rules import (
    TOP,
    ConversionResult,
    Given,
    Kind,
    OptionRule,
    Refused,
    RuleTable,
    WordMap,
    apply_rules,
    flag,
    json_value,
    not_needed,
    unsupported,
)
from trtllm_workbench.importers.trtllm_serve import LLM, TOOL_PARSERS, llm_rules, of_release

_BUILD = "trt_llm.build."
_RUNTIME = "trt_llm.runtime."
_PATCH = f"{_RUNTIME}patch_kwargs."
_REPOSITORY = f"{_BUILD}checkpoint_repository."
_MODEL_CACHE = "/app/model_cache"
_REVISION = f"{_PATCH}model_path (revision)"
_FOUR_BITS = (
    "the build has no FP4: serve a checkpoint with NVFP4 weights, such as nvidia/…-FP4, as "
    "engine_repository"
)
_DRAFTS = (
    "engines of this build have no drafts; a checkpoint as engine_repository has "
    "runtime.llm_args.speculative_config, NGram among others"
)
_ADAPTERS = "engines of this build have no adapters; a checkpoint has `lora_adapters`"
_ROOMS = "requests are admitted by the KV cache's room"
_BRITON = "a switch inside Baseten's server"


def _repository(text: str) -> str:
    """Convert `SOURCE:repo`."""
    source, _, name = text.partition(":")
    if source.upper() == "HF":
        return name
    if source.upper() == "S3":
        return name if name.startswith("s3://") else f"s3://{name}"
    raise Refused(
        f"the source {source} is not read: let `weights` of config.yaml mount it, and name that "
        "folder as engine_repository"
    )


_METHODS = WordMap(
    {
        "no_quant": None,
        "fp8": "fp8",
        "fp8_kv": "fp8",
        "weights_int8": "int8_weight_only",
        "weights_kv_int8": "int8_weight_only",
        "weights_int4": "int4_weight_only",
        "weights_int4_kv_int8": "int4_weight_only",
        "smooth_quant": "smoothquant",
    },
    refused=_FOUR_BITS,
)
_CACHES = {"fp8_kv": "fp8", "weights_kv_int8": "int8", "weights_int4_kv_int8": "int8"}
_CACHE_OF_METHOD = f"{_BUILD}quantization_type (KV cache)"


def _build(
    name: str, target: str, convert: Callable[[str], object] = str, checkpoint: str = ""
) -> OptionRule:
    return OptionRule(
        name=_BUILD + name, target=f"build.{target}", convert=convert, checkpoint=checkpoint
    )


def _runtime(name: str, target: str, convert: Callable[[str], object] = str) -> OptionRule:
    return OptionRule(name=_RUNTIME + name, target=target, convert=convert)


BUILD = (
    *not_needed("only decoder models are served", f"{_BUILD}base_model", only=("decoder",)),
    OptionRule(
        name=f"{_REPOSITORY}repo",
        target="build.checkpoint_repository",
        checkpoint="engine_repository",
        convert=_repository,
    ),
    OptionRule(
        name=f"{_REPOSITORY}revision",
        target="build.checkpoint_revision",
        checkpoint="engine_revision",
    ),
    *not_needed("part of the repository's name", f"{_REPOSITORY}source"),
    *not_needed("the secret is `hf_access_token`", f"{_REPOSITORY}runtime_secret_name"),
    _build("max_seq_len", "max_seq_len", int),
    _build("max_batch_size", "max_batch_size", int),
    _build("max_num_tokens", "max_num_tokens", int),
    _build("max_beam_width", "max_beam_width", int),
    _build("quantization_type", "quantization.method", _METHODS),
    _build("quantization_type (KV cache)", "kv_cache_dtype"),
    OptionRule(
        name=f"{_BUILD}quantization_config.calib_size",
        target="build.quantization.calib_size",
        convert=int,
        methods=("fp8",),
    ),
    *unsupported(
        "TensorRT-LLM's quantize.py has its own samples",
        f"{_BUILD}quantization_config.calib_dataset",
        f"{_BUILD}quantization_config.calib_max_seq_length",
    ),
    OptionRule(name=f"{_BUILD}tensor_parallel_count", target="tensor_parallelism", convert=int),
    OptionRule(name=f"{_BUILD}pipeline_parallel_count", target="pipeline_parallelism", convert=int),
    *not_needed(
        "GPUs = tensor_parallelism × pipeline_parallelism",
        f"{_BUILD}sequence_parallel_count",
        only=("1",),
    ),
    *not_needed(
        "a checkpoint has runtime.llm_args.moe_expert_parallel_size",
        f"{_BUILD}moe_expert_parallel_option",
        only=("-1",),
    ),
    *not_needed(
        "the KV cache is always paged",
        f"{_BUILD}plugin_configuration.paged_kv_cache",
        only=("true",),
    ),
    _build("plugin_configuration.use_paged_context_fmha", "use_paged_context_fmha", flag),
    *not_needed(
        "Baseten sets it by itself; build.use_fp8_context_fmha is its counterpart",
        f"{_BUILD}plugin_configuration.use_fp8_context_fmha",
    ),
    *not_needed("the build runs on the GPUs of the deployment", f"{_BUILD}num_builder_gpus"),
    *not_needed("nothing is built from a checkpoint", f"{_BUILD}skip_build_result"),
    *not_needed("build.dtype sets the type", f"{_BUILD}strongly_typed"),
    *not_needed(
        "the build does not support it",
        *(f"{_BUILD}max_prompt_embedding_table_size", f"{_BUILD}gather_all_token_logits"),
        only=("0", "false"),
    ),
    *unsupported(_DRAFTS, f"{_BUILD}speculator.*"),
    *unsupported(_ADAPTERS, f"{_BUILD}lora_adapters.*", f"{_BUILD}lora_configuration.*"),
)
RUNTIME = (
    *not_needed("v1 becomes `build`, v2 a checkpoint", "trt_llm.inference_stack"),
    _runtime("kv_cache_free_gpu_mem_fraction", "runtime.kv_cache_free_gpu_mem_fraction", float),
    _runtime("kv_cache_host_memory_bytes", "runtime.kv_cache_host_memory_bytes", int),
    _runtime("enable_chunked_context", "runtime.enable_chunked_context", flag),
    _runtime("batch_scheduler_policy", "runtime.batch_scheduler_policy"),
    *(
        _runtime(f"lora_cache_{name}", f"runtime.lora_cache_{name}", convert)
        for name, convert in (
            ("max_adapter_size", int),
            ("optimal_adapter_size", int),
            ("gpu_memory_fraction", float),
            ("host_memory_bytes", int),
        )
    ),
    _runtime("request_default_max_tokens", "generation.max_tokens", int),
    *not_needed("a request may name any `model`; one is served", f"{_RUNTIME}served_model_name"),
    *not_needed(_ROOMS, f"{_RUNTIME}total_token_limit", "trt_llm.total_token_limit"),
    *unsupported("only text generation is served", f"{_RUNTIME}webserver_default_route"),
    _runtime("max_seq_len", f"{LLM}.max_seq_len", int),
    _runtime("max_batch_size", "runtime.max_batch_size", int),
    _runtime("max_num_tokens", f"{LLM}.max_num_tokens", int),
    _runtime("tensor_parallel_size", "tensor_parallelism", int),
    _runtime("enable_chunked_prefill", "runtime.enable_chunked_context", flag),
    *not_needed("the image is chosen for what is served", "trt_llm.version_overrides.*"),
    *unsupported(
        "an older form; write it as `build` and `runtime` of `trt_llm`",
        *("trt_llm.target.*", "trt_llm.draft.*", "trt_llm.plugin_configuration.*"),
    ),
)
PATCHES = (
    OptionRule(name=f"{_PATCH}model_path", target="engine_repository"),
    OptionRule(name=_REVISION, target="engine_revision"),
    OptionRule(
        name=f"{_PATCH}tool_call_parser", target="serving.tool_parser", convert=TOOL_PARSERS
    ),
    OptionRule(name=f"{_PATCH}trust_remote_code", target="trust_remote_code", convert=flag),
    *not_needed("checkpoints are served by the PyTorch backend", f"{_PATCH}backend"),
    *not_needed("the chat template says so", f"{_PATCH}chat_processor"),
    *not_needed("runtime.llm_args.max_input_len bounds it", f"{_PATCH}tokenizer_limit_length"),
    *not_needed(
        "end tokens are read in the checkpoint; a request sets `stop_words`",
        f"{_PATCH}model_level_stop_words",
    ),
    *unsupported(
        "runtime.llm_args.enable_autotuner is the name",
        f"{_PATCH}autotuner_enabled",
        f"{_PATCH}enable_autotune",
    ),
    *unsupported(
        "runtime.llm_args.cuda_graph_config.enable_padding is the name",
        f"{_PATCH}cuda_graph_config.padding_enabled",
    ),
    *(
        replace(
            rule,
            name=_PATCH + name,
            aliases=tuple(_PATCH + alias for alias in rule.aliases),
        )
        for name, rule in llm_rules().items()
    ),
)
TOP_LEVEL = (
    OptionRule(name="model_name", target=f"{TOP}model_name"),
    OptionRule(name="description", target=f"{TOP}description"),
    OptionRule(name="resources.accelerator", target=f"{TOP}resources.accelerator"),
    OptionRule(name="resources.node_count", target=f"{TOP}resources.node_count", convert=int),
    *not_needed(
        "the accelerator brings them",
        *(f"resources.{name}" for name in ("cpu", "memory", "use_gpu", "instance_type")),
    ),
    OptionRule(name="environment_variables.*", target=f"{TOP}environment_variables.*"),
    *not_needed(
        _BRITON,
        "environment_variables.ENABLE_EXECUTOR_API",
        "environment_variables.BAD_TOKEN_ID_SEQ_CHECK_ENABLED",
    ),
    OptionRule(name="model_metadata.tags", target="tags", convert=json_value),
    OptionRule(name="model_metadata.repo_id", target="repo_id"),
    OptionRule(
        name="model_metadata.example_model_input",
        target="example_model_input",
        convert=json_value,
    ),
    OptionRule(name="model_metadata.avatar_url", target="avatar_url"),
    OptionRule(name="model_metadata.cover_image_url", target="cover_image_url"),
    *unsupported("not one of Baseten's keys; remove it", "model_metadata.*"),
    *not_needed(
        "a value belongs in the workspace; config.yaml names `hf_access_token`", "secrets.*"
    ),
    OptionRule(
        name="runtime.predict_concurrency",
        target=f"{TOP}runtime.predict_concurrency",
        convert=int,
    ),
    OptionRule(
        name="runtime.health_checks.*", target=f"{TOP}runtime.health_checks.*", convert=json_value
    ),
    *unsupported(
        "answers are streamed over HTTP", "runtime.is_websocket_endpoint", "runtime.transport.*"
    ),
    OptionRule(name="weights", target=f"{TOP}weights", convert=json_value),
    *not_needed("the server fetches what it serves", "model_cache"),
    *not_needed(
        "the image and this Truss bring their own",
        *("python_version", "base_image.*", "model_module_dir", "model_class_name", "data_dir"),
        *("requirements_file", "bundled_packages_dir", "description_file", "model_framework"),
    ),
    *not_needed(
        "your own code's; add them to the new Truss if it needs them",
        *("requirements", "system_packages", "build_commands", "external_package_dirs"),
        *("environment_variables", "secrets", "model_metadata", "examples_filename"),
    ),
)
SECTIONS = {
    "`trt_llm.build`": BUILD,
    "`trt_llm.runtime`": RUNTIME,
    "`trt_llm.runtime.patch_kwargs`": PATCHES,
    "The rest of config.yaml": TOP_LEVEL,
}
TABLE = RuleTable("Baseten", SECTIONS)


def convert(given: Sequence[Given], version: str | None) -> ConversionResult:
    """Convert config.yaml; None as version takes arguments of every release."""
    given = [
        replace(each, name=each.name.replace(".gated_features.", ".patch_kwargs.", 1))
        for each in given
    ]
    values = {option.name: option.value for option in given}
    is_v2 = values.get("trt_llm.inference_stack") == "v2"
    source = values.get(f"{_REPOSITORY}source", "HF")
    options = [_named(option, source) for option in given]
    quantization = values.get(f"{_BUILD}quantization_type", "")
    if not is_v2 and quantization in _CACHES:
        spelling = f"{_BUILD}quantization_type={quantization}"
        options.append(Given(_CACHE_OF_METHOD, spelling, _CACHES[quantization]))
    plain = {name.removeprefix(_PATCH): rule for name, rule in TABLE.rules.items()}
    changed = of_release(plain, version)
    rules = dict(TABLE.rules)
    for name, rule in changed.items():
        if _PATCH + name in rules:
            rules[_PATCH + name] = replace(rule, name=_PATCH + name)
    options = _cached(options, values)
    if f"{_PATCH}model_path" in values:
        for rule in not_needed(
            "patch_kwargs.model_path names the folder",
            *(f"{_REPOSITORY}repo", f"{_REPOSITORY}revision"),
        ):
            rules[rule.name] = rule
    if is_v2 and quantization == "no_quant":
        (rule,) = not_needed("the checkpoint's own", f"{_BUILD}quantization_type")
        rules[rule.name] = rule
    kind: Kind = "checkpoint" if is_v2 else "build"
    return apply_rules(options, rules, kind, title=TABLE.title)


def _named(option: Given, source: str) -> Given:
    if option.name != f"{_REPOSITORY}repo":
        return option
    return replace(option, value=f"{source}:{option.value}", text=option.value)


def _cached(options: Sequence[Given], values: Mapping[str, str]) -> list[Given]:
    """Replace a folder of `model_cache` with the repository that Baseten placed there."""
    entries = json_value(values.get("model_cache", "[]"))
    folders = {
        f"{_MODEL_CACHE}/{entry.get('volume_folder')}": entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and entry.get("repo_id")
    }
    result = []
    for option in options:
        entry = folders.get(option.value.rstrip("/"))
        if option.name == f"{_PATCH}model_path" and entry is not None:
            result.append(replace(option, value=str(entry["repo_id"]), text=option.value))
            if revision := entry.get("revision"):
                result.append(Given(_REVISION, "model_cache.revision", str(revision)))
        else:
            result.append(option)
    return result
