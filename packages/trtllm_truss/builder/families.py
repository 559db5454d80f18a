"""The supported model families with their convert scripts, and the target of a build."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.engines.accelerators import parse_accelerator
from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.versions import PINNED_VERSION
from trtllm_truss.releases.tables import read_table
from trtllm_truss.releases.versions import Release, release


@dataclass(frozen=True, slots=True)
class Target:
    """The environment of the engine; None means unknown.

    Attributes:
        version: of TensorRT-LLM.
        gpu: name of the GPU.
        compute_capability: of the GPU.
        memory_bytes: of one GPU.
        gpu_count: available GPUs.
    """

    version: str = PINNED_VERSION
    gpu: str | None = None
    compute_capability: ComputeCapability | None = None
    memory_bytes: int | None = None
    gpu_count: int | None = None

    @property
    def release(self) -> Release:
        """The version as numbers."""
        return release(self.version)

    @classmethod
    def from_host(cls, host: HostInfo) -> Target:
        """Prefer local GPUs to config.yaml's accelerator: an engine fits the GPU that built it."""
        version = host.version_for()
        if host.gpus:
            gpu = min(host.gpus, key=lambda gpu: gpu.total_bytes)
            count = len(host.gpus)
            return cls(version, gpu.name, gpu.compute_capability, gpu.total_bytes, count)
        spec = host.accelerator
        request = parse_accelerator(spec) if spec else None
        if request is None or request.accelerator is None:
            return cls(version)
        kind = request.accelerator
        return cls(version, kind.name, kind.compute_capability, kind.memory_bytes, request.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models that share a convert script; `releases/builds.toml` explains the columns."""

    name: str
    architectures: tuple[str, ...]
    folder: str
    new_folder: str
    folder_until: Release
    since: Release
    quantizations: tuple[str, ...]
    kv_cache_dtypes: tuple[str, ...] = ()
    version_setting: str | None = None
    version_flag: str | None = None
    version_required: bool = False
    rotary_settings: tuple[str, ...] = ()
    gated_mlp: bool = True
    pipeline: bool = True
    load_by_shard: bool = False
    source: str

    def script(self, version: Release) -> str:
        """Return the path of ``convert_checkpoint.py`` below ``examples``."""
        folder = self.folder if version < self.folder_until else self.new_folder
        return f"{folder}/convert_checkpoint.py"


FAMILIES = read_table("builds", "families", Family)


def find_family(architecture: str) -> Family | None:
    """Return the family of an architecture; None if it is not supported."""
    return next((family for family in FAMILIES if architecture in family.architectures), None)
