"""The settings model as documentation: `python -m trtllm_truss.settings.reference DOCS_DIR`.

Writes `settings.md` and `settings.schema.json`; a test keeps both equal to the model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trtllm_truss.settings.build import Build, RotaryScaling
from trtllm_truss.settings.model import PLATFORM_KEYS, Serving, Settings
from trtllm_truss.settings.quantization import METHOD_SECTIONS

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
    parts.append(_table("model_metadata.build", Build))
    parts.append(_table("model_metadata.build.rotary_scaling", RotaryScaling))
    parts += [
        _table("model_metadata.build.quantization", section)
        for section in dict.fromkeys(METHOD_SECTIONS.values())
    ]
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
    bounds += [f"`{json.dumps(choice)}`" for choice in _choices(field.annotation)]
    meaning = [field.description] if field.description else []
    return " ".join([*meaning, *([f"({', '.join(bounds)})"] if bounds else [])])


def _choices(annotation: object) -> list[object]:
    """The values of a literal type, or of one that may also be absent."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def main() -> None:
    """Writes both files into the folder that the command line names."""
    folder = Path(sys.argv[1])
    (folder / "settings.md").write_text(settings_page(), encoding="utf-8")
    (folder / "settings.schema.json").write_text(settings_schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
