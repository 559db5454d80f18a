"""Compatibility of settings, engine, image, GPUs and runtime, checked before a start.

A pure function; unknown facts are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_truss.engines.diagnostics import Diagnostic, error
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.settings.model import Settings


def check_compatibility(settings: Settings, engine: Engine, host: HostInfo) -> list[Diagnostic]:
    """Return all mismatches, the most basic first.

    Raises:
        SettingsError: `runtime` asks for copies or GPUs that the engine's ranks cannot have.
    """
    engine.instance_count(settings)
    return [*_parallelism(settings, engine), *engine.check(settings, host)]


def _parallelism(settings: Settings, engine: Engine) -> Iterator[Diagnostic]:
    for name in ("tensor_parallelism", "pipeline_parallelism"):
        wanted, built = getattr(settings, name), getattr(engine, name)
        if wanted != built:
            yield error(
                f"{name}_mismatch",
                f"config.yaml: model_metadata.{name} is {wanted}, but the engine in "
                f"{settings.engine_repository} was built for {built}; set it to {built}, or build "
                f"the engine for {wanted}.",
            )
