"""The only step of a build for the CPU."""

from __future__ import annotations

from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.settings.build import Build

CPU_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
"""Architectures that GGUF's `llama` covers."""

CPU_BLOCK = 32
"""Values of a row that share a scale; rows must divide into whole blocks."""

_WEIGHTS = {None: "F16", "int8_weight_only": "Q8_0", "int4_weight_only": "Q4_0"}


def cpu_command(build: Build, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the command, with shell variables for folders (see `plan`)."""
    method = build.quantization.method if build.quantization else None
    sequence = build.sequence_tokens or checkpoint.positions
    context = ["--context", str(sequence)] if sequence else []
    return (
        *("$PYTHON", "-m", "trtllm_truss.builder.gguf_conversion"),
        *("--checkpoint", "$CHECKPOINT", "--output", "$ENGINE/model.gguf"),
        *("--weights", _WEIGHTS[method]),
        *context,
    )


def cpu_quantizations() -> tuple[str, ...]:
    """Return the values of ``build.quantization.method`` for the CPU."""
    return tuple(method for method in _WEIGHTS if method)
