"""The flags of ``trtllm-build`` for each key under ``build``, by release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtllm_truss.releases.tables import read_table
from trtllm_truss.releases.versions import Release, release

OLDEST: Release = (0, 9)
"""Earlier images lack TensorRT-LLM's Python package: they serve engines but cannot build."""

NEWEST: Release = (1, 3)
"""The first release without ``trtllm-build``."""


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
