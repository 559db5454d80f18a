"""The settings model as documentation: `python -m trtllm_truss.settings.reference DOCS_DIR`.

Writes `settings.md` and `settings.schema.json`; a test keeps both equal to the model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trtllm_truss.settings.model import PLATFORM_KEYS, Serving, Settings

_INTRODUCTION = """\
# Settings

Everything below `model_metadata` in `config.yaml`. This page is generated from
`packages/trtllm_truss/settings/model.py` (`make docs`); `settings.schema.json` beside it is the
same as a JSON schema. An unknown key is an error that suggests the nearest known one. Keys that
Baseten reads for itself pass unread: {platform}.

The secret `hf_access_token` (under `secrets` in `config.yaml`, value in the environment variable
`TRUSS_SECRET_hf_access_token` or in Baseten's workspace) is needed only for private or gated
repositories.
"""


def settings_page() -> str:
    """docs/settings.md."""
    platform = ", ".join(f"`{key}`" for key in sorted(PLATFORM_KEYS))
    parts = [_INTRODUCTION.format(platform=platform), _table("model_metadata", Settings)]
    parts.append(_table("model_metadata.serving", Serving))
    return "\n".join(parts)


def settings_schema() -> str:
    """docs/settings.schema.json."""
    return json.dumps(Settings.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


def _table(title: str, section: type[BaseModel]) -> str:
    rows = [f"## `{title}`", "", "| key | default | meaning |", "|---|---|---|"]
    for name, field in section.model_fields.items():
        rows.append(f"| `{name}` | {_default(field)} | {_meaning(field)} |")
    return "\n".join(rows) + "\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return "`{}`"
    return f"`{json.dumps(field.default)}`"


def _meaning(field: FieldInfo) -> str:
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    bounds = [
        f"{word} {getattr(limit, name)}"
        for limit in field.metadata
        for name, word in words.items()
        if hasattr(limit, name)
    ]
    return f"{field.description}" + (f" ({', '.join(bounds)})" if bounds else "")


def main() -> None:
    """Writes both files into the folder that the command line names."""
    folder = Path(sys.argv[1])
    (folder / "settings.md").write_text(settings_page(), encoding="utf-8")
    (folder / "settings.schema.json").write_text(settings_schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
