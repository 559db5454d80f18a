"""The flags of ``trtllm-build`` and what each key under ``build`` becomes, version by version.

Sources in NVIDIA/TensorRT-LLM: ``tensorrt_llm/commands/build.py``, ``plugin/plugin.py`` and
``builder.py`` at 0.9, 0.12, 0.16 and 1.0, and the release notes for what came between.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from trtllm_truss.engines.versions import Release

OLDEST: Release = (0, 9)
"""Images before carry no Python package of TensorRT-LLM: they serve engines and build none."""

NEWEST: Release = (1, 3)
"""The first release that has no ``trtllm-build`` any more."""


class Form(enum.Enum):
    """How a flag is written."""

    VALUE = "--flag VALUE"
    SWITCH = "--flag enable|disable"
    PRESENCE = "--flag, or nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFlag:
    """One flag of ``trtllm-build``.

    Attributes:
        setting: the key under ``build``.
        flag: what it becomes.
        form: how it is written.
        since: the first version that has the flag.
        until: the first version that has it no more.
        defaults: the tool's own value, by the version from which on it holds.
        afterwards: what takes its place from `until` on, as a remedy.
    """

    setting: str
    flag: str
    form: Form = Form.VALUE
    since: Release = OLDEST
    until: Release = NEWEST
    defaults: Mapping[Release, str] = field(default_factory=dict)
    afterwards: str = ""

    def is_in(self, version: Release) -> bool:
        """Whether a version has the flag."""
        return self.since <= version < self.until

    def default(self, version: Release) -> str | None:
        """The tool's own value in a version, if there is one."""
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
"""What in-flight batching needs, always said: first version, first without, flag."""
