"""The second step: ``trtllm-build`` builds the engine from the converted checkpoint."""

from __future__ import annotations

from trtllm_truss.builder.planning.conversion import resolved_dtype
from trtllm_truss.builder.planning.flags import BUILD_FLAGS, FIXED_FLAGS, BuildFlag, Form
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.releases.versions import Release
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.model import Settings

PAGED_CONTEXT_USERS = ("enable_chunked_context", "enable_kv_cache_reuse")
"""Keys under `runtime` that need an engine with ``use_paged_context_fmha``."""

_ATTENTION_AUTO_SINCE: Release = (0, 11)
_PARALLELISM_UNTIL: Release = (0, 13)  # later versions read it from the checkpoint


def engine_command(
    settings: Settings, build: Build, checkpoint: Checkpoint, version: Release
) -> tuple[str, ...]:
    """Return the command, with shell variables for folders (see `plan`)."""
    dtype = resolved_dtype(build, checkpoint)
    attention = "auto" if version >= _ATTENTION_AUTO_SINCE else dtype
    words = ["trtllm-build", "--checkpoint_dir", "$CONVERTED", "--output_dir", "$ENGINE"]
    words += ["--gpt_attention_plugin", attention]
    for since, until, fixed in FIXED_FLAGS:
        words += fixed if since <= version < until else ()
    if version < _PARALLELISM_UNTIL:
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
    if build.gemm_plugin == "auto" and version < _ATTENTION_AUTO_SINCE:
        values["gemm_plugin"] = resolved_dtype(build, checkpoint)
    return values


def wants_paged_context(settings: Settings) -> bool:
    """Return whether `runtime` enables a user of ``use_paged_context_fmha``."""
    return any(getattr(settings.runtime, name) for name in PAGED_CONTEXT_USERS)


def _words(row: BuildFlag, value: object) -> list[str]:
    if value is None:
        return []
    if row.form is Form.VALUE:
        return [row.flag, str(value)]
    if row.form is Form.SWITCH:
        return [row.flag, "enable" if value else "disable"]
    return [row.flag] if value else []
