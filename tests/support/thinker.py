"""Servers whose model reasons: a prompt of examples that SmolLM2 continues alike, or a script."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import yaml
from tests.fakes.tensorrt_llm import serve_checkpoint, write_checkpoint
from tests.fakes.triton import FAKE_ENGINE, write_engine
from tests.support.paths import EXAMPLE, ROOT
from tests.support.smollm2 import smollm2_file, write_smollm2_tokenizer
from tests.support.truss_process import Served

from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer

KINDS = ("cpu", "1.2.1", "1.3.0", "tensorrtllm")
"""Kinds of engine: OpenVINO, versions of the LLM API's fake, and the C++ backend's fake."""

THOUGHTS = "I look. It is so."
QUESTION = [{"role": "user", "content": "Is it May?"}]
LONG = [{"role": "user", "content": "Is it a long day?"}]
"""The script's reasoning about this fills blocks of the KV cache."""

TEMPLATE = """\
{%- set shot = '\\nA: <think>\\nI look. It is so.\\n</think>\\n\\nYes.\\n' -%}
{%- if mode == 'none' -%}{%- set shot = '\\nA: Yes.\\n' -%}{%- endif -%}
{%- for tool in tools or [] -%}{{ tool | tojson + '\\n' }}{%- endfor -%}
Q: Is it day?{{ shot }}Q: Is it hot?{{ shot }}Q: Is it dry?{{ shot }}\
Q: {{ messages[-1].content }}
A:{% if mode is not defined %} <think>
{% endif %}"""
"""Opens the reasoning, unless `mode` is `model`, which leaves that to the model, or `none`."""

MODES: dict[str, dict[str, str]] = {
    "the template opens it": {},
    "the model opens it": {"mode": "model"},
    "none": {"mode": "none"},
}
"""Variables of the template by who opens the reasoning."""

_SCRIPTS: list[tuple[list[dict[str, str]] | None, str, str | None, str]] = [
    (QUESTION, "the template opens it", None, f"{THOUGHTS}\n</think>\n\nYes."),
    (QUESTION, "the model opens it", None, f" <think>\n{THOUGHTS}\n</think>\n\nYes."),
    (QUESTION, "none", None, " Yes."),
    (LONG, "the template opens it", None, f"{'Hm. ' * 40}\n</think>\n\nYes."),
    (None, "", "get_weather", '{"name": "get_weather", "arguments": {"city": "Oslo"}}'),
    (None, "", "city", '{"city": "Oslo"}'),
    (None, "", "regex", "yes"),
    (None, "", "maybe", "maybe"),
    (None, "", "basic_any", '{"a": 1}'),
    (None, "", None, "Yes."),
]


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": f"get_{what}", "parameters": CITY}}
    for what in ("weather", "time")
]


def tokenizer_folder(folder: Path) -> Path:
    return write_smollm2_tokenizer(folder / "tokenizer", TEMPLATE)


def prompt_ids(
    tokenizer: TextTokenizer,
    messages: list[dict[str, str]],
    mode: str,
    tools: list[dict[str, Any]] | None = None,
) -> list[int]:
    return tokenizer.apply_chat_template(messages, variables=MODES[mode], tools=tools)


def serve_thinker(kind: str, folder: Path, **settings: Any) -> Served:
    """Start a server whose model reasons.

    Args:
        kind: the kind of engine.
        folder: for its files.
        settings: further `model_metadata`; `engine` has the behaviour of the fake C++ backend.
    """
    behaviour = settings.pop("engine", {})
    if kind in KINDS[1:3]:
        checkpoint = write_checkpoint(folder / "model", smollm2_file())
        write_smollm2_tokenizer(checkpoint, TEMPLATE)
        settings["runtime"] = {"guided_decoding_backend": "xgrammar"}
        return serve_checkpoint(checkpoint, kind, {}, **settings)
    config = yaml.safe_load(EXAMPLE.read_text())
    config.pop("external_package_dirs", None)
    tokenizer = tokenizer_folder(folder)
    settings["tokenizer_repository"] = str(tokenizer)
    environment = {}
    if kind == "tensorrtllm":
        engine = write_engine(
            folder / "engine", scripts=_write_scripts(tokenizer), log_reuse=1, **behaviour
        )
        has_torch = importlib.util.find_spec("torch") is not None
        config["external_package_dirs"] = [] if has_torch else [str(ROOT / "tests/fakes/torch")]
        config["model_metadata"] = {
            "engine_repository": str(engine),
            "runtime": {"guided_decoding_backend": "xgrammar"},
        }
        environment = FAKE_ENGINE
    config["model_metadata"].update(settings)
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return Served(file, environment)


def _write_scripts(folder: Path) -> Path:
    tokenizer = load_tokenizer(folder)
    scripts = [
        (
            [] if messages is None else prompt_ids(tokenizer, messages, mode, tools),
            guide,
            tokenizer.encode(text, add_special_tokens=False),
        )
        for messages, mode, guide, text in _SCRIPTS
        for tools in ((None,) if messages is None else (None, TOOLS))
    ]
    file = folder / "scripts.json"
    file.write_text(json.dumps(scripts))
    return file
