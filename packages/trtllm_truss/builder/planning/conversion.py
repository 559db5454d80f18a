"""The first step: convert a Hugging Face checkpoint to TensorRT-LLM's format and quantize it.

The family's ``convert_checkpoint.py`` rounds weights, and calibrates SmoothQuant and an INT8 KV
cache; ``quantize.py`` calibrates everything else, for all families.
"""

from __future__ import annotations

from trtllm_truss.builder.planning.families import Family
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.releases.versions import Release
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.quantization import Awq, Fp8, SmoothQuant, WeightOnly

_PRECISIONS = {"int8_weight_only": "int8", "int4_weight_only": "int4"}
_FORMATS = {"int8_weight_only": "int8_wo", "int4_weight_only": "int4_wo"}


def conversion_command(
    settings: Settings, build: Build, checkpoint: Checkpoint, family: Family, version: Release
) -> tuple[str, ...]:
    """Return the command, with shell variables for folders (see `plan`)."""
    common = [
        *("--model_dir", "$CHECKPOINT"),
        *("--output_dir", "$CONVERTED"),
        *("--dtype", resolved_dtype(build, checkpoint)),
        *("--tp_size", str(settings.tensor_parallelism)),
        *("--pp_size", str(settings.pipeline_parallelism)),
    ]
    if needs_quantize_script(build):
        script = ["$PYTHON", "$EXAMPLES/quantization/quantize.py"]
        return (*script, *common, *_quantize_flags(build))
    script = ["$PYTHON", f"$EXAMPLES/{family.script(version)}"]
    return (*script, *common, *_convert_flags(build, family))


def needs_quantize_script(build: Build) -> bool:
    """Return whether ``quantize.py`` replaces the convert script."""
    return isinstance(build.quantization, Awq | Fp8) or build.kv_cache_dtype == "fp8"


def resolved_dtype(build: Build, checkpoint: Checkpoint) -> str:
    """Resolve ``auto`` as the scripts do: float32 becomes float16."""
    if build.dtype != "auto":
        return build.dtype
    return "float16" if checkpoint.dtype == "float32" else checkpoint.dtype


def _convert_flags(build: Build, family: Family) -> list[str]:
    flags: list[str] = []
    if family.version_setting is not None and family.version_flag is not None:
        member = getattr(build, family.version_setting)
        flags += [] if member is None else [family.version_flag, member]
    match build.quantization:
        case WeightOnly(method=method):
            flags += ["--use_weight_only", "--weight_only_precision", _PRECISIONS[method]]
        case SmoothQuant() as smooth:
            flags += ["--smoothquant", f"{smooth.alpha:g}"]
            flags += ["--per_token"] if smooth.per_token else []
            flags += ["--per_channel"] if smooth.per_channel else []
    flags += ["--int8_kv_cache"] if build.kv_cache_dtype == "int8" else []
    flags += ["--load_by_shard"] if build.load_by_shard else []
    flags += ["--workers", str(build.workers)] if build.workers else []
    return flags


def _quantize_flags(build: Build) -> list[str]:
    match build.quantization:
        case Awq() as awq:
            flags = ["--qformat", awq.format, "--awq_block_size", str(awq.block_size)]
            flags += ["--calib_size", str(awq.calib_size)]
            flags += ["--batch_size", str(awq.calib_batch_size)]
        case Fp8() as fp8:
            flags = ["--qformat", "fp8", "--calib_size", str(fp8.calib_size)]
            flags += ["--batch_size", str(fp8.calib_batch_size)]
        case WeightOnly(method=method):
            flags = ["--qformat", _FORMATS[method]]
        case _:
            flags = ["--qformat", "full_prec"]
    return [*flags, *(["--kv_cache_dtype", build.kv_cache_dtype] if build.kv_cache_dtype else [])]
