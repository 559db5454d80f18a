"""The keys of `runtime` for a checkpoint: their arguments of ``tensorrt_llm.LLM``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_truss.releases.tables import read_table
from trtllm_truss.settings.runtime import ParameterValue

_CONVERSIONS: dict[str, tuple[str, Callable[[ParameterValue], Any]]] = {
    "": ("", lambda value: value),
    "list": ("a list", lambda value: list(value) if isinstance(value, tuple) else value),
    "upper": ("in upper case", lambda value: str(value).upper()),
    "inverted": ("inverted", lambda value: not value),
    "object": (
        "`false` is `null`, which turns graphs off; `true` is the default",
        lambda value: {} if value else None,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeKey:
    """The fate of one key of `runtime`; `releases/checkpoint_keys.toml` explains the columns."""

    name: str
    argument: str = ""
    kept: str = ""
    unused: str = ""
    refused: str = ""
    conversion: Literal["", "list", "upper", "inverted", "object"] = ""
    source: str

    @property
    def note(self) -> str:
        """How the value is converted; empty if it passes unchanged."""
        return _CONVERSIONS[self.conversion][0]

    def convert(self, value: ParameterValue) -> Any:
        return _CONVERSIONS[self.conversion][1](value)


RUNTIME_KEYS = {row.name: row for row in read_table("checkpoint_keys", "keys", RuntimeKey)}
"""Every key that a release with the LLM API's PyTorch backend knows."""

KEPT_KEYS = frozenset(name for name, key in RUNTIME_KEYS.items() if key.kept)
