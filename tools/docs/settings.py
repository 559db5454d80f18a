"""Generate docs/settings.md and docs/settings.schema.json."""

from __future__ import annotations

import json

from pydantic import BaseModel
from tools.docs.tables import field_rows, table

from trtllm_truss.engines.kinds import KINDS
from trtllm_truss.settings.build import METHOD_SECTIONS, Build, RotaryScaling
from trtllm_truss.settings.model import PLATFORM_KEYS, Serving, Settings

_INTRODUCTION = """\
# Settings

All keys below `model_metadata` in `config.yaml`. This page is generated from
`packages/trtllm_truss/settings/model.py` (`make docs`); `settings.schema.json` is the same as a
JSON schema. An unknown key is an error that suggests the nearest known one. Keys of Baseten itself
are ignored: {platform}.

The secret `hf_access_token` (under `secrets` in `config.yaml`, value in the environment variable
`TRUSS_SECRET_hf_access_token` or in Baseten's workspace) is needed only for private or gated
repositories.
"""

_RUNTIME_NOTES = """\
### Notes on runtime

- `instance_count` is the number of copies of a one-GPU engine, which share the GPU. Triton hands
  requests to them in turn, so one may wait in a full copy while another has room.
- `max_beam_width` defaults to the engine's limit, or to 1 up to TensorRT-LLM 0.9. Requests of
  different widths never run together; set it to 1 so that beam-search requests cannot delay others.
- `guided_decoding_backend: xgrammar` enables structured output by a schema, a regular expression or
  a grammar, and forced tool calls. Compiled engines have it from TensorRT-LLM 0.19 on;
  `init` writes it.
- `llm_args` contains arguments of `tensorrt_llm.LLM`, for a checkpoint only
  ([llm-api.md](llm-api.md)).
"""


def settings_page() -> str:
    platform = ", ".join(f"`{key}`" for key in sorted(PLATFORM_KEYS))
    parts = [_INTRODUCTION.format(platform=platform), _table("model_metadata", Settings)]
    parts.append(_RUNTIME_NOTES)
    parts.append(_table("model_metadata.serving", Serving))
    parts.append(_table("model_metadata.build", Build))
    parts.append(_table("model_metadata.build.rotary_scaling", RotaryScaling))
    parts += [
        _table("model_metadata.build.quantization", section, *_methods(section))
        for section in dict.fromkeys(METHOD_SECTIONS.values())
    ]
    return "\n".join(parts)


def settings_schema() -> str:
    schema = Settings.model_json_schema()
    for kind in KINDS:
        for path, own in kind.settings_schema().items():
            *sections, name = path.split(".")
            place = schema["properties"]
            for section in sections:
                place = place[section]["properties"]
            place[name] = own
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _methods(section: type[BaseModel]) -> list[str]:
    return [method for method, each in METHOD_SECTIONS.items() if each is section]


def _table(title: str, section: type[BaseModel], *methods: str) -> str:
    """Return a section's heading and table; `methods` distinguish it from others with its key."""
    of = f" with {', '.join(f'`{method}`' for method in methods)}" if methods else ""
    rows = field_rows(section, section.model_fields, empty=True)
    return f"## `{title}`{of}\n\n" + table(["key", "default", "meaning"], rows)
