"""Architectures that the LLM API's PyTorch backend loads, by TensorRT-LLM release."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.releases.tables import Fact, Release, read_facts, read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture; `releases/architectures.toml` explains the columns."""

    name: str
    since: Release
    minimum_capability: ComputeCapability | None = None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """An architecture that TensorRT-LLM knows but this project does not serve."""

    name: str
    reason: str
    since: Release
    source: str


ARCHITECTURES = {
    row.name: row for row in read_table("architectures", "architectures", Architecture)
}
UNSERVED = {row.name: row.reason for row in read_table("architectures", "unserved", Unserved)}

_WITHOUT_CHUNKS = read_facts("architectures", "without_chunks")
_WITHOUT_REUSE = read_facts("architectures", "without_reuse")
_CHUNKED_LATENTS = read_facts("architectures", "chunked_latents")


def chunks_prompts(architecture: str, version: str | None) -> bool:
    """Return False for a model without chunked prefill in a release; None is the newest."""
    return not _holds(_WITHOUT_CHUNKS.get(architecture), version)


def reuses_blocks(architecture: str, version: str | None) -> bool:
    """Return False for a model without block reuse in a release; None is the newest."""
    return not _holds(_WITHOUT_REUSE.get(architecture), version)


def chunks_latents(version: str | None, gpu: ComputeCapability | None) -> bool:
    """Return False where latent attention cannot be chunked; None is any release, or any GPU."""
    if version is None or gpu is None:
        return True
    return _holds(_CHUNKED_LATENTS.get(f"{gpu[0]}.{gpu[1]}"), version)


def _holds(fact: Fact | None, version: str | None) -> bool:
    return fact is not None and fact.holds(version, unknown=fact.until is None)
