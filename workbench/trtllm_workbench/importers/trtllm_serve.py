"""`trtllm-serve`: its command line, and its YAML with arguments of `tensorrt_llm.LLM`.

Source: `tensorrt_llm/commands/serve.py` in NVIDIA/TensorRT-LLM, 1.0 to 1.3. The rules of the
arguments follow from `releases/llm_arguments.toml`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

from trtllm_truss.engines.checkpoint.argument_table import Argument
from trtllm_truss.engines.checkpoint.llm_args import LLM_ARGUMENTS
from trtllm_truss.engines.checkpoint.variants import DECODING_TYPES, DRAFT_MODEL, parse_drafts
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import describe_releases, rows_for
from trtllm_truss.settings.model import ReasoningParser, ToolParser
from trtllm_workbench.importers.rules import (
    ConversionResult,
    Given,
    OptionRule,
    Outcome,
    Refused,
    RuleTable,
    WordMap,
    apply_rules,
    flag,
    json_list,
    json_value,
    not_needed,
    switches,
    unsupported,
)

LLM = "runtime.llm_args"

_CONVERT: Mapping[str, Callable[[str], object]] = {
    **{"bool": flag, "int": int, "number": float, "text": str, "ints": json_list},
    **{"mapping": json_value, "any": json_value, "texts": json_list},
}


def drafts(text: str) -> object:
    """Parse speculative decoding; a draft model must be in the container already."""
    value = json_value(text)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("it must be an object")
    if value.get("decoding_type") not in DECODING_TYPES:
        raise Refused(f"a checkpoint has the kinds {', '.join(DECODING_TYPES)} only")
    for name in DRAFT_MODEL:
        if name in value and not str(value[name]).startswith("/"):
            raise Refused(
                "the engine downloads no draft model: let `weights` of config.yaml mount it, and "
                f"name its folder in runtime.llm_args.speculative_config.{name}"
            )
    try:
        return parse_drafts(value, None)
    except SettingsError as error:
        raise Refused(str(error).partition("runtime.")[2].rstrip(".")) from None


def _word(allowed: Sequence[str], field: str, renamed: Mapping[str, str]) -> WordMap:
    own = {word: word for word in (*allowed, "auto", "none")}
    refused = (
        f"there is no such parser; serving.{field} has {', '.join(own)}, of which auto recognizes "
        "the format in the chat template"
    )
    return WordMap({**own, **renamed}, refused=refused)


TOOL_PARSERS = _word(
    get_args(ToolParser),
    "tool_parser",
    {
        **dict.fromkeys(("openai", "gpt_oss", "gpt-oss"), "harmony"),
        **dict.fromkeys(("qwen3", "qwen25", "qwen", "granite4", "ernie45", "mimo"), "hermes"),
        **dict.fromkeys(("qwen3_xml", "seed_oss", "step3p5", "qwen3_5"), "qwen3_coder"),
        **dict.fromkeys(("glm4", "glm", "glm47", "poolside_v1", "laguna"), "glm45"),
        **dict.fromkeys(("kimi_k25", "kimi-k2"), "kimi_k2"),
        **dict.fromkeys(("deepseekv3", "deepseek-v3"), "deepseek_v3"),
        **dict.fromkeys(("deepseekv31", "deepseekv3.1", "deepseek_v3_1"), "deepseek_v31"),
        **dict.fromkeys(("deepseekv32", "deepseek_v4", "deepseekv4"), "deepseek_v32"),
        **dict.fromkeys(("deepseek_v41", "deepseekv41"), "deepseek_v32"),
        **dict.fromkeys(("minimax", "minimax-m2"), "minimax_m2"),
        **dict.fromkeys(("llama4_pythonic", "llama4"), "pythonic"),
        **dict.fromkeys(("llama3", "llama4_json"), "llama3_json"),
        **dict.fromkeys(("phi4_mini_json",), "phi4_mini"),
        **dict.fromkeys(("nemotron_json", "nemotron_nano_v2"), "nemotron"),
        **dict.fromkeys(("cohere_command3", "cohere_command4", "command_a"), "command_r7b"),
        **dict.fromkeys(("jamba",), "apriel"),
        **dict.fromkeys(("hunyuan_a13b", "hy_v3"), "hunyuan"),
        **dict.fromkeys(("xing4_0", "xingchen4"), "telechat4"),
        **dict.fromkeys(("longcat", "functionary", "gigachat3", "granite-20b-fc"), "auto"),
    },
)
"""Parsers of vLLM, SGLang and TensorRT-LLM, by their names there.

The last ones have a format that is derived from their chat templates.
"""

REASONING_PARSERS = _word(
    get_args(ReasoningParser),
    "reasoning_parser",
    {
        **dict.fromkeys(("openai_gptoss", "gpt_oss", "gpt-oss"), "harmony"),
        **dict.fromkeys(("deepseek-r1", "deepseek_v3", "deepseek_v4", "qwq"), "deepseek_r1"),
        **dict.fromkeys(("qwen3_5", "glm45", "glm47", "mimo", "olmo3", "holo2"), "qwen3"),
        **dict.fromkeys(("kimi_k2", "kimi_k25", "ernie45", "step3", "step3p5"), "qwen3"),
        **dict.fromkeys(("nano-v3", "nemotron-v3", "nemotron_v3", "nemotron"), "qwen3"),
        **dict.fromkeys(("minimax_m2", "minimax_m2_append_think"), "qwen3"),
        **dict.fromkeys(("poolside_v1", "laguna"), "qwen3"),
        **dict.fromkeys(("cohere_command3", "cohere_command4"), "command_r7b"),
        **dict.fromkeys(("hunyuan_a13b",), "hunyuan"),
    },
)

COMMON = (
    OptionRule(name="model", target="engine_repository"),
    OptionRule(name="revision", target="engine_revision"),
    OptionRule(name="tokenizer", target="tokenizer_repository"),
    OptionRule(name="tokenizer_revision", target="tokenizer_revision"),
    OptionRule(name="trust_remote_code", target="trust_remote_code", convert=flag),
    OptionRule(
        name="tensor_parallel_size",
        target="tensor_parallelism",
        convert=int,
        aliases=("tp_size", "tp"),
    ),
    OptionRule(
        name="pipeline_parallel_size",
        target="pipeline_parallelism",
        convert=int,
        aliases=("pp_size", "pp"),
    ),
    OptionRule(name="tool_parser", target="serving.tool_parser", convert=TOOL_PARSERS),
    OptionRule(
        name="reasoning_parser", target="serving.reasoning_parser", convert=REASONING_PARSERS
    ),
    *not_needed(
        "Truss's server listens where the platform expects it; `serve --port` for a try",
        *("host", "port", "hostname", "uds", "root_path"),
    ),
    *not_needed("a request may name any `model`; one is served", "served_model_name"),
    *unsupported(
        "the tokenizer's own template is used: put this one into tokenizer_config.json of a "
        "repository, and name it as tokenizer_repository",
        "chat_template",
    ),
)
"""Options shared by servers of checkpoints, by `trtllm-serve`'s names."""

ENVIRONMENT = (
    *not_needed(
        "set the secret `hf_access_token` in the workspace if a repository needs it",
        *("hf_token", "hugging_face_hub_token", "huggingface_hub_token", "hf_api_token"),
    ),
    *not_needed(
        "the container's cache is below HF_HOME",
        *("hf_home", "hf_hub_cache", "transformers_cache", "huggingface_hub_cache"),
    ),
    *not_needed(
        "downloads are always as fast as the network allows",
        *("hf_hub_enable_hf_transfer", "hf_xet_high_performance"),
    ),
    *unsupported("downloads need the Hub, or name a folder", "hf_hub_offline"),
    *not_needed(
        "the platform gives a container its GPUs",
        *("cuda_visible_devices", "nvidia_visible_devices", "hip_visible_devices"),
    ),
    *not_needed("a switch inside PyTorch", "pytorch_*", "torch_*", "safetensors_fast_gpu"),
    *(
        OptionRule(
            name=f"{prefix}*",
            target=f"config.yaml: environment_variables.{prefix.upper()}*",
            reason="the engine's processes get it",
        )
        for prefix in ("nccl_", "ucx_", "trtllm_", "tllm_", "omp_", "cuda_", "nvshmem_")
    ),
)
"""Variables that every server of checkpoints may use."""


def _arguments() -> Iterator[OptionRule]:
    """Yield the rules for the LLM's arguments; fields are separated by a dot."""
    seen = {rule.name for rule in (*COMMON, *_SERVER, *_STATISTICS)}
    for row in LLM_ARGUMENTS:
        for each, path in ((row, ""), *((field, f"{row.name}.") for field in row.fields)):
            if path + each.name not in seen:
                seen.add(path + each.name)
                yield _rule(each, path)


def _rule(row: Argument, path: str) -> OptionRule:
    name = path + row.name
    aliases = {
        "kv_cache_config.free_gpu_memory_fraction": (
            *("free_gpu_memory_fraction", "kv_cache_free_gpu_memory_fraction"),
        ),
        "moe_expert_parallel_size": ("ep_size",),
        "moe_cluster_parallel_size": ("cluster_size",),
    }
    if row.refused:
        (rule,) = unsupported(row.refused.rstrip("."), name)
        return rule
    return OptionRule(
        name=name,
        target=f"{LLM}.{name}",
        convert=drafts if name == "speculative_config" else _CONVERT[row.kind],
        aliases=aliases.get(name, ()),
    )


_SERVER = (
    *not_needed("checkpoints are served by the PyTorch backend", "backend", only=("pytorch",)),
    *unsupported("a checkpoint's own code runs with trust_remote_code only", "custom_module_dirs"),
    *not_needed("Truss's server logs at its own level", "log_level"),
    *not_needed("its options are converted as well", "extra_llm_api_options", "config"),
    *not_needed("text is made outside the engine", "num_postprocess_workers"),
    *unsupported(
        "one engine does both phases of a request here",
        *("metadata_server_config_file", "server_role", "disagg_cluster_uri", "disagg_cluster"),
    ),
    *not_needed("only text is served", "media_io_kwargs"),
    *unsupported("its fields are arguments of their own since 1.0", "pytorch_backend_config*"),
    *switches(not_needed("the endpoints are HTTP's", "grpc")),
    *unsupported(
        "GPUs = tensor_parallelism × pipeline_parallelism", "context_parallel_size", "cp_size"
    ),
)
_EVENTS = "kv_cache_config.event_buffer_max_size"
EVENTS_NOT_NEEDED = (
    "the product has metrics of its own, and `trtllm-truss dynamo --kv-events` sets it for a router"
)
_STATISTICS = (
    *not_needed(
        "the product has metrics of its own",
        *("enable_iter_perf_stats", "enable_iter_req_stats", "perf_metrics_max_requests"),
        *("max_stats_len", "iter_stats_max_iterations", "request_stats_max_iterations"),
    ),
    *not_needed(EVENTS_NOT_NEEDED, _EVENTS),
)
SECTIONS = {
    "Server": (*COMMON, *_SERVER),
    "Arguments of the LLM": (*_STATISTICS, *_arguments()),
    "Environment": (
        *ENVIRONMENT,
        *unsupported("the parameter has no counterpart; see docs/settings.md", "trt_llm_*"),
    ),
}
TABLE = RuleTable("`trtllm-serve`", SECTIONS)


def of_release(rules: Mapping[str, OptionRule], version: str | None) -> dict[str, OptionRule]:
    """Return rules in which arguments of releases other than the image's have no counterpart."""
    if version is None:
        return dict(rules)
    changed = dict(rules)
    for path, rows in [("", LLM_ARGUMENTS), *((f"{r.name}.", r.fields) for r in LLM_ARGUMENTS)]:
        here = {row.name for row in rows_for(rows, version)}
        for row in rows:
            name = path + row.name
            if row.name not in here and rules[name].outcome is Outcome.MAPPED:
                reason = (
                    f"an argument of TensorRT-LLM {describe_releases(row)}; the image has {version}"
                )
                changed[name] = OptionRule(
                    name=name, outcome=Outcome.UNSUPPORTED, reason=reason, switch=row.kind == "bool"
                )
    return changed


def convert(given: Sequence[Given], version: str | None) -> ConversionResult:
    """Convert options of `trtllm-serve`; version None accepts arguments of every release."""
    return apply_rules(given, of_release(TABLE.rules, version), "checkpoint", title=TABLE.title)


def llm_rules() -> dict[str, Any]:
    """Return the rules for the LLM's arguments only."""
    return {rule.name: rule for rule in SECTIONS["Arguments of the LLM"]}
