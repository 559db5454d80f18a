"""The classes of the arguments of `LLM` by release: their fields, types, choices and cross-checks.

Sources: llmapi/llm_args.py of TensorRT-LLM as published for 1.0.0, 1.1.0 and 1.2.1 (of
nvidia.github.io/TensorRT-LLM the page _modules/tensorrt_llm/llmapi/llm_args.html of each), and of
a late pre-release of 1.3.0, in which the release that brought a change is unknown. `LoraConfig` is
in lora_helper.py. Python objects, such as `mpi_session`, are any values here.

Fields are `_since` and `_until` a release; of several rows the one of the release holds. A type
with `?` may be null.
"""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, create_model, model_validator

_END = (9,)
_Positive, _Natural = Annotated[int, Field(gt=0)], Annotated[int, Field(ge=0)]
_Fraction, _NotNegative = Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=0)]


def _since(first, kind):
    return kind, first, _END


def _until(end, kind):
    return kind, (1, 0), end


def _fields(kind, *names):
    return dict.fromkeys(" ".join(names).split(), kind)


_KV_CACHE = {
    **_fields(bool, "enable_block_reuse enable_partial_reuse copy_on_partial_reuse use_uvm"),
    **_fields(int, "max_tokens sink_token_length secondary_offload_min_priority"),
    **_fields(int, "event_buffer_max_size host_cache_size"),
    "max_attention_window": Annotated[list[_Positive], Field(min_length=1)],
    "free_gpu_memory_fraction": _Fraction,
    "cross_kv_cache_fraction": float,
    "dtype": str,
    "onboard_blocks": _until((1, 3), bool),
    "attention_dp_events_gather_period_ms": _since((1, 1), int),
    "max_gpu_total_bytes": _since((1, 1), _Natural),
    "tokens_per_block": _since((1, 1), int),
    "mamba_ssm_cache_dtype": _since((1, 1), Literal["auto", "float16", "bfloat16", "float32"]),
    "disk_cache_size": _since((1, 3), int),
    "disk_cache_path": _since((1, 3), str),
    "iteration_stats_interval": _since((1, 3), _Positive),
    "use_kv_cache_manager_v2": _since((1, 3), bool),
    "max_util_for_resume": _since((1, 3), _Fraction),
}
_MOE_BACKENDS = ("CUTLASS", "CUTEDSL", "WIDEEP", "TRTLLM", "DEEPGEMM", "VANILLA")
_BALANCER = {
    "num_slots": int,
    "initial_global_assignments": dict[int, list[int]],
    "layer_updates_per_iter": int,
}
_PEFT_CACHE = {
    **_fields(int, "num_host_module_layer num_device_module_layer optimal_adapter_size"),
    **_fields(int, "max_adapter_size num_put_workers num_ensure_workers num_copy_streams"),
    **_fields(int, "max_pages_per_block_host max_pages_per_block_device host_cache_size"),
    "device_cache_percent": float,
    "lora_prefetch_dir": str,
}
_THRESHOLD = {"seq_len_threshold": int}
_SPARSE = {
    "rocket": {
        **_THRESHOLD,
        **_fields(int, "window_size kernel_size topk prompt_budget page_size"),
        "topr": int | float,
        "kt_cache_dtype": str,
    },
    "dsa": {
        **_THRESHOLD,
        **_fields(int, "index_n_heads index_head_dim index_topk indexer_max_chunk_size"),
        "skip_indexer_for_short_seqs": bool,
    },
    "skip_softmax": {**_THRESHOLD, "threshold_scale_factor": float | dict[str, float]},
}
_DRAFTS = {
    "max_draft_len": int,
    "speculative_model_dir": _until((1, 2), str),
    "speculative_model": _since((1, 2), str),
    "max_concurrency": _since((1, 1), int),
    "load_format": _since((1, 1), str),
    "max_total_draft_tokens": _since((1, 2), int),
    "draft_len_schedule": _since((1, 2), dict[int, int]),
    "acceptance_window": _since((1, 2), _Natural),
    "acceptance_length_threshold": _since((1, 2), _NotNegative),
    "allow_advanced_sampling": _since((1, 2, 0, 8), bool),
    "use_rejection_sampling": _since((1, 3), bool),
    "allow_separate_draft_kv_cache": _since((1, 3), bool),
}
_RELAXED = {
    "use_relaxed_acceptance_for_thinking": bool,
    "relaxed_topk": int,
    "relaxed_delta": float,
}
_SUFFIXES = {"threshold": _Positive, "enable_global_pool": bool}
_EAGLE = {
    **_fields(bool, "greedy_sampling use_dynamic_tree eagle3_one_model"),
    **_fields(int, "dynamic_tree_max_topK num_eagle_layers max_non_leaves_per_layer"),
    "eagle_choices": list[list[int]],
    "posterior_threshold": float,
    "eagle3_layers_to_capture": _since((1, 1), set[int]),
    "eagle3_model_arch": _since((1, 2), Literal["llama3", "mistral_large3"]),
    **{name: _since((1, 3), kind) for name, kind in _RELAXED.items()},
    "sa_config": _since((1, 3), "SAConfig?"),
}
_KINDS = {
    "MTP": {
        **_RELAXED,
        "num_nextn_predict_layers": _Positive,
        "num_nextn_predict_layers_from_model_config": int,
        "use_mtp_vanilla": bool,
        "mtp_eagle_one_model": _since((1, 1), bool),
        "BEGIN_THINKING_PHASE_TOKEN": _until((1, 2), int),
        "END_THINKING_PHASE_TOKEN": _until((1, 2), int),
        "begin_thinking_phase_token": _since((1, 2), int),
        "end_thinking_phase_token": _since((1, 2), int),
        "sa_config": _since((1, 3), "SAConfig?"),
    },
    "Eagle": _EAGLE,
    "Eagle3": _since((1, 3), _EAGLE),
    "NGram": {
        **_fields(bool, "is_keep_all is_use_oldest is_public_pool"),
        "max_matching_ngram_size": int,
        "is_auto_heuristic": _until((1, 1), bool),
    },
    "DraftTarget": _until((1, 3), {}),
    "Draft_Target": _since((1, 3), {}),
    "AUTO": {},
    "PARD": _since((1, 3), {"mask_token_id": int, "sa_config": "SAConfig?"}),
    "SA": _since(
        (1, 3),
        {"max_matching_ngram_size": int, "enable_global_pool": bool, "global_pool_size": _Positive},
    ),
    "DFlash": _since((1, 3), {"mask_token_id": int, "target_layer_ids": list[int]}),
}
_CLASS_OF_KIND = {"Draft_Target": "DraftTarget", "AUTO": "Auto"}
_CPP_SAMPLER_ENDS = (1, 3, 0, 25)  # pull request 18232, August 2026
_STRATEGIES = ("AUTO", "NCCL", "UB", "MINLATENCY", "ONESHOT", "TWOSHOT", "LOWPRECISION", "MNNVL")
_ARGUMENTS = {
    **_fields(str, "model tokenizer revision tokenizer_revision dtype checkpoint_format"),
    **_fields(str, "attn_backend reasoning_parser postprocess_tokenizer_dir"),
    **_fields(bool, "skip_tokenizer_init trust_remote_code enable_attention_dp enable_lora"),
    **_fields(bool, "enable_chunked_prefill gather_generation_logits disable_overlap_scheduler"),
    **_fields(bool, "enable_iter_perf_stats enable_iter_req_stats print_iter_log enable_autotuner"),
    **_fields(bool, "enable_layerwise_nvtx_marker enable_min_latency force_dynamic_quantization"),
    **_fields(int, "tensor_parallel_size pipeline_parallel_size context_parallel_size"),
    **_fields(int, "gpus_per_node moe_cluster_parallel_size moe_tensor_parallel_size"),
    **_fields(int, "moe_expert_parallel_size max_batch_size max_input_len max_seq_len"),
    **_fields(int, "max_beam_width max_num_tokens num_postprocess_workers"),
    **_fields(int, "iter_stats_max_iterations request_stats_max_iterations"),
    **_fields(int, "garbage_collection_gen0_threshold"),
    **_fields(Any, "cp_config batched_logits_processor cache_transceiver_config mpi_session"),
    **_fields(Any, "checkpoint_loader decoding_config"),
    "tokenizer_mode": Literal["auto", "slow"],
    "backend": Literal["pytorch", "_autodeploy"],
    "guided_decoding_backend": Literal["xgrammar", "llguidance"],
    "stream_interval": _Positive,
    "kv_cache_config": "KvCacheConfig",
    "scheduler_config": "SchedulerConfig",
    "moe_config": "MoeConfig",
    "nvfp4_gemm_config": _since((1, 2), "Nvfp4GemmConfig"),
    "lora_config": "LoraConfig?",
    "peft_cache_config": "PeftCacheConfig?",
    "cuda_graph_config": "CudaGraphConfig?",
    "torch_compile_config": "TorchCompileConfig?",
    "attention_dp_config": "AttentionDpConfig?",
    "kv_connector_config": _since((1, 1), "KvCacheConnectorConfig?"),
    "sparse_attention_config": _since((1, 2), Any),
    "speculative_config": Any,
    "build_config": _until((1, 2), Any),
    "fail_fast_on_attention_window_too_large": _until((1, 3), bool),
    "allreduce_strategy": [
        _until((1, 1), Literal[_STRATEGIES]),
        _since((1, 1), Literal[(*_STRATEGIES, "NCCL_SYMMETRIC")]),
    ],
    "load_format": Literal["AUTO", "DUMMY", "auto", "dummy"],
    "enable_trtllm_sampler": _until((1, 1), bool),
    "enable_mixed_sampler": _until((1, 1), bool),
    "sampler_type": [
        (Literal["auto", "TorchSampler", "TRTLLMSampler"], (1, 1), _CPP_SAMPLER_ENDS),
        _since(_CPP_SAMPLER_ENDS, Literal["auto", "TorchSampler"]),
    ],
    **{
        name: _since((1, 1), kind)
        for name, kind in {
            "enable_lm_head_tp_in_adp": bool,
            "return_perf_metrics": bool,
            "mm_encoder_only": bool,
            "perf_metrics_max_requests": _Natural,
            "batch_wait_timeout_ms": _NotNegative,
            "batch_wait_timeout_iters": _Natural,
            "batch_wait_max_tokens_ratio": _Fraction,
        }.items()
    },
    **{
        name: _since((1, 2), kind)
        for name, kind in {
            **_fields(bool, "sampler_force_async_worker enable_sleep disable_flashinfer_sampling"),
            **_fields(Any, "ray_worker_extension_cls ray_placement_config env_overrides"),
            **_fields(str, "custom_tokenizer otlp_traces_endpoint orchestrator_type"),
            "pp_partition": list[int],
            "max_stats_len": int,
        }.items()
    },
    **{
        name: _since((1, 3), kind)
        for name, kind in {
            "model_kwargs": dict[str, Any],
            **_fields(Any, "telemetry_config prometheus_metrics_config"),
            "enable_energy_metrics": bool,
        }.items()
    },
}
_CLASSES = {
    "KvCacheConfig": _KV_CACHE,
    "MoeLoadBalancerConfig": _BALANCER,
    "MoeConfig": {
        "backend": [
            _until((1, 1), Literal[_MOE_BACKENDS]),
            ((Literal[(*_MOE_BACKENDS, "TRITON")]), (1, 1), (1, 3)),
            _since((1, 3), str),
        ],
        "max_num_tokens": int,
        "load_balancer": Any,
        "disable_finalize_fusion": _since((1, 1), bool),
        "use_low_precision_moe_combine": _since((1, 2), bool),
    },
    "DynamicBatchConfig": {
        **_fields(bool, "enable_batch_size_tuning enable_max_num_tokens_tuning"),
        "dynamic_batch_moving_average_window": int,
    },
    "SchedulerConfig": {
        "capacity_scheduler_policy": Literal[
            "GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"
        ],
        "context_chunking_policy": Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"],
        "dynamic_batch_config": "DynamicBatchConfig?",
        "waiting_queue_policy": _since((1, 3), str),
    },
    "CudaGraphConfig": {
        "batch_sizes": list[_Positive],
        "max_batch_size": _Natural,
        "enable_padding": bool,
    },
    "TorchCompileConfig": {
        **_fields(bool, "enable_fullgraph enable_inductor enable_piecewise_cuda_graph"),
        "enable_userbuffers": bool,
        "max_num_streams": _Positive,
        "capture_num_tokens": _since((1, 1), list[_Positive]),
    },
    "AttentionDpConfig": {
        "enable_balance": bool,
        "timeout_iters": int,
        "batching_wait_iters": int,
    },
    "Nvfp4GemmConfig": {
        "allowed_backends": Annotated[
            list[Literal["cutlass", "cublaslt", "cutedsl", "cuda_core"]], Field(min_length=1)
        ]
    },
    "KvCacheConnectorConfig": {
        **_fields(str, "connector_module connector_scheduler_class connector_worker_class"),
        "connector": _since((1, 3), str),
        "server_url": _since((1, 3), str),
    },
    "LoraConfig": {
        "lora_dir": list[str],
        "lora_ckpt_source": Literal["hf", "nemo"],
        **_fields(int, "max_lora_rank max_loras max_cpu_loras"),
        "lora_target_modules": list[str],
        "trtllm_modules_to_hf_modules": dict[str, str],
        "swap_gate_up_proj_lora_b_weight": _since((1, 2), bool),
    },
    "PeftCacheConfig": _PEFT_CACHE,
    "SAConfig": _SUFFIXES,
}


_WAITS = ("timeout_iters", "batching_wait_iters")
_CONNECTOR = ("connector_module", "connector_scheduler_class", "connector_worker_class")


def _check_balancer(moe, release, made):
    balancer = moe.load_balancer
    if isinstance(balancer, str):
        _require(Path(balancer).exists(), f"MoE load balancer config file not found: {balancer}")
    elif balancer is not None:
        _require(release >= (1, 1), "load_balancer is no object in 1.0")
        made["MoeLoadBalancerConfig"](**balancer)


def _check_attention_dp(config, release, made):
    for name in _WAITS if config.enable_balance else ():
        _require((getattr(config, name) or 0) >= 0, f"{name} must be at least 0")


def _check_connector(config, release, made):
    missing = [name for name in _CONNECTOR if getattr(config, name) is None]
    has_preset = release >= (1, 3) and config.connector
    _require(has_preset or not missing, f"missing {missing}")


def _check_peft(config, release, made):
    _require(config.lora_prefetch_dir is None, "lora_prefetch_dir is not supported")


def _check_drafts(drafts, release, made):
    """Check what holds for all kinds; 1.3 knows no pair of a schedule and `max_concurrency`."""
    schedule, longest = getattr(drafts, "draft_len_schedule", None), drafts.max_draft_len
    if schedule is not None:
        _require(schedule and min(schedule) >= 1, "batch sizes must be at least 1")
        _require(min(schedule.values()) >= 0, "lengths must be at least 0")
        first = min(schedule)
        _require(release >= (1, 3) or first == 1, "the schedule must have batch size 1")
        if longest is not None:
            _require(schedule[first] == longest, "the schedule must begin with max_draft_len")
            _require(max(schedule.values()) <= longest, "a length is above max_draft_len")
        has_both = release >= (1, 3) and drafts.max_concurrency is not None
        _require(not has_both, "draft_len_schedule and max_concurrency exclude each other")


def _check_length(drafts, release, made):
    _check_drafts(drafts, release, made)
    _require(drafts.max_draft_len is not None and drafts.max_draft_len > 0, "max_draft_len")


def _check_model(drafts, release, made):
    _check_length(drafts, release, made)
    folder = "speculative_model" if release >= (1, 2) else "speculative_model_dir"
    _require(getattr(drafts, folder) is not None, "the draft model must be specified")


def _check_eagle(drafts, release, made):
    """Check a draft with a tree; its dynamic one has a size from 1.3 on."""
    _check_model(drafts, release, made)
    paths = drafts.eagle_choices
    if paths is not None:
        _require(not drafts.use_dynamic_tree, "a tree is static or dynamic")
        _require(all(len(p) == 1 or p[:-1] in paths for p in paths), "the tree is not connected")
    if drafts.use_dynamic_tree:
        width, length = drafts.dynamic_tree_max_topK, drafts.max_draft_len
        _require(width is not None and width > 0, "dynamic_tree_max_topK")
        size = getattr(drafts, "max_total_draft_tokens", None)
        is_in_range = size is None or length <= size <= width * length
        _require(release < (1, 3) or is_in_range, "max_total_draft_tokens is out of range")


def _check_mtp(drafts, release, made):
    _check_drafts(drafts, release, made)
    length = drafts.max_draft_len if release >= (1, 3) else None
    _require(length is None or length > 0, "max_draft_len must be above 0")


def _check_ngram(drafts, release, made):
    _check_length(drafts, release, made)
    size = drafts.max_matching_ngram_size
    default = 2 if release >= (1, 3) else 0
    _require((default if size is None else size) > 0, "max_matching_ngram_size must be above 0")


def _check_suffixes(drafts, release, made):
    _check_length(drafts, release, made)
    _require(drafts.max_matching_ngram_size != 0, "max_matching_ngram_size must not be 0")
    _require(not drafts.global_pool_size or drafts.enable_global_pool, "global_pool_size")


def _check_llm(args, release, made):
    if graphs := args.cuda_graph_config:
        _check_graphs(graphs, release)
    sparse = getattr(args, "sparse_attention_config", None)
    for name, given, read in (
        ("decoding_type", args.speculative_config, read_drafts),
        ("algorithm", sparse, read_sparse_attention),
    ):
        if isinstance(given, dict):
            _require(release >= (1, 3), f"{name}: Extra inputs are not permitted")
            read(made, given)


def _check_graphs(graphs, release):
    """Check two sizes, which are one list up to 1.2.

    Source: `validate_cuda_graph_config` of `TorchLlmArgs`; the largest powers of two are rounded
    down in 1.0.0, and up from 1.1.0 on.
    """
    sizes, largest = graphs.batch_sizes, graphs.max_batch_size
    if not (sizes and largest):
        return
    if release >= (1, 3):
        _require(max(sizes) == largest, "max_batch_size differs from the largest of batch_sizes")
        return
    listed = [1, 2, 4, *range(8, 129, 8)] if graphs.enable_padding else [*range(1, 32), 32, 64, 128]
    rounded = math.log2(largest)
    powers = [
        2**i for i in range(8, math.floor(rounded) if release < (1, 1) else math.ceil(rounded))
    ]
    made = sorted({*(n for n in (*listed, *powers) if n <= largest), largest})
    _require(sorted(sizes) == made, "batch_sizes differ from those of max_batch_size")


def _require(holds, message):
    if not holds:
        raise ValueError(message)


_RULES = {
    "MoeConfig": _check_balancer,
    "AttentionDpConfig": _check_attention_dp,
    "KvCacheConnectorConfig": _check_connector,
    "PeftCacheConfig": _check_peft,
    "MTPDecodingConfig": _check_mtp,
    "EagleDecodingConfig": _check_eagle,
    "Eagle3DecodingConfig": _check_eagle,
    "NGramDecodingConfig": _check_ngram,
    "DraftTargetDecodingConfig": _check_model,
    "AutoDecodingConfig": _check_drafts,
    "PARDDecodingConfig": _check_model,
    "SADecodingConfig": _check_suffixes,
    "DFlashDecodingConfig": _check_model,
    "TorchLlmArgs": _check_llm,
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class _Lax(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=())


def classes(release):
    """Return the classes of a release, such as (1, 2, 1), by name.

    `drafts` and `sparse` are classes by kind. A value of `TorchLlmArgs` for them is an object, or
    from 1.3 on a mapping.
    """
    made = {}
    for name, fields in _CLASSES.items():
        base = _Lax if name == "LoraConfig" else _Strict
        made[name] = _make(name, fields, release, made, base)
    base = made["DecodingBaseConfig"] = _make("DecodingBaseConfig", _DRAFTS, release, made)
    made["drafts"] = {}
    for kind, fields in _here(_KINDS, release).items():
        name = f"{_CLASS_OF_KIND.get(kind, kind)}DecodingConfig"
        made["drafts"][kind] = made[name] = _make(name, fields, release, made, base)
    made["sparse"] = {
        kind: _make(kind, fields, release, made)
        for kind, fields in (_SPARSE.items() if release >= (1, 2) else ())
    }
    made["TorchLlmArgs"] = _make("TorchLlmArgs", _ARGUMENTS, release, made)
    return made


def read_drafts(made, given):
    """Return the object of a mapping; it chooses the class.

    Source: `DecodingBaseConfig.from_dict` up to 1.2; from 1.3 on `decoding_type` is a field.
    """
    given = dict(given)
    kind = given.pop("decoding_type", None)
    _require(kind in made["drafts"], f"Invalid decoding type: {kind}")
    return made["drafts"][kind](**given)


def read_sparse_attention(made, given):
    """Return the object of a mapping.

    Source: `BaseSparseAttentionConfig.from_dict` of 1.2.1; from 1.3 on `algorithm` is a field.
    """
    given = dict(given)
    kind = str(given.pop("algorithm", None)).lower()
    _require(kind in made["sparse"], f"Invalid algorithm: {kind}")
    return made["sparse"][kind](**given)


def _here(table, release):
    """Return the rows of a release by name."""
    found = {}
    for name, rows in table.items():
        for row in rows if isinstance(rows, list) else [rows]:
            kind, first, end = row if isinstance(row, tuple) else _since((1, 0), row)
            if first <= release < end:
                found[name] = kind
    return found


def _make(name, fields, release, made, base=_Strict):
    types = {}
    for field, kind in _here(fields, release).items():
        if isinstance(kind, str):
            found = made[kind.rstrip("?")]
            kind = found | None if kind.endswith("?") else found
        if name == "TorchLlmArgs" and not isinstance(fields[field], str):
            kind = kind | None
        names = AliasChoices(field, f"{field}_dir") if field == "speculative_model" else None
        types[field] = (kind, Field(default=None, validation_alias=names))

    def check(self):
        if rule := _RULES.get(name):
            rule(self, release, made)
        return self

    rules = {f"check_{name}": model_validator(mode="after")(check)}
    return create_model(name, __base__=base, __validators__=rules, **types)
