"""Limits of the converter for the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_truss.builder.checks.quantization import quantized_already
from trtllm_truss.builder.planning.cpu_plan import CPU_ARCHITECTURES, CPU_BLOCK, cpu_quantizations
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.model import Settings

_KEYS = frozenset(
    {
        *("backend", "checkpoint_repository", "checkpoint_revision", "publish_to", "quantization"),
        *("max_input_len", "max_output_len", "max_seq_len"),
    }
)


def cpu_problems(settings: Settings, build: Build, checkpoint: Checkpoint) -> Iterator[str]:
    """Yield each problem of the build with its remedy."""
    yield from _model_problems(build, checkpoint)
    if settings.world_size > 1:
        yield "a CPU engine has one rank; set tensor_parallelism and pipeline_parallelism to 1"
    for key in sorted(build.model_fields_set - _KEYS):
        yield f"build.{key} is not supported on the CPU; remove it"
    method = build.quantization.method if build.quantization else None
    if method is not None and method not in cpu_quantizations():
        choices = " and ".join(cpu_quantizations())
        yield f"build.quantization.method {method} needs a GPU; the CPU supports {choices}"


def _model_problems(build: Build, checkpoint: Checkpoint) -> Iterator[str]:
    if checkpoint.architecture not in CPU_ARCHITECTURES:
        known = " and ".join(CPU_ARCHITECTURES)
        yield f"{checkpoint.architecture} is not supported on the CPU; use {known}"
    if checkpoint.rope_scaling is not None:
        yield (
            f"the checkpoint's rope_scaling {checkpoint.rope_scaling!r} is not supported on the "
            "CPU; use a checkpoint without rope_scaling"
        )
    if checkpoint.quantized_by is not None:
        yield quantized_already(checkpoint)
    hidden, inner = checkpoint.hidden_size, checkpoint.inner_size
    if checkpoint.head_size * checkpoint.heads != hidden:
        yield "heads that do not fill hidden_size are not supported on the CPU"
    if build.quantization and (hidden % CPU_BLOCK or inner % CPU_BLOCK):
        yield (
            f"the model's hidden ({hidden}) and inner size ({inner}) do not divide into blocks of "
            f"{CPU_BLOCK}; remove build.quantization"
        )
