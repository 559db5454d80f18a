"""The commands of a build, and the supported model families with their conversion scripts.

First the family's ``convert_checkpoint.py`` converts a Hugging Face checkpoint to TensorRT-LLM's
format; it rounds weights, and calibrates SmoothQuant and an INT8 KV cache. ``quantize.py``
calibrates everything else, for all families. Then ``trtllm-build`` builds the engine. A CPU build
has one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtllm_truss.engines.gpus import ComputeCapability, parse_accelerator
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.releases import Release, holds, read_table, release
from trtllm_truss.settings.build import Awq, Build, Fp8, SmoothQuant, WeightOnly
from trtllm_truss.settings.model import Settings


@dataclass(frozen=True, slots=True)
class Target:
    """The environment that the engine is built for; None means unknown.

    Attributes:
        version: version of TensorRT-LLM.
        memory_bytes: memory of one GPU.
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
        """Prefer local GPUs to config.yaml's accelerator; an engine runs where it was built."""
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
    """Models that share a conversion script; `releases/builds.toml` explains the columns."""

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
    """Return True if ``quantize.py`` replaces the conversion script."""
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


CPU_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
"""Architectures that GGUF's `llama` covers."""

CPU_BLOCK = 32
"""Number of values in a row that share a scale; rows must divide into whole blocks."""

_WEIGHTS = {None: "F16", "int8_weight_only": "Q8_0", "int4_weight_only": "Q4_0"}


def cpu_command(build: Build, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the command, with shell variables for folders (see `plan`)."""
    method = build.quantization.method if build.quantization else None
    sequence = build.sequence_tokens or checkpoint.positions
    context = ["--context", str(sequence)] if sequence else []
    return (
        *("$PYTHON", "-m", "trtllm_builder.gguf_conversion"),
        *("--checkpoint", "$CHECKPOINT", "--output", "$ENGINE/model.gguf"),
        *("--weights", _WEIGHTS[method]),
        *context,
    )


def cpu_quantizations() -> tuple[str, ...]:
    """Return the values of ``build.quantization.method`` supported on the CPU."""
    return tuple(method for method in _WEIGHTS if method)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFlag:
    """One flag of ``trtllm-build``; `releases/builds.toml` explains the columns."""

    setting: str
    form: Literal["value", "switch", "presence"] = "value"
    since: Release
    until: Release
    defaults: tuple[tuple[str, str], ...] = ()
    afterwards: str = ""
    source: str

    @property
    def flag(self) -> str:
        return f"--{self.setting}"

    def is_in(self, version: Release) -> bool:
        return self.since <= version < self.until

    def default(self, version: Release) -> str | None:
        """Return the tool's default in a version, if known."""
        known = [value for since, value in self.defaults if release(since) <= version]
        return known[-1] if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedFlag:
    """A flag that is always passed."""

    name: str
    value: str
    since: Release
    until: Release
    source: str


BUILD_FLAGS = read_table("builds", "flags", BuildFlag, "setting")
FIXED_FLAGS = read_table("builds", "fixed_flags", FixedFlag)

PAGED_CONTEXT_USERS = ("enable_chunked_context", "enable_kv_cache_reuse")
"""Keys of `runtime` that need an engine with ``use_paged_context_fmha``."""


def engine_command(
    settings: Settings, build: Build, checkpoint: Checkpoint, version: Release
) -> tuple[str, ...]:
    """Return the command, with shell variables for folders (see `plan`)."""
    dtype = resolved_dtype(build, checkpoint)
    has_auto = holds("attention_plugin_auto", version)
    attention = "auto" if has_auto else dtype
    words = ["trtllm-build", "--checkpoint_dir", "$CONVERTED", "--output_dir", "$ENGINE"]
    words += ["--gpt_attention_plugin", attention]
    for fixed in FIXED_FLAGS:
        words += [f"--{fixed.name}", fixed.value] if fixed.since <= version < fixed.until else []
    if not holds("parallelism_in_checkpoint", version):
        words += ["--tp_size", str(settings.tensor_parallelism)]
        words += ["--pp_size", str(settings.pipeline_parallelism)]
    values = resolved_values(settings, build, checkpoint, version)
    for row in BUILD_FLAGS:
        if row.is_in(version):
            words += _words(row, values.get(row.setting))
    return tuple(words)


def resolved_values(
    settings: Settings, build: Build, checkpoint: Checkpoint, version: Release
) -> dict[str, object]:
    """Return the values of `BUILD_FLAGS` by key; None means the tool's default."""
    values: dict[str, object] = {row.setting: getattr(build, row.setting) for row in BUILD_FLAGS}
    values["max_seq_len"] = build.sequence_tokens
    if build.max_output_len is None and build.max_seq_len and build.max_input_len:
        values["max_output_len"] = build.max_seq_len - build.max_input_len
    if build.use_paged_context_fmha is None and wants_paged_context(settings):
        values["use_paged_context_fmha"] = True
    if build.gemm_plugin == "auto" and not holds("attention_plugin_auto", version):
        values["gemm_plugin"] = resolved_dtype(build, checkpoint)
    return values


def wants_paged_context(settings: Settings) -> bool:
    """Return True if `runtime` enables a feature that needs ``use_paged_context_fmha``."""
    return any(getattr(settings.runtime, name) for name in PAGED_CONTEXT_USERS)


def _words(row: BuildFlag, value: object) -> list[str]:
    if value is None:
        return []
    if row.form == "value":
        return [row.flag, str(value)]
    if row.form == "switch":
        return [row.flag, "enable" if value else "disable"]
    return [row.flag] if value else []
