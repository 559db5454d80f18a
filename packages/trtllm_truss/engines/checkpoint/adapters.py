"""LoRA adapters of a checkpoint: repositories, support by release, and memory.

Sources for the memory, in NVIDIA/TensorRT-LLM: ``create_py_executor_instance`` of
``tensorrt_llm/_torch/pyexecutor/_util.py``, near 1.1 and 1.2, gives the adapter cache
``max_lora_rank × layers × modules × max_loras`` rows, and ``PeftCacheManager::getMaxNumSlots`` of
``cpp/tensorrt_llm/batch_manager/peftCacheManager.cpp`` gives each row the size of the widest
module. The cache is allocated before the KV cache is sized. The second copy that `frees_adapters`
describes is allocated later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_truss.artifacts.listing import named
from trtllm_truss.artifacts.open_repository import open_repository, with_revision
from trtllm_truss.engines.adapters import ADAPTER_CONFIG, AdaptedLayer, Adapter, AdapterRepository
from trtllm_truss.engines.checkpoint.adapter_files import FILES, WEIGHTS_FILE, read_adapter
from trtllm_truss.engines.diagnostics import Diagnostic, error
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.engines.quantization import bits
from trtllm_truss.errors import ArtifactError
from trtllm_truss.releases import Fact, dotted, holds, read_facts, read_table
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterModule(Fact):
    """A linear layer that adapters change; `releases/adapters.toml` explains the columns."""

    target: str


MODULES = {row.name: row for row in read_table("adapters", "modules", AdapterModule)}
_WITHOUT_ADAPTERS = read_facts("architectures", "without_adapters")

_CONFIG, _TARGETS = "lora_config", "lora_target_modules"
_NAMES = "trtllm_modules_to_hf_modules"
_QKV = ("attn_q", "attn_k", "attn_v")
_SPLIT_INPUTS = ("attn_dense", "mlp_4h_to_h", "shared_expert_4h_to_h")
"""Modules whose input is split by tensor parallelism; the others have their output split."""


def open_adapters(settings: Settings, environment: Environment) -> tuple[AdapterRepository, ...]:
    """Open the repositories of `lora_adapters` and read each adapter without its weights.

    Raises:
        ArtifactError: a repository is unreadable, or has no adapter that can be applied.
    """
    return tuple(
        _open(name, repository, settings, environment)
        for name, repository in settings.lora_adapters.items()
    )


def _open(
    name: str, repository: str, settings: Settings, environment: Environment
) -> AdapterRepository:
    repository, revision = with_revision(repository)
    source = open_repository(
        repository,
        revision,
        setting=f"lora_adapters.{name}",
        token=environment.hf_access_token,
        mounts=settings.mounts,
    )
    with named(source.name):
        sizes = source.listing().sizes
        missing = [file for file in FILES if not sizes.get(file)]
        if missing:
            raise ArtifactError(
                f"{' and '.join(missing)} is missing or empty; name a repository with an adapter "
                "that PEFT saved as safetensors."
            )
        adapter = read_adapter(
            name,
            source.read(ADAPTER_CONFIG),
            lambda count: source.read_head(WEIGHTS_FILE, count),
            sizes[WEIGHTS_FILE],
        )
    source.check_room(FILES)
    return AdapterRepository(repository, revision, adapter, source, FILES)


def lora_config(adapters: Sequence[Adapter]) -> dict[str, Any]:
    """Return the argument `lora_config` that holds all adapters at once.

    Layer names that no release knows are omitted; `check_adapters` refuses them.
    """
    names = {layer.module for adapter in adapters for layer in adapter.layers}
    return {
        _TARGETS: sorted(MODULES[name].target for name in names & MODULES.keys()),
        "max_lora_rank": max(adapter.rank for adapter in adapters),
        "max_loras": len(adapters),
        "max_cpu_loras": len(adapters),
    }


def check_adapters(
    adapters: Iterable[Adapter],
    checkpoint: Checkpoint,
    arguments: Mapping[str, Any],
    version: str | None,
) -> Iterator[Diagnostic]:
    """Report parts of adapters that a release does not apply to a checkpoint.

    None means any release.
    """
    fact = _WITHOUT_ADAPTERS.get(checkpoint.architecture)
    for adapter in adapters:
        if fact is not None and fact.holds(version):
            yield error(
                "adapter_architecture",
                f"lora_adapters.{adapter.name}: TensorRT-LLM applies no adapters to "
                f"{checkpoint.architecture}; merge the adapter into the checkpoint.",
            )
            continue
        known = _known_names(arguments, version)
        unknown = {layer.module: layer for layer in adapter.layers if layer.module not in known}
        yield from (_unknown(adapter, layer, version) for layer in unknown.values())
        if wrong := next((w for layer in adapter.layers if (w := _misfit(layer, checkpoint))), ""):
            yield error(
                "adapter_of_another_model",
                f"lora_adapters.{adapter.name}: {wrong}; name an adapter of this model.",
            )


def _known_names(arguments: Mapping[str, Any], version: str | None) -> set[str]:
    """Return the names that a release looks up, or the names that `lora_config` passes instead."""
    given = (arguments.get(_CONFIG) or {}).get(_NAMES)
    if isinstance(given, Mapping) and given:
        return {str(name) for name in given.values()}
    return {name for name, module in MODULES.items() if module.holds(version)}


def _unknown(adapter: Adapter, layer: AdaptedLayer, version: str | None) -> Diagnostic:
    module = MODULES.get(layer.module)
    if module is None:
        served = ", ".join(name for name in MODULES if "." not in name)
        reason = f"which the LLM API does not adapt, only {served}"
    else:
        reason = f"which is adapted from TensorRT-LLM {dotted(module.since)} on, not by {version}"
    return error(
        "adapter_module",
        f"lora_adapters.{adapter.name}: {WEIGHTS_FILE} holds {layer.tensor} for {layer.module}, "
        f"{reason}; train the adapter without it, or merge it into the checkpoint.",
    )


def _misfit(layer: AdaptedLayer, checkpoint: Checkpoint) -> str:
    """Compare a layer with the model's size; return the difference, or an empty string."""
    if layer.layer >= checkpoint.layers:
        return (
            f"{WEIGHTS_FILE} holds {layer.tensor}, but the checkpoint's layers end at "
            f"{checkpoint.layers - 1}"
        )
    module = MODULES.get(layer.module)
    if module is None:
        return ""
    ends = module.target in _SPLIT_INPUTS
    size = layer.outputs if ends else layer.inputs
    if size != checkpoint.hidden_size:
        return (
            f"{WEIGHTS_FILE} holds {layer.tensor} for {'outputs' if ends else 'inputs'} of size "
            f"{size}, but the checkpoint's hidden_size is {checkpoint.hidden_size}"
        )
    return ""


@dataclass(frozen=True, slots=True)
class AdapterMemory:
    """The memory that adapters take on one GPU.

    Attributes:
        cache_bytes: cache that every GPU allocates before its KV cache.
        copies_bytes: copies that a release keeps on the first GPU once the adapters are loaded.
    """

    cache_bytes: int = 0
    copies_bytes: int = 0


NO_MEMORY = AdapterMemory()


def memory_of(
    adapters: Sequence[Adapter],
    checkpoint: Checkpoint,
    arguments: Mapping[str, Any],
    version: str | None,
) -> AdapterMemory:
    """Estimate the memory; an unknown release is assumed to keep copies."""
    config = arguments.get(_CONFIG)
    if not adapters or not isinstance(config, Mapping):
        return NO_MEMORY
    targets = {*config.get(_TARGETS, ())}
    targets |= {*_QKV} if targets & {*_QKV} else set()
    gpus = arguments.get("tensor_parallel_size") or 1
    widest = max(_width(layer, gpus) for adapter in adapters for layer in adapter.layers)
    rows = checkpoint.layers * len(targets) * config.get("max_lora_rank", 0)
    numbers = rows * (config.get("max_loras") or 0) * widest
    keeps = not holds("frees_adapters", version, unknown=False)
    copies = sum(adapter.numbers for adapter in adapters) if keeps else 0
    number_bytes = bits(checkpoint.dtype) / 8
    return AdapterMemory(int(numbers * number_bytes), int(copies * number_bytes))


def _width(layer: AdaptedLayer, gpus: int) -> int:
    module = MODULES.get(layer.module)
    if module is not None and module.target in _SPLIT_INPUTS:
        return -(-layer.inputs // gpus) + layer.outputs
    return layer.inputs + -(-layer.outputs // gpus)
