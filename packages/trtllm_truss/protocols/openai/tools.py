"""`tools` and `tool_choice` to a `ToolUse`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.tool_use import ToolUse, read_tool
from trtllm_truss.validation import shown

_MODES = ("auto", "required")
_FLAT_KEYS = ("name", "description", "parameters", "strict")


def read_tool_use(
    tools: Sequence[Any] | None, choice: Any, *, parallel: bool, flat: bool = False
) -> ToolUse:
    """Read the functions of a request.

    Args:
        tools: the field `tools`.
        choice: the field `tool_choice`; None for `auto`.
        parallel: the field `parallel_tool_calls`.
        flat: whether tools and choices hold a function's keys themselves, as in Responses, or
            under `function`.

    Raises:
        InvalidRequest: a tool is not a function, or the choice is unknown or names another
            function.
    """
    tools = tools or ()
    offered = {}
    for place, tool in enumerate(tools):
        function = _function(tool, flat)
        if function is None or tool.get("type") != "function":
            raise InvalidRequest(
                f"tools[{place}] is {shown(tool)}; it must be of type function, with the "
                "function's name.",
                param="tools",
            )
        path = f"tools[{place}]" if flat else f"tools[{place}].function"
        offered[function.get("name")] = read_tool(
            function.get("name"), function.get("parameters"), path
        )
    mode, names = _read_choice(choice, flat)
    unknown = [name for name in names or () if name not in offered]
    if unknown or (mode == "required" and not offered):
        wanted = f"name a function of tools, not {shown(unknown[0])}" if unknown else "send tools"
        raise InvalidRequest(f"tool_choice is {shown(choice)}; {wanted}.", param="tool_choice")
    if mode == "none" or not offered:
        return ToolUse()
    return ToolUse(
        tools=[_nested(tool) for tool in tools] if flat else list(tools),
        offered=tuple(t for name, t in offered.items() if names is None or name in names),
        is_forced=mode == "required",
        parallel=parallel,
    )


def _read_choice(choice: Any, flat: bool) -> tuple[str, Collection[str] | None]:
    """Return the mode and the names of the functions to choose from, in order; None for all."""
    if choice is None or choice in ("auto", "none", "required"):
        return choice or "auto", None
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "function" and (name := _function_name(choice, flat)) is not None:
        return "required", [name]
    allowed = None
    if kind == "allowed_tools":
        allowed = choice if flat else choice.get("allowed_tools")
    if isinstance(allowed, Mapping) and allowed.get("mode", "auto") in _MODES:
        entries = allowed.get("tools")
        entries = entries if isinstance(entries, list) else []
        named = [name for entry in entries if (name := _function_name(entry, flat)) is not None]
        if named and len(named) == len(entries):
            return allowed.get("mode", "auto"), dict.fromkeys(named)
    raise InvalidRequest(
        f"tool_choice is {shown(choice)}; it must be auto, none, required, a named function or "
        "allowed_tools with a mode and functions.",
        param="tool_choice",
    )


def _function(entry: Any, flat: bool) -> Mapping[str, Any] | None:
    function = entry.get("function") if isinstance(entry, Mapping) and not flat else entry
    return function if isinstance(function, Mapping) else None


def _function_name(entry: Any, flat: bool) -> str | None:
    name = (_function(entry, flat) or {}).get("name")
    return name if isinstance(name, str) else None


def _nested(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat tool in the form of chat templates."""
    kept = {key: tool[key] for key in _FLAT_KEYS if tool.get(key) is not None}
    return {"type": "function", "function": kept}
