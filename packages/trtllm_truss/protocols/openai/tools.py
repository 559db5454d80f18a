"""Convert `tools` and `tool_choice` to a `ToolUse`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import MAX_TOOLS
from trtllm_truss.protocols.fields import check_length, wrong
from trtllm_truss.protocols.tool_origins import INPUT_SCHEMA, Origin, Origins, flat_name
from trtllm_truss.protocols.tool_use import ToolUse, read_tool
from trtllm_truss.validation import shown

_MODES = ("auto", "required")
_FLAT_KEYS = ("name", "description", "parameters", "strict")


def read_tool_use(tools: Sequence[Any] | None, choice: Any, *, parallel: bool) -> ToolUse:
    """Read the functions of a chat or of predict.

    Raises:
        InvalidRequest: a tool is not a function, or the choice is unknown or names another
            function.
    """
    placed = []
    for place, tool in enumerate(tools or ()):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type") != "function":
            raise _no_function(f"tools[{place}]", tool)
        placed.append((f"tools[{place}].function", function))
    return _tool_use(placed, list(tools or ()), choice, "function", parallel=parallel)


def read_flat_tool_use(
    tools: Sequence[Any] | None, choice: Any, *, parallel: bool
) -> tuple[ToolUse, Origins]:
    """Read the tools of Responses, whose keys are not under `function`.

    Raises:
        InvalidRequest: as for `read_tool_use`, or two tools have the same name for the model.
    """
    placed: list[tuple[str, Mapping[str, Any]]] = []
    origins: dict[str, Origin] = {}
    each_placed = [*_placed(tools or ())]
    check_length("tools", each_placed, MAX_TOOLS, param="tools", unit="functions")
    for path, tool, space in each_placed:
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if kind not in ("function", "custom"):
            raise _no_function(path, tool)
        name, namespace = tool.get("name"), None if space is None else space["name"]
        function = {key: tool[key] for key in _FLAT_KEYS if tool.get(key) is not None}
        if kind == "custom":
            _check_format(tool.get("format"), f"{path}.format")
            function["parameters"] = INPUT_SCHEMA
        if isinstance(name, str):
            function["name"] = flat_name(name, namespace)
            if space is not None and tool is space["tools"][0]:
                _describe_namespace(function, space)
            origin = Origin(name, namespace, kind == "custom")
            if origins.setdefault(function["name"], origin) != origin:
                raise wrong(f"{path}.name", name, "a name that no other tool has")
        placed.append((path, function))
    described = [{"type": "function", "function": function} for _, function in placed]
    return _tool_use(placed, described, choice, None, origins, parallel=parallel), origins


def _placed(tools: Sequence[Any]) -> Iterator[tuple[str, Any, Mapping[str, Any] | None]]:
    """Yield each tool with its path and its namespace."""
    for place, tool in enumerate(tools):
        path = f"tools[{place}]"
        if not isinstance(tool, Mapping) or tool.get("type") != "namespace":
            yield path, tool, None
            continue
        name, members = tool.get("name"), tool.get("tools")
        if not isinstance(name, str) or not name:
            raise wrong(f"{path}.name", name, "a non-empty string")
        if not isinstance(members, list):
            raise wrong(f"{path}.tools", members, "a list of functions")
        for inner, member in enumerate(members):
            yield f"{path}.tools[{inner}]", member, tool


def _describe_namespace(function: dict[str, Any], space: Mapping[str, Any]) -> None:
    """Prepend a namespace's description to that of its first function."""
    if text := space.get("description"):
        own = function.get("description")
        head = f"{flat_name('*', space['name'])}: {text}"
        function["description"] = f"{head}\n\n{own}" if own else head


def _check_format(form: Any, path: str) -> None:
    """Refuse a custom tool's format, which the output would not follow."""
    kind = form.get("type") if isinstance(form, Mapping) else form
    if kind not in (None, "text"):
        raise InvalidRequest(
            f"{path} is {shown(form)}; the input of a custom tool is free text here. Leave the "
            "format out, or describe it in the description.",
            param="tools",
        )


def _tool_use(
    placed: Sequence[tuple[str, Mapping[str, Any]]],
    described: Sequence[Mapping[str, Any]],
    choice: Any,
    holder: str | None,
    origins: Origins | None = None,
    *,
    parallel: bool,
) -> ToolUse:
    """Check the functions and apply the choice.

    Args:
        described: the functions in the form that chat templates expect.
        holder: the key that contains a function's keys in a choice; None if they are not nested.
    """
    offered = {
        function.get("name"): read_tool(
            function.get("name"), function.get("parameters"), path, function.get("strict")
        )
        for path, function in placed
    }
    mode, names = _read_choice(choice, holder, origins or {})
    unknown = [name for name in names or () if name not in offered]
    if unknown or (mode == "required" and not offered):
        wanted = f"name a function in tools, not {shown(unknown[0])}" if unknown else "send tools"
        raise InvalidRequest(f"tool_choice is {shown(choice)}; {wanted}.", param="tool_choice")
    if mode == "none" or not offered:
        return ToolUse()
    return ToolUse(
        tools=described,
        offered=tuple(t for name, t in offered.items() if names is None or name in names),
        is_forced=mode == "required",
        is_named=isinstance(choice, Mapping) and choice.get("type") != "allowed_tools",
        parallel=parallel,
    )


def _read_choice(
    choice: Any, holder: str | None, origins: Origins
) -> tuple[str, Collection[str] | None]:
    """Return the mode and the names of the selectable functions, in order; None for all."""
    if choice is None or choice in ("auto", "none", "required"):
        return choice or "auto", None
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "function" or (kind == "custom" and holder is None):
        named = _named([choice], holder, origins)
        if named:
            return "required", named
    allowed = None
    if kind == "allowed_tools":
        allowed = choice if holder is None else choice.get("allowed_tools")
    if isinstance(allowed, Mapping) and allowed.get("mode", "auto") in _MODES:
        entries = allowed.get("tools")
        entries = entries if isinstance(entries, list) else []
        path = "tool_choice.tools" if holder is None else "tool_choice.allowed_tools.tools"
        check_length(path, entries, MAX_TOOLS, param="tool_choice", unit="functions")
        named = _named(entries, holder, origins)
        if named and len(named) == len(entries):
            return allowed.get("mode", "auto"), dict.fromkeys(named)
    raise InvalidRequest(
        f"tool_choice is {shown(choice)}; it must be auto, none, required, a named function or "
        "allowed_tools with a mode and functions.",
        param="tool_choice",
    )


def _named(entries: Iterable[Any], holder: str | None, origins: Origins) -> list[str]:
    """Return the names of the chosen functions, as the model knows them."""
    flat_names: defaultdict[tuple[str, Any], set[str]] = defaultdict(set)
    for flat, (name, namespace, _) in origins.items():
        for key in ((name, namespace), (name, None), (flat, None)):
            flat_names[key].add(flat)
    names = []
    for entry in entries:
        function = entry.get(holder) if isinstance(entry, Mapping) and holder else entry
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            continue
        namespace = function.get("namespace")
        key = (function["name"], namespace if isinstance(namespace, str) else None)
        fitting = flat_names.get(key, ())
        names.append(next(iter(fitting)) if len(fitting) == 1 else function["name"])
    return names


def _no_function(path: str, tool: Any) -> InvalidRequest:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if isinstance(kind, str) and kind.startswith("web_search"):
        return InvalidRequest(
            f"{path} is {shown(tool)}; this server searches nothing. Leave it out, or turn web "
            'search off in the client (Codex: web_search = "disabled" in its config.toml).',
            param="tools",
        )
    if kind == "mcp":
        return InvalidRequest(
            f"{path} is {shown(tool)}; this server calls no MCP server. Connect the client to it, "
            "and send its tools as functions.",
            param="tools",
        )
    return InvalidRequest(
        f"{path} is {shown(tool)}; it must be of type function, with the function's name.",
        param="tools",
    )
