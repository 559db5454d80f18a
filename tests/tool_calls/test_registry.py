"""Formats by name, and by the lines of chat templates that give them away."""

# ruff: noqa: E501 - lines of templates

from __future__ import annotations

from typing import get_args

import pytest

from trtllm_truss.settings.model import ReasoningParser, ToolParser
from trtllm_truss.tool_calls.parser import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    detect_reasoning_format,
    detect_tool_format,
)

# What models' templates hold of tools and reasoning, shortened.
TEMPLATES: dict[str, tuple[str, str | None, str | None]] = {
    "qwen2.5": (
        """{{- "within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <name>" }}""",
        "hermes",
        None,
    ),
    "qwen3": (
        """{{- '\\n<tool_call>\\n{"name": "' }}{%- if enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}""",
        "hermes",
        "qwen3",
    ),
    "qwen3-coder": (
        """{{- '\\n<tool_call>\\n<function=' + name + '>\\n' }}{{- '<parameter=' + key + '>\\n' }}""",
        "qwen3_coder",
        None,
    ),
    "seed-oss": (
        """{%- set begin = '<seed:tool_call>' %}{{ "<function=" + name }}{{ "<parameter=" + key }}
        {%- set think_begin_token = '<seed:think>' -%}""",
        "qwen3_coder",
        "seed_oss",
    ),
    "llama3.1": (
        """{{- "Environment: ipython\\n" }}{{- '{"name": function name, "parameters": dictionary' }}
        {{- '"parameters": ' }}{{- "<|python_tag|>" + name + ".call(" }}""",
        "llama3_json",
        None,
    ),
    "llama3.2-pythonic": (
        """{{- 'Respond in the format [func_name1(params_name1=params_value1, ...)] ' }}
        {%- elif message.role == "ipython" %}{{ parameters }}""",
        "pythonic",
        None,
    ),
    "mistral-nemo": ("""{{- "[TOOL_CALLS][" }}{{- tool_call.function|tojson }}""", "mistral", None),
    "mistral-small-3.2": (
        """{{- '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' + arguments }}""",
        "mistral_args",
        None,
    ),
    "ministral-3": (
        """{{- '[THINK]' + block['thinking'] + '[/THINK]' }}{{- '[TOOL_CALLS]' + n + '[ARGS]' }}""",
        "mistral_args",
        "mistral",
    ),
    "deepseek-r1": (
        """{{'<｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\\n' + '```json' + '\\n'}}
        {% set content = content.split('</think>')[-1] %}{{'<｜Assistant｜><think>\\n'}}""",
        "deepseek_v3",
        "deepseek_r1",
    ),
    "deepseek-v3": (
        """{{'<｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\\n```json\\n'}}<｜Assistant｜>""",
        "deepseek_v3",
        None,
    ),
    "deepseek-v3.1": (
        """{{'<｜tool▁call▁begin｜>'+ name + '<｜tool▁sep｜>' + a}}{{'<｜Assistant｜></think>'}}""",
        "deepseek_v31",
        "deepseek_r1",
    ),
    "gpt-oss": (
        """{{- "<|start|>assistant to=functions." + n + "<|channel|>commentary json<|message|>" }}""",
        "harmony",
        "harmony",
    ),
    "granite-3.3": (
        """{{- '<|start_of_role|>available_tools<|end_of_role|>' }} respond only with <|tool_call|>
        followed by a JSON list of tools. Write your thoughts after 'Here is my thought process:'""",
        "granite",
        "granite",
    ),
    "granite-4": (
        """{{- '<|start_of_role|>' }} within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{""",
        "hermes",
        None,
    ),
    "phi-4-mini": (
        """{{ '<|' + role + '|>' + content + '<|tool|>' + tools + '<|/tool|>' + '<|end|>' }}""",
        "phi4_mini",
        None,
    ),
    "phi-4-mini-vllm": (
        """formatted as functools[{"name": [function name], ...}]""",
        "phi4_mini",
        None,
    ),
    # Without tools, or with tools in a format that is not read.
    "chatml": ("""{{ '<|im_start|>' + message['role'] + '\\n' }}""", None, None),
    "tinyllama": ("""{{ '<|user|>\\n' + message['content'] + eos_token }}""", None, None),
    "glm-4.5": (
        """{{ '\\n<tool_call>' + name }}<arg_key>{{ k }}</arg_key>{{ '<think></think>' }}""",
        None,
        "qwen3",
    ),
    "kimi-k2": ("""<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}""", None, None),
}


@pytest.mark.parametrize("model", TEMPLATES)
def test_a_template_shows_its_formats(model: str) -> None:
    template, tools, reasoning = TEMPLATES[model]
    assert detect_tool_format(template) == tools
    assert detect_reasoning_format(template) == reasoning


def test_formats_have_the_names_of_the_settings() -> None:
    assert tuple(TOOL_FORMATS) == get_args(ToolParser)
    assert tuple(REASONING_FORMATS) == get_args(ReasoningParser)


def test_reasoning_markers_are_named_as_special_tokens() -> None:
    assert REASONING_FORMATS["qwen3"].special_tokens == {"<think>", "</think>"}
    assert "<|channel|>" in REASONING_FORMATS["harmony"].special_tokens
