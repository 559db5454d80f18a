"""The hash that identifies equal builds."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from trtllm_truss.builder.plan import Plan
from trtllm_truss.builder.planning.target import Target

CONVERTER = 1
"""Increment when this project's converter for the CPU changes its output."""


def build_key(plan: Plan, checkpoint_revision: str, target: Target | None) -> str:
    """Hash everything that makes two engines differ.

    The commands contain every option that matters, and none that does not, such as the publishing
    destination.

    Args:
        plan: the build.
        checkpoint_revision: the commit of the checkpoint, or a hash of its files.
        target: the GPU and the version; None for a CPU engine.
    """
    content: dict[str, Any] = {
        "steps": [step.command for step in plan.steps],
        "checkpoint_changes": dict(plan.checkpoint_changes),
        "checkpoint": checkpoint_revision,
        "version": target.version if target else f"converter {CONVERTER}",
        "compute_capability": target.compute_capability if target else None,
    }
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
