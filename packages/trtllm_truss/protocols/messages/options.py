"""Tools, thinking and the output format of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import Unsupported, refuse_unsupported
from trtllm_truss.protocols.guide_text import schema_guide
from trtllm_truss.protocols.messages.fields import check_keys, field_of, wrong
from trtllm_truss.protocols.tool_use import ToolUse, read_tool
from trtllm_truss.requests import Guide
from trtllm_truss.validation import shown

UNUSED_TOOL_KEYS = ("cache_control", "eager_input_streaming", "strict")
"""Keys of tools that are accepted without effect; `any` and `tool` are strict in any case."""

REFUSED_TOOL_KEYS = {
    "allowed_callers": Unsupported("only the model calls tools", (["direct"],)),
    "defer_loading": Unsupported("the model sees all tools", (False,)),
    "input_examples": Unsupported("state them in the description", ([],)),
}

_TOOL_KEYS = ("name", "description", "input_schema", "type")
_CHOICE_KEYS = ("type", "name", "disable_parallel_tool_use")
_CHOICES = ("auto", "any", "tool", "none")

_THINKING_KEYS = ("type", "budget_tokens", "display")
_SWITCHES = {"enabled": True, "disabled": False, "adaptive": None}
_SWITCH_VARIABLES = ("enable_thinking", "thinking")
"""Variables by which templates switch thinking: Qwen's and GLM's, DeepSeek's and Granite's."""

_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class Thinking(NamedTuple):
    """Settings of `thinking`.

    Attributes:
        variables: variables of the chat template.
        shown: include the thinking in the answer.
    """

    variables: Mapping[str, Any]
    shown: bool


def read_tool_use(tools: Sequence[Any] | None, choice: Mapping[str, Any] | None) -> ToolUse:
    """Read the tools of a request.

    Args:
        tools: the field `tools`.
        choice: the field `tool_choice`; None for `auto`.

    Raises:
        InvalidRequest: a tool is malformed or of the server's, or the choice is unknown or names
            another tool.
    """
    described, offered = [], {}
    for place, tool in enumerate(tools or ()):
        path = f"tools[{place}]"
        function = _function(tool, path)
        described.append({"type": "function", "function": function})
        read = read_tool(function.get("name"), function["parameters"], path)
        offered[read.name] = read
    choice = choice or {"type": "auto"}
    check_keys(choice, _CHOICE_KEYS, "tool_choice")
    kind, name = choice.get("type"), choice.get("name")
    if kind not in _CHOICES:
        raise wrong("tool_choice.type", kind, f"one of {', '.join(_CHOICES)}")
    if kind == "tool" and name not in list(offered):
        raise wrong("tool_choice.name", name, "the name of one of tools")
    if kind == "any" and not offered:
        raise InvalidRequest("tool_choice.type is any; send tools.", param="tool_choice")
    one_only = choice.get("disable_parallel_tool_use") or False
    if not isinstance(one_only, bool):
        raise wrong("tool_choice.disable_parallel_tool_use", one_only, "true or false")
    if kind == "none" or not offered:
        return ToolUse()
    return ToolUse(
        tools=described,
        offered=tuple(tool for tool in offered.values() if kind != "tool" or tool.name == name),
        is_forced=kind in ("any", "tool"),
        parallel=not one_only,
    )


def _function(tool: Any, path: str) -> dict[str, Any]:
    """Return the description of a tool for the chat template."""
    if not isinstance(tool, dict):
        raise wrong(path, tool, "an object")
    if (tool.get("type") or "custom") != "custom":
        raise InvalidRequest(
            f"{path} is of type {shown(tool['type'])}; only tools of type custom are supported, "
            "with a name and an input_schema.",
            param="tools",
        )
    given = {name: value for name, value in tool.items() if value is not None}
    for name in [name for name in given if name in REFUSED_TOOL_KEYS]:
        refuse_unsupported(name, given.pop(name), REFUSED_TOOL_KEYS, within=f"{path}.")
    check_keys(given, (*_TOOL_KEYS, *UNUSED_TOOL_KEYS), path)
    if "input_schema" not in given:
        raise InvalidRequest(f"{path}.input_schema is missing.", param="tools")
    if not isinstance(given["input_schema"], dict):
        raise wrong(f"{path}.input_schema", given["input_schema"], "a JSON schema, an object")
    if not isinstance(given.get("description", ""), str):
        raise wrong(f"{path}.description", given["description"], "a string")
    function = {name: given[name] for name in ("name", "description") if name in given}
    return {**function, "parameters": given["input_schema"]}


def read_thinking(
    thinking: Mapping[str, Any] | None, output_config: Mapping[str, Any] | None
) -> Thinking:
    """Read how the model thinks.

    Args:
        thinking: the field `thinking`; None leaves it to the chat template.
        output_config: the field `output_config`, for its `effort`.

    Raises:
        InvalidRequest: a key is unknown or of the wrong type.
    """
    variables: dict[str, Any] = {}
    effort = (output_config or {}).get("effort")
    if effort is not None:
        if effort not in _EFFORTS:
            raise wrong("output_config.effort", effort, f"one of {', '.join(_EFFORTS)}")
        variables["reasoning_effort"] = effort
    if thinking is None:
        return Thinking(variables, shown=True)
    check_keys(thinking, _THINKING_KEYS, "thinking")
    kind, display = thinking.get("type"), thinking.get("display") or "summarized"
    if not isinstance(kind, str) or kind not in _SWITCHES:
        raise wrong("thinking.type", kind, f"one of {', '.join(_SWITCHES)}")
    if display not in ("summarized", "omitted"):
        raise wrong("thinking.display", display, "summarized or omitted")
    if (switch := _SWITCHES[kind]) is not None:
        variables.update(dict.fromkeys(_SWITCH_VARIABLES, switch))
    return Thinking(variables, shown=display != "omitted")


def read_output_format(
    output_config: Mapping[str, Any] | None, output_format: Mapping[str, Any] | None
) -> tuple[Guide | None, str]:
    """Return the guide of the output format, and the field that holds it.

    Args:
        output_config: the field `output_config`.
        output_format: its older form, the format alone.

    Raises:
        InvalidRequest: the format is malformed, or given twice.
    """
    config = output_config or {}
    check_keys(config, ("effort", "format"), "output_config")
    chosen, path = config.get("format"), "output_config.format"
    if output_format is not None:
        if chosen is not None:
            raise InvalidRequest(
                "output_config.format and output_format are both given; send the former.",
                param="output_format",
            )
        chosen, path = output_format, "output_format"
    if chosen is None:
        return None, path
    if not isinstance(chosen, dict):
        raise wrong(path, chosen, "an object")
    check_keys(chosen, ("type", "schema"), path)
    if chosen.get("type") != "json_schema":
        raise wrong(f"{path}.type", chosen.get("type"), "json_schema")
    return schema_guide(chosen.get("schema"), f"{path}.schema", field_of(path)), path
