"""The flags of ``trtllm-build`` for each key under ``build``, by version.

Sources in NVIDIA/TensorRT-LLM: ``tensorrt_llm/commands/build.py``, ``plugin/plugin.py`` and
``builder.py`` at 0.9, 0.12, 0.16 and 1.0, and the release notes for the versions between.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from trtllm_truss.releases.versions import Release

OLDEST: Release = (0, 9)
"""Earlier images lack TensorRT-LLM's Python package: they serve engines but cannot build."""

NEWEST: Release = (1, 3)
"""The first release without ``trtllm-build``."""


class Form(enum.Enum):
    """Syntax of a flag."""

    VALUE = "--flag VALUE"
    SWITCH = "--flag enable|disable"
    PRESENCE = "--flag, or nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFlag:
    """One flag of ``trtllm-build``.

    Attributes:
        setting: the key under ``build``.
        flag: the name on the command line.
        form: the syntax of the flag.
        since: the first version with the flag.
        until: the first version without it.
        defaults: the tool's default by first version.
        afterwards: the remedy from `until` on.
    """

    setting: str
    flag: str
    form: Form = Form.VALUE
    since: Release = OLDEST
    until: Release = NEWEST
    defaults: Mapping[Release, str] = field(default_factory=dict)
    afterwards: str = ""

    def is_in(self, version: Release) -> bool:
        return self.since <= version < self.until

    def default(self, version: Release) -> str | None:
        """Return the tool's default in a version, if known."""
        known = [value for since, value in sorted(self.defaults.items()) if since <= version]
        return known[-1] if known else None


def _switch(setting: str, **fields: object) -> BuildFlag:
    return BuildFlag(setting=setting, flag=f"--{setting}", form=Form.SWITCH, **fields)  # type: ignore[arg-type]


def _value(setting: str, **fields: object) -> BuildFlag:
    return BuildFlag(setting=setting, flag=f"--{setting}", **fields)  # type: ignore[arg-type]


BUILD_FLAGS: tuple[BuildFlag, ...] = (
    _value("max_batch_size", defaults={(0, 9): "1", (0, 11): "256", (0, 14): "2048"}),
    _value("max_input_len", defaults={(0, 9): "1024"}),
    _value("max_output_len", until=(0, 11), defaults={(0, 9): "1024"}),
    _value("max_seq_len", since=(0, 11)),
    _value("max_beam_width", defaults={(0, 9): "1"}),
    _value("max_num_tokens", defaults={(0, 11): "8192"}),
    _value("opt_num_tokens"),
    _value("gemm_plugin", defaults={(0, 9): "disable"}),
    _value("tokens_per_block", defaults={(0, 9): "128", (0, 11): "64", (0, 20): "32"}),
    _switch("use_paged_context_fmha", defaults={(0, 9): "disable", (0, 20): "enable"}),
    _switch("use_fp8_context_fmha", defaults={(0, 9): "disable", (0, 20): "enable"}),
    _switch(
        "context_fmha_fp32_acc",
        until=(0, 12),
        afterwards="set model_metadata.runtime.enable_context_fmha_fp32_acc instead",
    ),
    _switch(
        "multi_block_mode",
        until=(0, 12),
        afterwards="set model_metadata.runtime.multi_block_mode instead",
    ),
    BuildFlag(setting="use_fused_mlp", flag="--use_fused_mlp", form=Form.PRESENCE, until=(0, 13)),
    _switch("use_fused_mlp", since=(0, 13), defaults={(0, 13): "enable"}),
    _switch(
        "use_custom_all_reduce",
        until=(0, 12),
        afterwards="remove it: TensorRT-LLM chooses by itself",
    ),
    _value("logits_dtype"),
    _value("workers", defaults={(0, 9): "1"}),
)

FIXED_FLAGS: tuple[tuple[Release, Release, tuple[str, ...]], ...] = (
    (OLDEST, NEWEST, ("--remove_input_padding", "enable")),
    (OLDEST, NEWEST, ("--context_fmha", "enable")),
    (OLDEST, (0, 13), ("--paged_kv_cache", "enable")),
    ((0, 13), NEWEST, ("--kv_cache_type", "paged")),
)
"""Always passed, for in-flight batching: first version, first version without, flag."""
