"""LoRA adapters of a checkpoint: checked by their ``adapter_config.json``, then downloaded.

Source: ``tensorrt_llm/lora_manager.py`` in NVIDIA/TensorRT-LLM (names of modules) and the
``LoraConfig`` of huggingface/peft (fields).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtllm_truss.artifacts.listing import named
from trtllm_truss.artifacts.open_repository import is_on_hub, open_repository
from trtllm_truss.engines.adapter import Adapter, AdapterRepository
from trtllm_truss.engines.json_files import parse_json
from trtllm_truss.errors import ArtifactError
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Mount, Settings

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""The files of an adapter; pickled weights are not loaded."""

_MODULES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_dense",
    "gate_proj": "mlp_h_to_4h",
    "down_proj": "mlp_4h_to_h",
    "up_proj": "mlp_gate",
}
"""TensorRT-LLM's names of the layers that PEFT adapts."""


def parse_adapter(content: bytes) -> Adapter:
    """Read ``adapter_config.json``.

    Raises:
        ArtifactError: it is no LoRA adapter, or one that TensorRT-LLM does not apply as it is.
    """
    name = ADAPTER_FILES[0]
    config = parse_json(name, content)
    if not isinstance(config, Mapping):
        raise ArtifactError(f"{name} is not a JSON object; fetch it again.")
    kind, rank, targets = config.get("peft_type"), config.get("r"), config.get("target_modules")
    if kind != "LORA":
        raise ArtifactError(f"{name} has peft_type {kind!r}; only LORA adapters are applied.")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ArtifactError(f"{name} has the rank r {rank!r}; it must be a number above 0.")
    for field in ("use_dora", "modules_to_save", "rank_pattern", "lora_bias"):
        if config.get(field):
            raise ArtifactError(
                f"{name} sets {field}, which TensorRT-LLM does not apply; train the adapter "
                "without it."
            )
    names = targets if isinstance(targets, list) else [targets]
    unknown = sorted(str(target) for target in names if str(target) not in _MODULES)
    if unknown or not names:
        raise ArtifactError(
            f"{name} changes {', '.join(unknown) or 'no modules'}; the LLM API applies adapters to "
            f"{', '.join(_MODULES)}."
        )
    return Adapter(rank, frozenset(_MODULES[str(target)] for target in names))


def lora_config(adapters: Sequence[Adapter]) -> dict[str, Any]:
    """Return the argument `lora_config` that holds all adapters at once."""
    return {
        "lora_target_modules": sorted(frozenset().union(*(each.modules for each in adapters))),
        "max_lora_rank": max(each.rank for each in adapters),
        "max_loras": len(adapters),
        "max_cpu_loras": len(adapters),
    }


def open_adapters(settings: Settings, environment: Environment) -> tuple[AdapterRepository, ...]:
    """Open the repositories of `lora_adapters` and check each adapter and the disk.

    Raises:
        ArtifactError: a repository is unreadable or holds no adapter that can be applied.
    """
    return tuple(
        _open(name, repository, environment, settings.mounts)
        for name, repository in settings.lora_adapters.items()
    )


def _open(
    name: str, repository: str, environment: Environment, mounts: Sequence[Mount]
) -> AdapterRepository:
    source = open_repository(
        *_revised(repository),
        setting=f"lora_adapters.{name}",
        token=environment.hf_access_token,
        mounts=mounts,
    )
    with named(source.name):
        missing = [file for file in ADAPTER_FILES if not source.listing().sizes.get(file)]
        if missing:
            raise ArtifactError(
                f"{' and '.join(missing)} is missing or empty; name a repository with an adapter "
                "that PEFT saved as safetensors."
            )
        adapter = parse_adapter(source.read(ADAPTER_FILES[0]))
    source.check_room(ADAPTER_FILES)
    return AdapterRepository(name, adapter, source, ADAPTER_FILES)


def _revised(repository: str) -> tuple[str, str | None]:
    """Split a name on Hugging Face at ``@``; elsewhere it is a part of the name."""
    name, _, revision = repository.partition("@")
    return (name, revision or None) if is_on_hub(repository) else (repository, None)
