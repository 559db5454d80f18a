"""Formats by name, and by what chat templates show of them.

The templates are minimal ones of the shape of the models' own.
"""

# ruff: noqa: E501 - lines of templates

from __future__ import annotations

from typing import Any, get_args

import pytest

from trtllm_truss.settings.model import ReasoningParser, ToolParser
from trtllm_truss.tool_calls.catalog import REASONING_FORMATS, TOOL_FORMATS
from trtllm_truss.tool_calls.detection import describe_formats
from trtllm_truss.tool_calls.parser import choose_formats

_TURNS = """\
{%- for message in messages -%}
  <|{{ message.role }}|>
  {%- if message.reasoning_content %}{{ REASONING }}{% endif -%}
  {{ message.content or '' }}
  {%- if message.tool_calls %}{{ CALLS }}{% endif -%}
  <|end_of_turn|>
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{{ OPENING }}{% endif -%}
"""
_TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
_EACH = "{% for call in message.tool_calls %}{% set f = call.function %}CALL{% endfor %}"
_ITEMS = "{% for k, v in f.arguments.items() %}ITEM{% endfor %}"


def template(
    call: str = "", reasoning: str = "", opening: str = "", before: str = "", after: str = ""
) -> str:
    """A template that writes calls, reasoning and the beginning of answers so."""
    calls = before + _EACH.replace("CALL", call) + after if call else ""
    turns = _TURNS.replace("{{ CALLS }}", calls).replace("{{ REASONING }}", reasoning)
    return _TOOLS + turns.replace("{{ OPENING }}", opening)


def items(item: str) -> str:
    return _ITEMS.replace("ITEM", item)


JSON = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
OBJECT = "{{ f.arguments | tojson }}"
THINK = "<think>\n{{ message.reasoning_content }}\n</think>\n\n"
XML = (
    "<function={{ f.name }}>\n"
    + items("<parameter={{ k }}>\n{{ v }}\n</parameter>\n")
    + "</function>"
)
KIMI3 = (
    '<|open|>call tool="{{ f.name }}" index="{{ loop.index }}"<|sep|>'
    + items('<|open|>argument key="{{ k }}" type="string"<|sep|>{{ v }}<|close|>argument<|sep|>')
    + "<|close|>call<|sep|>"
)
NS = "]<]minimax[>["

CALLS: dict[str, tuple[str, str]] = {
    "qwen3": (template(f"<tool_call>\n{JSON}\n</tool_call>"), "hermes"),
    "qwen3-coder": (template(f"<tool_call>\n{XML}\n</tool_call>"), "qwen3_coder"),
    "seed-oss": (template(f"<seed:tool_call>\n{XML}\n</seed:tool_call>"), "qwen3_coder"),
    "glm-4.6": (
        template(
            "<tool_call>{{ f.name }}\n"
            + items("<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n")
            + "</tool_call>"
        ),
        "glm45",
    ),
    "glm-4.7": (
        template(
            "<tool_call>{{ f.name }}"
            + items("<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>")
            + "</tool_call>"
        ),
        "glm45",
    ),
    "kimi-k2": (
        template(
            f"<|tool_call_begin|>functions.{{{{ f.name }}}}:{{{{ loop.index0 }}}}<|tool_call_argument_begin|>{OBJECT}<|tool_call_end|>",
            before="<|tool_calls_section_begin|>",
            after="<|tool_calls_section_end|>",
        ),
        "kimi_k2",
    ),
    "kimi-k3": (
        template(KIMI3, before="<|open|>tools<|sep|>", after="<|close|>tools<|sep|>"),
        "kimi_k3",
    ),
    "deepseek-r1": (
        template(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{{{ f.name }}}}\n```json\n{OBJECT}\n```<｜tool▁call▁end｜>",
            before="<｜tool▁calls▁begin｜>",
            after="<｜tool▁calls▁end｜>",
        ),
        "deepseek_v3",
    ),
    "deepseek-v3.1": (
        template(
            f"<｜tool▁call▁begin｜>{{{{ f.name }}}}<｜tool▁sep｜>{OBJECT}<｜tool▁call▁end｜>",
            before="<｜tool▁calls▁begin｜>",
            after="<｜tool▁calls▁end｜>",
        ),
        "deepseek_v31",
    ),
    "deepseek-v3.2": (
        template(
            '<｜DSML｜invoke name="{{ f.name }}">\n'
            + items('<｜DSML｜parameter name="{{ k }}" string="true">{{ v }}</｜DSML｜parameter>\n')
            + "</｜DSML｜invoke>\n",
            before="<｜DSML｜function_calls>\n",
            after="</｜DSML｜function_calls>",
        ),
        "deepseek_v32",
    ),
    "minimax-m2": (
        template(
            '<invoke name="{{ f.name }}">\n'
            + items('<parameter name="{{ k }}">{{ v }}</parameter>\n')
            + "</invoke>\n",
            before="<minimax:tool_call>\n",
            after="</minimax:tool_call>",
        ),
        "minimax_m2",
    ),
    "minimax-m3": (
        template(
            NS
            + '<invoke name="{{ f.name }}">\n'
            + items(NS + "<{{ k }}>{{ v }}" + NS + "</{{ k }}>\n")
            + NS
            + "</invoke>\n",
            before=f"{NS}<tool_call>\n",
            after=f"{NS}</tool_call>",
        ),
        "minimax_m3",
    ),
    "mistral-nemo": (template(JSON, before="[TOOL_CALLS][", after="]"), "mistral"),
    "mistral-small-3.2": (
        template(f"[TOOL_CALLS]{{{{ f.name }}}}[CALL_ID]{{{{ call.id }}}}[ARGS]{OBJECT}"),
        "mistral_args",
    ),
    "ministral-3": (template(f"[TOOL_CALLS]{{{{ f.name }}}}[ARGS]{OBJECT}"), "mistral_args"),
    "gpt-oss": (
        template(
            f"<|start|>assistant to=functions.{{{{ f.name }}}}<|channel|>commentary json<|message|>{OBJECT}<|call|>"
        ),
        "harmony",
    ),
    "llama-3.1": (
        template('\n\n{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'),
        "llama3_json",
    ),
    "llama-4, vLLM's": (
        template("\n\n[{{ f.name }}(" + items("{{ k }}='{{ v }}'") + ")]"),
        "pythonic",
    ),
    "gemma-4": (
        template(
            "<|tool_call>call:{{ f.name }}{{ '{' }}"
            + items('{{ k }}:<|"|>{{ v }}<|"|>')
            + "}<tool_call|>"
        ),
        "gemma4",
    ),
    "nemotron-nano-v2": (template(JSON, before="<TOOLCALL>[", after="]</TOOLCALL>"), "nemotron"),
    "granite-3": (template(JSON, before="<|tool_call|>[", after="]"), "granite"),
    "granite-4": (template(f"<tool_call>\n{JSON}\n</tool_call>"), "hermes"),
    "command-r7b": (
        template(
            '\n    {"tool_call_id": "0", "tool_name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
            before="<|START_ACTION|>[",
            after="\n]<|END_ACTION|>",
        ),
        "command_r7b",
    ),
    "lfm2, with calls": (
        template(
            "{{ f.name }}(" + items("{{ k }}='{{ v }}'") + ")",
            before="<|tool_call_start|>[",
            after="]<|tool_call_end|>",
        ),
        "lfm2",
    ),
    "olmo-3": (
        template(
            "{{ f.name }}(" + items('{{ k }}="{{ v }}"') + ")",
            before="<function_calls>\n",
            after="\n</function_calls>",
        ),
        "olmo3",
    ),
    "apertus": (
        template(
            '{"{{ f.name }}": {{ f.arguments | tojson }}}',
            before="<|tools_prefix|>[",
            after="]<|tools_suffix|>",
        ),
        "apertus",
    ),
    "apriel-1.5": (
        template(
            '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "{{ call.id }}"}',
            before="<tool_calls>[",
            after="]</tool_calls>",
        ),
        "apriel",
    ),
    "hunyuan": (
        template(
            "<tool_call>{{ f.name }}<tool_sep>"
            + items("<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>")
            + "</tool_call>",
            before="<tool_calls>",
            after="</tool_calls>",
        ),
        "hunyuan",
    ),
    "inkling": (
        template(
            '<|message_model|>{{ f.name }}<|content_invoke_tool_json|>{"name": "{{ f.name }}", "args": {{ f.arguments | tojson }}}<|end_message|>'
        ),
        "inkling",
    ),
    "telechat-4": (
        template(
            "<tool_call>{{ f.name }}"
            + items("<param_key>{{ k }}</param_key><param_value>{{ v }}</param_value>")
            + "</tool_call>"
        ),
        "telechat4",
    ),
    "exaone-4, ernie-4.5": (template(f"\n<tool_call>\n{JSON}\n</tool_call>\n"), "hermes"),
    "step-3.5, nemotron-3": (template(f"<tool_call>\n{XML}\n</tool_call>\n"), "qwen3_coder"),
    # Templates that describe the form of calls, and show none.
    "smollm3": (
        _TOOLS + "write <tool_call> and </tool_call>" + _TURNS.replace("{{ CALLS }}", ""),
        "hermes",
    ),
    "granite-3.3": (
        _TOOLS + "respond only with <|tool_call|>" + _TURNS.replace("{{ CALLS }}", ""),
        "granite",
    ),
    "phi-4-mini": (
        "<|tool|>" + _TOOLS + "<|/tool|>" + _TURNS.replace("{{ CALLS }}", ""),
        "phi4_mini",
    ),
    "lfm2": ("<|tool_list_start|>" + _TOOLS + _TURNS.replace("{{ CALLS }}", ""), "lfm2"),
    "llama-3.2": (
        _TOOLS + "[func_name1(params_name1=params_value1)]" + _TURNS.replace("{{ CALLS }}", ""),
        "pythonic",
    ),
    # Without tools.
    "chatml": (template().removeprefix(_TOOLS), "hermes"),
}


@pytest.mark.parametrize("model", CALLS)
def test_a_template_shows_its_format_of_calls(model: str) -> None:
    source, name = CALLS[model]
    tools, _ = choose_formats("auto", "auto", source)
    assert tools == TOOL_FORMATS[name]


REASONING: dict[str, tuple[str, str | None]] = {
    "qwen3": (template(reasoning=THINK), "qwen3"),
    "qwq": (template(opening="<think>\n"), "qwen3"),
    "deepseek-v3.1": (template(opening="{{ '<think>' if thinking else '</think>' }}"), "qwen3"),
    "qwen3, opened by a variable": (
        template(opening="{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"),
        "qwen3",
    ),
    "deepseek-r1-distill": (
        template().replace("message.content", "message.content.split('</think>')[-1]"),
        "qwen3",
    ),
    "ministral-3": (
        template(reasoning="[THINK]{{ message.reasoning_content }}[/THINK]"),
        "mistral",
    ),
    "seed-oss": (
        template(reasoning="<seed:think>{{ message.reasoning_content }}</seed:think>"),
        "seed_oss",
    ),
    "minimax-m3": (
        template(reasoning="<mm:think>{{ message.reasoning_content }}</mm:think>"),
        "minimax_m3",
    ),
    "granite-3.2": (
        template(
            opening="{% if thinking %}Here is my thought process: and Here is my response:{% endif %}"
        ),
        "granite",
    ),
    "granite-3.3": (
        template(opening="{% if thinking %}<think></think> and <response></response>{% endif %}"),
        "qwen3",
    ),
    "hunyuan": (
        template(reasoning="<think>{{ message.reasoning_content }}</think><answer>"),
        "hunyuan",
    ),
    "gemma-4": (
        template(
            opening="{% if enable_thinking is false %}<|channel>thought\n<channel|>{% endif %}"
        ),
        "gemma4",
    ),
    "command-r7b": (template(opening="<|START_THINKING|>"), "command_r7b"),
    "apriel-1.6": (template(opening="Here are my reasoning steps:\n"), "apriel"),
    "kimi-k3": (template(opening="<|open|>think<|sep|>"), "kimi_k3"),
    "inkling": (
        template(reasoning="<|content_thinking|>{{ message.reasoning_content }}<|end_message|>"),
        "inkling",
    ),
    "apertus": (
        template(reasoning="<|inner_prefix|>{{ message.reasoning_content }}<|inner_suffix|>"),
        "apertus",
    ),
    "gpt-oss": (
        template(reasoning="<|channel|>analysis<|message|>{{ message.reasoning_content }}<|end|>"),
        "harmony",
    ),
    "phi-3": (_TURNS.replace("<|end_of_turn|>", "<|end|>"), None),
    "chatml": (template(), None),
}


@pytest.mark.parametrize("model", REASONING)
def test_a_template_shows_its_format_of_reasoning(model: str) -> None:
    source, name = REASONING[model]
    _, reasoning = choose_formats("auto", "auto", source)
    if name is None:
        assert reasoning is None
    else:
        assert reasoning is not None
        assert (reasoning.starts, reasoning.ends) == (
            REASONING_FORMATS[name].starts,
            REASONING_FORMATS[name].ends,
        )


def test_tags_around_the_text_are_those_that_the_template_shows() -> None:
    _, plain = choose_formats("auto", "auto", REASONING["qwen3"][0])
    _, wrapped = choose_formats("auto", "auto", REASONING["granite-3.3"][0])
    assert plain is not None
    assert wrapped is not None
    assert plain.wrappers == ()
    assert wrapped.wrappers == (("<response>", "</response>"),)


DERIVED: dict[str, tuple[str, str, str]] = {
    "an object": (
        template(f"<|function_call|>{JSON}<|done|>"),
        '<|function_call|>{"name": "f", "arguments": {"a": 1}}<|done|>',
        "<|function_call|>",
    ),
    "an array": (
        template(JSON, before="Action:\n```json\n[", after="]\n```"),
        'Action:\n```json\n[{"name": "f", "arguments": {"a": 1}}]\n```',
        "Action:\n```json",
    ),
    "a name": (
        template(f"<function={{{{ f.name }}}}>{OBJECT}</function>"),
        '<function=f>{"a": 1}</function>',
        "<function=",
    ),
}


@pytest.mark.parametrize("kind", DERIVED)
def test_a_format_of_no_table_is_the_text_around_a_call(kind: str) -> None:
    from tests.tool_calls.outputs.notation import Call
    from tests.tool_calls.parsing import merge, parts

    from trtllm_truss.tool_calls.events import Tool
    from trtllm_truss.tool_calls.parser import OutputParser

    source, output, marker = DERIVED[kind]
    tools, _ = choose_formats("auto", "auto", source)
    assert tools is not None
    assert tools not in TOOL_FORMATS.values()
    parser = OutputParser(tools, None, [Tool("f", {})])
    events = [*parser.feed(f"Well.\n{output}"), *parser.finish()]
    assert parts(merge(events)) == ["Well.\n", Call("f", {"a": 1})]
    assert marker in describe_formats(tools, None).encode().decode("unicode_escape")
    [guide] = tools.guides([Tool("f", {})], parallel=False)
    assert guide.prefix.strip().startswith(marker)


def test_derived_reasoning_is_between_the_tags_that_the_template_writes() -> None:
    source = template(reasoning="<musing>{{ message.reasoning_content }}</musing>")
    _, reasoning = choose_formats("auto", "auto", source)
    assert reasoning is not None
    assert (reasoning.starts, reasoning.ends) == (("<musing>",), ("</musing>",))


def test_a_template_that_shows_functions_without_a_form_of_calls_has_no_format() -> None:
    assert choose_formats("auto", "auto", template())[0] is None
    tokens = {"<|tool_call_start|>", "<|tool_call_end|>", "<|im_end|>"}
    assert choose_formats("auto", "auto", template(), tokens)[0] == TOOL_FORMATS["lfm2"]


@pytest.mark.parametrize("source", ["", None, "{{ messages[0].content }}", "{{ nothing.at_all }}"])
def test_templates_without_tools_get_the_usual_format(source: Any) -> None:
    assert choose_formats("auto", "auto", source) == (TOOL_FORMATS["hermes"], None)


def test_settings_come_before_the_template() -> None:
    source = CALLS["qwen3"][0]
    assert choose_formats("none", "none", source) == (None, None)
    chosen = choose_formats("kimi_k2", "granite", source)
    assert chosen == (TOOL_FORMATS["kimi_k2"], REASONING_FORMATS["granite"])


def test_formats_have_the_names_of_the_settings() -> None:
    assert tuple(TOOL_FORMATS) == get_args(ToolParser)
    assert tuple(REASONING_FORMATS) == get_args(ReasoningParser)


def test_reasoning_markers_are_named_as_special_tokens() -> None:
    assert REASONING_FORMATS["qwen3"].special_tokens == {"<think>", "</think>"}
    assert "<|channel|>" in REASONING_FORMATS["harmony"].special_tokens


def test_formats_are_described_for_the_operator() -> None:
    described = describe_formats(TOOL_FORMATS["hermes"], REASONING_FORMATS["qwen3"])
    assert described == "calls are read as hermes; reasoning is read as <think> … </think>"
    assert describe_formats(None, None) == "calls stay in the text, reasoning stays in it"
