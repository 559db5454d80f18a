"""Plan a build: turn settings and ``config.json`` into commands, before any download.

All problems are reported at once. Commands refer to folders by shell variables, so that a plan is a
readable and runnable shell script; the runner substitutes paths:

* ``$CHECKPOINT``: the Hugging Face checkpoint
* ``$EXAMPLES``: the folder ``examples`` of NVIDIA/TensorRT-LLM at the version's tag
* ``$CONVERTED``: the checkpoint in TensorRT-LLM's format, between the steps
* ``$ENGINE``: the engine repository
* ``$PYTHON``: the interpreter
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtllm_builder.commands import (
    BUILD_FLAGS,
    CPU_ARCHITECTURES,
    CPU_BLOCK,
    FAMILIES,
    PAGED_CONTEXT_USERS,
    Family,
    Target,
    conversion_command,
    cpu_command,
    cpu_quantizations,
    engine_command,
    find_family,
    wants_paged_context,
)
from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.engines.images import IMAGES
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.engines.quantization import MINIMUM_CAPABILITY
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import FACTS, dotted, holds
from trtllm_truss.settings.build import Awq, Build
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


_VOLTA: ComputeCapability = (7, 0)
_HOPPER: ComputeCapability = (9, 0)


def gpu_problems(settings: Settings, build: Build, target: Target) -> Iterator[str]:
    """Yield each problem of the build with its remedy."""
    ranks = settings.world_size
    if target.gpu_count is not None and target.gpu_count < ranks:
        yield (
            f"the build needs {ranks} GPUs (tensor_parallelism × pipeline_parallelism), but only "
            f"{target.gpu_count} are available; set resources.accelerator to {ranks}, or lower "
            "either"
        )
    capability = target.compute_capability
    if capability is None:
        return
    for name, minimum, remedy in _needs(build):
        if capability < minimum:
            yield (
                f"{name} needs compute capability {_dotted(minimum)}, but {target.gpu} has "
                f"{_dotted(capability)}; {remedy}"
            )
    if capability == _VOLTA and not holds("volta_kernels", target.version):
        yield f"TensorRT-LLM {target.version} has no kernels for {target.gpu}; use a newer GPU"


def _needs(build: Build) -> Iterator[tuple[str, ComputeCapability, str]]:
    quantization, fp8 = build.quantization, MINIMUM_CAPABILITY["FP8"]
    if quantization is not None and quantization.method == "fp8":
        yield "build.quantization.method fp8", fp8, "choose another method"
    if isinstance(quantization, Awq) and quantization.format == "w4a8_awq":
        yield "build.quantization.format w4a8_awq", fp8, "set int4_awq"
    if build.kv_cache_dtype == "fp8":
        yield "build.kv_cache_dtype fp8", fp8, "set int8 or remove it"
    if build.use_fp8_context_fmha:
        yield "build.use_fp8_context_fmha", _HOPPER, "remove it"
    if build.dtype == "bfloat16":
        yield "build.dtype bfloat16", MINIMUM_CAPABILITY["BF16"], "set float16"


def _dotted(capability: ComputeCapability) -> str:
    return ".".join(map(str, capability))


_OTHER_FLOAT = {"smoothquant": "fp8", "fp8": "int8"}
"""Methods and their incompatible KV-cache types: INT8 and FP8 kernels cannot be mixed."""


def quantization_problems(
    settings: Settings, build: Build, checkpoint: Checkpoint, family: Family
) -> Iterator[str]:
    """Yield each problem of the quantization with its remedy."""
    method = build.quantization.method if build.quantization else None
    cache = build.kv_cache_dtype
    if method is not None and method not in family.quantizations:
        yield (
            f"build.quantization.method {method} is not supported for {family.name}; use one of "
            f"{', '.join(sorted(family.quantizations))} ({method} works with {_families(method)})"
        )
    if cache is not None and cache not in family.kv_cache_dtypes:
        choices = " or ".join(sorted(family.kv_cache_dtypes))
        remedy = f"set {choices}" if choices else "remove it"
        yield f"build.kv_cache_dtype {cache} is not supported for {family.name}; {remedy}"
    if cache is not None and _OTHER_FLOAT.get(method or "") == cache:
        other = "int8" if cache == "fp8" else "fp8"
        yield (
            f"build.quantization.method {method} and build.kv_cache_dtype {cache} are "
            f"incompatible; set kv_cache_dtype to {other}, or choose another method"
        )
    if build.load_by_shard and (method == "smoothquant" or cache == "int8"):
        yield "build.load_by_shard cannot calibrate; remove it"
    if build.use_fp8_context_fmha and method != "fp8":
        yield "build.use_fp8_context_fmha needs build.quantization.method fp8; remove it"
    if isinstance(build.quantization, Awq):
        yield from _block_problems(settings, build.quantization, checkpoint)


def quantized_already(checkpoint: Checkpoint) -> str:
    return (
        f"the checkpoint's weights are quantized already ({checkpoint.quantized_by}); name the "
        "original checkpoint in build.checkpoint_repository and set build.quantization"
    )


def _block_problems(settings: Settings, awq: Awq, checkpoint: Checkpoint) -> Iterator[str]:
    tensor = settings.tensor_parallelism
    for name, size in (("hidden", checkpoint.hidden_size), ("inner", checkpoint.inner_size)):
        if size % tensor == 0 and (size // tensor) % awq.block_size:
            yield (
                f"build.quantization.block_size {awq.block_size} does not divide the model's "
                f"{name} size on one of {tensor} GPUs ({size // tensor}); lower either"
            )


def _families(method: str) -> str:
    return ", ".join(family.name for family in FAMILIES if method in family.quantizations)


_ROTARY = ("rotary_base", "rotary_dim", "rotary_scaling")
_VERSIONS = tuple(family.version_setting for family in FAMILIES if family.version_setting)


def validate_gpu_build(
    settings: Settings, build: Build, checkpoint: Checkpoint, target: Target
) -> Family:
    """Validate a build for GPUs and return the checkpoint's family.

    Raises:
        SettingsError: the build is invalid; the message lists every problem.
    """
    if not holds("builds_engines", target.version):
        tags = [image.tag for image in IMAGES if holds("builds_engines", image.tensorrt_llm)]
        raise SettingsError(
            f"TensorRT-LLM {target.version} cannot build engines: images before {tags[0]} have no "
            f"builder, and {dotted(FACTS['builds_engines'].until or ())} removed it. Use an image "
            f"from {tags[0]} to {tags[-1]}."
        )
    family = find_family(checkpoint.architecture)
    if family is None:
        names = ", ".join(family.name for family in FAMILIES)
        raise SettingsError(
            f"{checkpoint.architecture} is not supported; supported families: {names}. Build it by "
            "hand, and name the result in engine_repository."
        )
    _raise(
        [
            *_code_problems(settings, build, checkpoint),
            *_family_problems(build, checkpoint, family, target),
            *_member_problems(build, family),
            *_split_problems(settings, checkpoint, family),
            *_version_problems(build, target),
            *quantization_problems(settings, build, checkpoint, family),
            *gpu_problems(settings, build, target),
            *_runtime_problems(settings, build),
        ]
    )
    return family


def validate_cpu_build(settings: Settings, build: Build, checkpoint: Checkpoint) -> None:
    """Validate a build for the CPU.

    Raises:
        SettingsError: the build is invalid; the message lists every problem.
    """
    _raise(list(cpu_problems(settings, build, checkpoint)))


def _family_problems(
    build: Build, checkpoint: Checkpoint, family: Family, target: Target
) -> Iterator[str]:
    if target.release < family.since:
        since = ".".join(map(str, family.since))
        yield f"{family.name} needs TensorRT-LLM {since}; use a newer image"
    if checkpoint.quantized_by is not None:
        yield quantized_already(checkpoint)
    if build.load_by_shard and not family.load_by_shard:
        yield f"build.load_by_shard is not supported for {family.name}; remove it"
    if build.use_fused_mlp and not family.gated_mlp:
        yield f"build.use_fused_mlp needs a gated MLP, which {family.name} lacks; remove it"
    if build.multi_block_mode and family.name == "Qwen":
        yield "build.multi_block_mode is not supported for Qwen; remove it"


def _code_problems(settings: Settings, build: Build, checkpoint: Checkpoint) -> Iterator[str]:
    if checkpoint.has_code and not settings.trust_remote_code:
        yield (
            f"{build.checkpoint_repository} has custom Python code, which the conversion runs; set "
            "trust_remote_code to true if you trust it"
        )


def _member_problems(build: Build, family: Family) -> Iterator[str]:
    for key in _VERSIONS:
        if getattr(build, key) is not None and key != family.version_setting:
            yield f"build.{key} is not supported for {family.name}; remove it"
    required = family.version_setting if family.version_required else None
    if required is not None and getattr(build, required) is None:
        choices = "v1_7b, v1_13b, v2_7b, v2_13b"
        yield f"build.{required} is missing; set it to one of {choices}"
    for key in _ROTARY:
        if getattr(build, key) is not None and key not in family.rotary_settings:
            yield f"build.{key} is not supported for {family.name}; remove it"


def _split_problems(settings: Settings, checkpoint: Checkpoint, family: Family) -> Iterator[str]:
    tensor, pipeline = settings.tensor_parallelism, settings.pipeline_parallelism
    remainders = {
        f"attention heads ({checkpoint.heads})": checkpoint.heads % tensor,
        f"key/value heads ({checkpoint.kv_heads})": _uneven(checkpoint.kv_heads, tensor),
        f"inner size ({checkpoint.inner_size})": checkpoint.inner_size % tensor,
    }
    if uneven := [name for name, rest in remainders.items() if rest]:
        yield (
            f"tensor_parallelism {tensor} does not divide the model's {', '.join(uneven)}; set it "
            f"to {_largest_split(checkpoint, tensor)}"
        )
    if pipeline > checkpoint.layers:
        yield f"pipeline_parallelism {pipeline} exceeds the model's {checkpoint.layers} layers"
    if pipeline > 1 and not family.pipeline:
        yield f"{family.name} has no pipeline parallelism; set pipeline_parallelism to 1"


def _uneven(heads: int, tensor: int) -> int:
    """Return 0 if all GPUs get the same number of heads; fewer heads than GPUs are copied."""
    fewer, more = sorted((heads, tensor))
    return more % fewer


def _largest_split(checkpoint: Checkpoint, maximum: int) -> int:
    """Return the largest tensor parallelism up to `maximum` that divides the model; at least 1."""
    return next(
        tensor
        for tensor in range(maximum, 0, -1)
        if not checkpoint.heads % tensor
        and not checkpoint.inner_size % tensor
        and not _uneven(checkpoint.kv_heads, tensor)
    )


def _version_problems(build: Build, target: Target) -> Iterator[str]:
    for row in BUILD_FLAGS:
        gone = row.afterwards and target.release >= row.until
        if gone and getattr(build, row.setting) is not None:
            until = ".".join(map(str, row.until))
            yield (f"build.{row.setting} was removed in TensorRT-LLM {until}; {row.afterwards}")


def _runtime_problems(settings: Settings, build: Build) -> Iterator[str]:
    if build.use_paged_context_fmha is False and wants_paged_context(settings):
        names = " or ".join(f"runtime.{name}" for name in PAGED_CONTEXT_USERS)
        yield f"build.use_paged_context_fmha is false, but {names} needs it; remove it"


def _raise(problems: list[str]) -> None:
    if problems:
        raise SettingsError("cannot build: " + "; ".join(problems) + ".")


_INDENT = " \\\n    "


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a build.

    Attributes:
        name: one word, for progress and the completion marker.
        command: argument vector, with shell variables for folders.
        output: variable of the output folder.
    """

    name: str
    command: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        """Return the command for a shell, each option and its value on one line."""
        lines: list[str] = []
        for word in map(_quoted, self.command):
            if lines and not word.startswith("--") and lines[-1].startswith("--"):
                lines[-1] += f" {word}"
            elif lines and not word.startswith("--"):
                lines[0] += f" {word}"
            else:
                lines.append(word)
        return _INDENT.join(lines)


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The steps of a build, in order.

    Attributes:
        checkpoint_changes: keys of the checkpoint's ``config.json`` that the settings replace, in a
            copy used by the steps.
    """

    steps: tuple[Step, ...]
    checkpoint_changes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the plan as a shell script."""
        changes = [
            f"# config.json in $CHECKPOINT is changed: {key} = {value!r}"
            for key, value in self.checkpoint_changes.items()
        ]
        return "\n\n".join([*changes, *map(str, self.steps)]) + "\n"


def plan_build(
    settings: Settings, build: Build, checkpoint: Checkpoint, target: Target
) -> BuildPlan:
    """Plan the steps from a checkpoint to an engine.

    Raises:
        SettingsError: the engine cannot be built; the message lists every problem and remedy.
    """
    if build.for_cpu:
        validate_cpu_build(settings, build, checkpoint)
        return BuildPlan((Step("convert", cpu_command(build, checkpoint), "$ENGINE"),))
    family = validate_gpu_build(settings, build, checkpoint, target)
    conversion = conversion_command(settings, build, checkpoint, family, target.release)
    engine = engine_command(settings, build, checkpoint, target.release)
    return BuildPlan(
        (Step("convert", conversion, "$CONVERTED"), Step("build", engine, "$ENGINE")),
        checkpoint_changes(build),
    )


def checkpoint_changes(build: Build) -> dict[str, Any]:
    """Return the rotary keys to replace in ``config.json`` for the conversion scripts."""
    scaling = build.rotary_scaling
    changes = {
        "rope_theta": build.rotary_base,
        "rotary_dim": build.rotary_dim,
        "rope_scaling": scaling and {"type": scaling.type, "factor": scaling.factor},
    }
    return {key: value for key, value in changes.items() if value is not None}


def _quoted(word: str) -> str:
    return word if word.startswith("$") else shlex.quote(word)
