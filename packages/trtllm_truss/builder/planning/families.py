"""The supported model families, their convert scripts and the scripts' capabilities."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.releases.tables import read_table
from trtllm_truss.releases.versions import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models that share a convert script; `releases/builds.toml` explains the columns."""

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
