"""The GPU that an engine was built for, where its manifest records it.

``config.json`` says nothing of it, and TensorRT refuses an engine of another compute capability
only after loading it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.engines.json_fields import Fields
from trtllm_truss.errors import ArtifactError

MANIFEST_FILE = "engine.manifest.json"
_CAPABILITY = re.compile(r"([0-9]{1,2})\.([0-9])")


@dataclass(frozen=True, slots=True)
class TargetGpu:
    """What an engine was built on.

    Attributes:
        name: the GPU's name, as ``nvidia-smi`` prints it.
        compute_capability: major and minor; the GPU that serves must have the same.
    """

    name: str
    compute_capability: ComputeCapability

    @property
    def dotted_capability(self) -> str:
        """The compute capability as NVIDIA writes it, such as ``9.0``."""
        return ".".join(map(str, self.compute_capability))


def parse_target_gpu(manifest: Mapping[str, Any]) -> TargetGpu | None:
    """The manifest's ``gpu``; None if it has none.

    Raises:
        ArtifactError: the section is there and wrong.
    """
    fields = Fields(MANIFEST_FILE, manifest)
    if "gpu" not in fields:
        return None
    gpu = fields.section("gpu")
    capability = _CAPABILITY.fullmatch(gpu.text("compute_capability"))
    if capability is None:
        raise ArtifactError(
            f"{MANIFEST_FILE}: gpu.compute_capability must be two numbers such as 9.0; take the "
            "file from the build's output."
        )
    return TargetGpu(gpu.text("name"), (int(capability[1]), int(capability[2])))
