"""The tables of docs/build.md; the other text is written by hand."""

from __future__ import annotations

from collections.abc import Collection

from tools.docs.lmi_options import LMI_OPTIONS

from trtllm_builder.commands import BUILD_FLAGS, FAMILIES, BuildFlag, Family
from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.releases import FACTS, Release, release


def build_tables() -> dict[str, str]:
    """Return the tables by their names in the page."""
    return {"families": _families(), "flags": _flags(), "lmi": _lmi_options()}


def _families() -> str:
    rows = ["| family | architectures | quantization | KV cache | its own keys |", _line(5)]
    for family in FAMILIES:
        architectures = ", ".join(f"`{name}`" for name in family.architectures)
        rows.append(
            f"| {family.name} | {architectures} | {_list(family.quantizations)} | "
            f"{_list(family.kv_cache_dtypes)} | {_list(_own_keys(family))} |"
        )
    return "\n".join(rows) + "\n"


def _own_keys(family: Family) -> set[str]:
    version = {family.version_setting} if family.version_setting else set()
    by_shard = {"load_by_shard"} if family.load_by_shard else set()
    return version | by_shard | {*family.rotary_settings}


def _flags() -> str:
    rows = [f"| key | flag | versions | default in {PINNED_VERSION} |", _line(4)]
    for row in BUILD_FLAGS:
        default = row.default(release(PINNED_VERSION)) if row.is_in(release(PINNED_VERSION)) else ""
        rows.append(f"| `{row.setting}` | `{row.flag}` | {_versions(row)} | {default or '–'} |")
    return "\n".join(rows) + "\n"


def _versions(row: BuildFlag) -> str:
    builds = FACTS["builds_engines"]
    since = "" if row.since == builds.since else f"from {_dotted(row.since)} "
    until = "" if row.until == builds.until else f"before {_dotted(row.until)}"
    then = f"; then {row.afterwards}" if row.afterwards else ""
    return (since + until).strip() + then or "all"


def _lmi_options() -> str:
    rows = ["| LMI | here | |", _line(3)]
    for name, option in LMI_OPTIONS.items():
        setting = f"`{option.setting}`" if option.setting else "–"
        rows.append(f"| `option.{name}` | {setting} | {option.note} |")
    return "\n".join(rows) + "\n"


def _list(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "–"


def _dotted(version: Release) -> str:
    return ".".join(map(str, version))


def _line(columns: int) -> str:
    return "|" + "---|" * columns
