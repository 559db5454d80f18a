"""Hugging Face checkpoints, loaded by TensorRT-LLM's LLM API."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trtllm_truss.engines.adapters import ADAPTER_CONFIG, Adapter, AdapterRepository
from trtllm_truss.engines.capacity import (
    DEFAULT_FREE_FRACTION,
    CacheSettings,
    CacheShape,
    keys_and_values,
)
from trtllm_truss.engines.checkpoint.adapters import (
    NO_MEMORY,
    AdapterMemory,
    memory_of,
    open_adapters,
)
from trtllm_truss.engines.checkpoint.arguments import HANDLED_KEYS, complete_arguments, lacks_guides
from trtllm_truss.engines.checkpoint.checks import check_checkpoint, loadable_since
from trtllm_truss.engines.checkpoint.launcher import LlmApiLauncher
from trtllm_truss.engines.checkpoint.llm_args import llm_args_schema, parse_llm_args
from trtllm_truss.engines.checkpoint.samplers import (
    drafts_within,
    lacking_fields,
    reports_alternatives,
)
from trtllm_truss.engines.checkpoint.weights import (
    ARCHITECTURES,
    INDEX_FILE,
    QUANTIZATION_FILE,
    WeightFiles,
    WeightFormat,
    find_weights,
    weight_format,
)
from trtllm_truss.engines.diagnostics import Diagnostic
from trtllm_truss.engines.engine import FLAT, NO_EVENTS, SLOW_BYTES_PER_S, ModelConfig, Placement
from trtllm_truss.engines.engine_files import CONFIG_FILE, WEIGHTS_SUFFIX
from trtllm_truss.engines.gpu_engine import GpuEngine
from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.images import BaseImage, given_image, newest_image
from trtllm_truss.engines.model_config import Checkpoint, parse_checkpoint
from trtllm_truss.engines.quantization import Quantization, bits, cache_bits
from trtllm_truss.engines.scheduling import MAX_UTILIZATION
from trtllm_truss.engines.without_code import TEXTS, without_code
from trtllm_truss.errors import SettingsError
from trtllm_truss.request_fields import SAMPLING
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.runtime import RuntimeOptions

_MAX_BATCH_SIZE = 256
_UNKNOWN_CONTEXT = 2048
_BLOCK_TOKENS = 32
_PARENT_BYTES = 10**9 // 2
_EVENT_BUFFER = "event_buffer_max_size"
_EVENTS = 100_000  # the default of Dynamo's own worker
_GENERATION = "generation_config.json"
_CODE = ".py"
_PROCESSORS = (
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
)
"""Files of vision and audio models, whose `AutoProcessor` the LLM API builds at the start.

It also reads the tokenizer, from the checkpoint's own folder.

Source: ``create_input_processor`` of tensorrt_llm/inputs/registry.py, called by
``LLM._build_model`` of llmapi/llm.py, 1.2.1.
"""


@dataclass(frozen=True, kw_only=True)
class CheckpointEngine(GpuEngine):
    """A checkpoint that the LLM API loads.

    Attributes:
        weight_format: number format of the weights.
        llm_args: arguments of ``tensorrt_llm.LLM``; empty until the settings are applied.
        adapters: adapters of `lora_adapters`.
        adapter_memory: memory that the adapters take on one GPU.
        kv_events: Unix socket for events of the KV cache; None for none.
    """

    backend = "llm_api"
    title = "a checkpoint in TensorRT-LLM's LLM API"
    named = "a checkpoint"
    answering = "a checkpoint as engine"
    wanted = f"{CONFIG_FILE} with *{WEIGHTS_SUFFIX} (a Hugging Face checkpoint)"
    own_settings = ("runtime.llm_args", "lora_adapters")
    own_repository = "the repository of a checkpoint"
    made, remake = "is configured", "configure"
    other_format = "name a checkpoint with another quantization"
    in_python_of_runtime = True
    guides_set_the_end = True
    spawns_ranks = True

    checkpoint: Checkpoint
    weights: WeightFiles
    weight_format: WeightFormat
    llm_args: Mapping[str, Any] = field(default_factory=dict)
    adapters: tuple[Adapter, ...] = ()
    adapter_memory: AdapterMemory = NO_MEMORY
    kv_events: Path | None = None

    @classmethod
    def locate(cls, sizes: Mapping[str, int]) -> Placement | None:
        flat = any("/" not in name and name.endswith(WEIGHTS_SUFFIX) for name in sizes)
        return FLAT if flat and CONFIG_FILE in sizes else None

    @classmethod
    def described_by(cls, sizes: Mapping[str, int]) -> tuple[str, ...]:
        return (CONFIG_FILE, INDEX_FILE, QUANTIZATION_FILE)

    @classmethod
    def describe(cls, sizes: Mapping[str, int], contents: Mapping[str, object]) -> CheckpointEngine:
        weights = find_weights(sizes, contents.get(INDEX_FILE))
        checkpoint = parse_checkpoint(contents[CONFIG_FILE])
        context = max(2, checkpoint.positions or _UNKNOWN_CONTEXT)
        return cls(
            max_sequence_tokens=context,
            max_input_tokens=context - 1,
            max_batch_size=_MAX_BATCH_SIZE,
            checkpoint=checkpoint,
            weights=weights,
            weight_format=weight_format(checkpoint, contents.get(QUANTIZATION_FILE)),
        )

    @classmethod
    def check_settings(cls, settings: Settings, version: str | None) -> None:
        parse_llm_args(settings.runtime.llm_args, version)

    @classmethod
    def settings_schema(cls) -> Mapping[str, Any]:
        return {"runtime.llm_args": llm_args_schema()}

    def with_settings(
        self,
        settings: Settings,
        version: str | None = None,
        adapters: Sequence[Adapter] = (),
        gpu: ComputeCapability | None = None,
    ) -> CheckpointEngine:
        arguments, longest = complete_arguments(
            self.checkpoint, self.max_sequence_tokens, settings, version, adapters, gpu
        )
        return replace(
            self,
            tensor_parallelism=settings.tensor_parallelism,
            pipeline_parallelism=settings.pipeline_parallelism,
            max_sequence_tokens=arguments["max_seq_len"],
            max_input_tokens=min(longest, arguments["max_input_len"]),
            max_batch_size=arguments["max_batch_size"],
            max_beam_width=arguments["max_beam_width"],
            llm_args=arguments,
            adapters=tuple(adapters),
            adapter_memory=memory_of(adapters, self.checkpoint, arguments, version),
        )

    def stated_settings(self) -> Iterator[tuple[str, object, str]]:
        whole, tokens = self.checkpoint.positions, self.max_sequence_tokens
        remark = "config.json of the model names none"
        if whole:
            remark = "the model's own" if whole == tokens else f"of the model's {whole:,}"
        yield "runtime.llm_args.max_seq_len", tokens, remark

    def reporting_kv_events(self, address: Path) -> CheckpointEngine:
        arguments = self.llm_args
        cache = arguments.get("kv_cache_config") or {}
        obstacles = {
            "lora_adapters: events do not name the adapter of a block": self.takes_adapters,
            "enable_attention_dp: a router sees one cache": arguments.get("enable_attention_dp"),
            "max_beam_width above 1: blocks of beams are not reused": self.max_beam_width > 1,
            "kv_cache_config.enable_block_reuse false": not cache.get("enable_block_reuse", True),
        }
        if found := [text for text, is_there in obstacles.items() if is_there]:
            raise SettingsError(
                f"KV events cannot be combined with {'; '.join(found)}. {NO_EVENTS}"
            )
        cache = {**cache, _EVENT_BUFFER: cache.get(_EVENT_BUFFER) or _EVENTS}
        return replace(self, kv_events=address, llm_args={**arguments, "kv_cache_config": cache})

    # Files

    @classmethod
    def open_adapters(
        cls, settings: Settings, environment: Environment
    ) -> tuple[AdapterRepository, ...]:
        return open_adapters(settings, environment)

    def needed_files(
        self, sizes: Mapping[str, int], *, with_code: bool, ranks: Collection[int] | None
    ) -> set[str]:
        names = {INDEX_FILE, QUANTIZATION_FILE, _GENERATION, *self.weights.names}
        if not sizes.keys().isdisjoint(_PROCESSORS):
            texts = {name for name in sizes if "/" not in name and name.endswith(TEXTS)}
            names |= texts - {ADAPTER_CONFIG}
        code = {name for name in sizes if "/" not in name and name.endswith(_CODE)}
        return names | code if with_code else names

    # Compatibility with the settings and the host

    def check(self, settings: Settings, host: HostInfo) -> Iterator[Diagnostic]:
        yield from self.check_nodes(settings, host)
        yield from check_checkpoint(self, settings, host)
        yield from self.check_container(settings, host)

    @property
    def number_formats(self) -> Quantization:
        return self.weight_format.quantization

    def minimum_capabilities(self) -> Iterator[tuple[str, ComputeCapability]]:
        known = ARCHITECTURES.get(self.checkpoint.architecture)
        if known is not None and known.minimum_capability is not None:
            yield self.checkpoint.architecture, known.minimum_capability

    @property
    def facts(self) -> Sequence[str]:
        positions = self.checkpoint.positions
        whole = f" of the model's {positions:,}" if positions else ""
        return [
            loadable_since(self.checkpoint),
            f"context: {self.max_sequence_tokens:,}{whole} tokens (runtime.llm_args.max_seq_len)",
            *self._adapter_facts(),
        ]

    def _adapter_facts(self) -> Iterator[str]:
        if not self.adapters:
            return
        memory = self.adapter_memory
        ranks = ", ".join(f"{each.name} (rank {each.rank})" for each in self.adapters)
        copies = f", and {memory.copies_bytes / 1e9:.2f} GB more on the first once they are loaded"
        yield (
            f"adapters: {ranks}; {memory.cache_bytes / 1e9:.2f} GB of each "
            f"GPU{copies if memory.copies_bytes else ''}"
        )

    # Ranks and hosts

    def rank_launcher(self, environ: Mapping[str, str]) -> LlmApiLauncher:
        return LlmApiLauncher.find(environ)

    # Capacity and admission

    @property
    def largest_rank_bytes(self) -> int:
        return -(-self.weights.total_bytes // self.world_size)

    @property
    def reserved_bytes(self) -> int:
        parent = _PARENT_BYTES if self.llm_args else 0
        return self.step_bytes + parent + self.adapter_memory.cache_bytes

    @property
    def late_bytes(self) -> int:
        return self.adapter_memory.copies_bytes

    @property
    def step_bytes(self) -> int:
        """Estimate the memory of a step's activations on one GPU.

        The peak is in the MLP: per token, the residual and its normalized copy, and four vectors of
        the inner width, which tensor parallelism splits.
        """
        inner = -(-self.checkpoint.inner_size // self.tensor_parallelism)
        per_token = 2 * self.checkpoint.hidden_size + 4 * inner
        tokens: int = self.llm_args.get("max_num_tokens", 0)
        return int(tokens * per_token * bits(self.checkpoint.dtype) / 8)

    @property
    def cache_shape(self) -> CacheShape:
        checkpoint, quantization = self.checkpoint, self.number_formats
        gpus = 1 if self.llm_args.get("enable_attention_dp") else self.tensor_parallelism
        numbers = keys_and_values(checkpoint.cache_heads, gpus, checkpoint.head_size)
        if checkpoint.latent_size is not None:  # one vector for all heads, on every GPU
            numbers = (checkpoint.latent_size,) * checkpoint.layers
        cache = self.llm_args.get("kv_cache_config") or {}
        chosen = str(cache.get("dtype") or "auto").upper()
        cached = quantization.kv_cache if chosen == "AUTO" else chosen
        return CacheShape(
            numbers=numbers,
            pipeline=self.pipeline_parallelism,
            bits=cache_bits(cached, quantization.dtype),
            block_tokens=cache.get("tokens_per_block") or _BLOCK_TOKENS,
            sequence_tokens=self.max_sequence_tokens,
            shorten="set a shorter max_seq_len or kv_cache_config.dtype fp8 in runtime.llm_args",
        )

    def cache_knobs(self, runtime: RuntimeOptions) -> CacheSettings:
        cache = self.llm_args.get("kv_cache_config") or {}
        fraction = cache.get("free_gpu_memory_fraction")
        return CacheSettings(
            free_fraction=None if fraction == DEFAULT_FREE_FRACTION else fraction,
            max_tokens=cache.get("max_tokens"),
            attention_window=max(cache.get("max_attention_window") or (), default=None),
            fraction_always=True,
            max_bytes=cache.get("max_gpu_total_bytes") or None,
        )

    def overcommits(self, settings: Settings) -> bool:
        scheduler = self.llm_args.get("scheduler_config") or {}
        return bool(scheduler.get("capacity_scheduler_policy") == MAX_UTILIZATION.upper())

    def scheduler_count(self, settings: Settings) -> int:
        """With ``enable_attention_dp`` each rank of tensor parallelism schedules its own batch.

        Source: ``_fetch_new_requests`` in ``tensorrt_llm/_torch/pyexecutor/py_executor.py``, 1.0 to
        1.2.
        """
        copies = self.instance_count(settings)
        is_split = self.llm_args.get("enable_attention_dp")
        return copies * self.tensor_parallelism if is_split else copies

    # Limits of requests

    def batch_size(self, settings: Settings) -> int:
        return self.max_batch_size

    def beam_limit(self, settings: Settings) -> int:
        return self.max_beam_width

    @property
    def one_beam_width(self) -> bool:
        return True

    @property
    def takes_adapters(self) -> bool:
        return bool(self.llm_args.get("lora_config"))

    @property
    def biased_tokens(self) -> int:
        return 0 if drafts_within(None, self.llm_args) else self.checkpoint.vocab_size

    @property
    def reports_top_log_probs(self) -> bool:
        return bool(self.llm_args) and reports_alternatives(None, self.llm_args)

    @property
    def takes_trace_headers(self) -> bool:
        """Return True with ``otlp_traces_endpoint``: both came in pull request 5897, before 1.2.1.

        Source: ``BaseLLM.__init__`` and ``generate_async`` of ``tensorrt_llm/llmapi/llm.py`` in
        NVIDIA/TensorRT-LLM at 3b904c6a.
        """
        return bool(self.llm_args.get("otlp_traces_endpoint"))

    def refuses(self, version: str | None) -> frozenset[str]:
        of_beams = self.max_beam_width > 1  # each request then has it
        lacks = frozenset() if version is None else lacking_fields(version, self.llm_args)
        return lacks.union(row.name for row in SAMPLING if of_beams and not row.with_beams)

    def guided_decoding_backend(self, settings: Settings) -> str | None:
        return self.llm_args.get("guided_decoding_backend")

    def lacks_guides(self, version: str | None) -> str:
        return lacks_guides(self.llm_args, version)

    # Server and image

    def model_config(
        self,
        settings: Settings,
        version: str,
        *,
        tokenizer_dir: Path,
        tokenizer_info: Path | None,
        adapters: Mapping[str, Path],
    ) -> ModelConfig:
        folder = self.folder
        if not settings.trust_remote_code:
            folder, tokenizer_dir = without_code(folder), without_code(tokenizer_dir)
        given = settings.runtime.parameters
        parameters = {
            **{name: value for name, value in given.items() if name in HANDLED_KEYS},
            "tokenizer_dir": str(tokenizer_dir.resolve()),
            "llm_args": json.dumps(self._read_arguments),
            "hang_timeout_s": settings.serving.hang_timeout_s,
            "vocab_size": self.checkpoint.vocab_size,
        }
        if adapters:
            parameters["lora_adapters"] = _numbered(adapters)
        if self.kv_events is not None:
            parameters["kv_events"] = str(self.kv_events)
        return ModelConfig(folder, parameters, of_executor=False)

    @property
    def _read_arguments(self) -> Mapping[str, Any]:
        """Return the arguments without an event buffer that nothing reads.

        Up to TensorRT-LLM 1.2, events fill a queue without a limit.
        """
        cache = self.llm_args.get("kv_cache_config")
        if self.kv_events is not None or not cache:
            return self.llm_args
        read = {name: value for name, value in cache.items() if name != _EVENT_BUFFER}
        return {**self.llm_args, "kv_cache_config": read}

    @property
    def extra_start_s(self) -> float:
        return self.weights.total_bytes / SLOW_BYTES_PER_S

    def base_image(self, given: str | None) -> BaseImage:
        return newest_image() if given is None else given_image(given)


KIND = CheckpointEngine


def _numbered(adapters: Mapping[str, Path]) -> str:
    return json.dumps(
        {
            str(number): {"name": name, "path": str(without_code(folder.resolve()))}
            for number, (name, folder) in enumerate(adapters.items(), 1)
        }
    )
