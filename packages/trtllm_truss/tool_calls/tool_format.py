"""The interface of tool call formats, and the calls that guided decoding enforces.

Calls are enforced for `tool_choice: required` and named functions.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from trtllm_truss.tool_calls.emitter import Emitter
from trtllm_truss.tool_calls.events import Tool
from trtllm_truss.tool_calls.source import Parse, Source

Schema = dict[str, Any]


class CallGuide(NamedTuple):
    """A forced call: `prefix`, then JSON, then `suffix`.

    For an engine that takes only a JSON schema, append `prefix` to the prompt and feed it to the
    parser before the output. `suffix` is optional.

    Attributes:
        prefix: literal text.
        suffix: literal text.
        keys: keys of name and arguments if the JSON is a whole call; None if it is the arguments.
    """

    prefix: str
    schema: Schema
    suffix: str
    keys: tuple[str, str] | None = None


def guide_each(tools: Sequence[Tool], prefix: str, suffix: str) -> list[CallGuide]:
    """Return one guide per function, whose JSON is the arguments.

    Args:
        prefix: text before the arguments; `NAME` stands for the function's name.
        suffix: text after them.
    """
    return [
        CallGuide(prefix.replace("NAME", tool.name), arguments_schema(tool), suffix)
        for tool in tools
    ]


def call_schema(
    tools: Sequence[Tool],
    *,
    keys: tuple[str, str] = ("name", "arguments"),
    parallel: bool | None = None,
) -> Schema:
    """Return the schema of a call written as a JSON object with its function's name.

    Args:
        tools: the functions; at least one.
        keys: keys of name and arguments.
        parallel: an array of calls may have several; None for a call without an array.
    """
    calls: list[Schema] = []
    definitions: Schema = {}
    for position, tool in enumerate(tools):
        rooted, has_references = _rooted(arguments_schema(tool), f"#/$defs/tool{position}")
        if has_references:
            definitions[f"tool{position}"] = rooted
            rooted = {"$ref": f"#/$defs/tool{position}"}
        calls.append(
            {
                "type": "object",
                "properties": {keys[0]: {"const": tool.name}, keys[1]: rooted},
                "required": [*keys],
                "additionalProperties": False,
            }
        )
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if parallel is not None:
        schema = {"type": "array", "items": schema, "minItems": 1}
        if not parallel:
            schema["maxItems"] = 1
    return {**schema, "$defs": definitions} if definitions else schema


def write_call(guide: CallGuide, name: str, arguments: str) -> str:
    """Write a call as a guide would produce it.

    Args:
        arguments: its arguments as JSON text.
    """
    if guide.keys:
        name_key, arguments_key = guide.keys
        arguments = f'{{"{name_key}": {json.dumps(name)}, "{arguments_key}": {arguments}}}'
        if "items" in guide.schema:
            arguments = f"[{arguments}]"
    return guide.prefix + arguments + guide.suffix


def arguments_schema(tool: Tool) -> Schema:
    """Return the schema of a function's arguments, which form an object."""
    if not tool.parameters:  # OpenAI's API: "an empty parameter list"
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **tool.parameters}


def _rooted(schema: Schema, root: str) -> tuple[Schema, bool]:
    """Copy a schema, with references starting at `root` instead of `#`.

    Not recursive, because the request determines the schema's depth.
    """
    has_references = False
    copy: Schema = {}
    stack: list[tuple[Any, Any, Any]] = [(copy, "schema", schema)]
    while stack:
        parent, key, value = stack.pop()
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            has_references = True
            parent[key] = root + value[1:]
        elif isinstance(value, Mapping):
            parent[key] = {}
            # In reverse, because the last one in is the first one out.
            stack += [(parent[key], *item) for item in reversed(list(value.items()))]
        elif isinstance(value, list):
            parent[key] = [None] * len(value)
            stack += [(parent[key], *item) for item in enumerate(value)]
        else:
            parent[key] = value
    rooted: Schema = copy["schema"]
    return rooted, has_references


class FurtherReasoning(Protocol):
    """The part of a reasoning format that a call format needs to read reasoning in between."""

    @property
    def restarts(self) -> tuple[str, ...]:
        """Words that open further reasoning."""

    def read_block(self, source: Source, emitter: Emitter) -> Parse[None]:
        """Read reasoning whose first word was read."""


class ToolFormat(ABC):
    """A way to write tool calls."""

    @property
    @abstractmethod
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""

    @property
    @abstractmethod
    def dropped(self) -> frozenset[str]:
        """Control words, which are never part of a choice's text."""

    @property
    @abstractmethod
    def signs(self) -> frozenset[str]:
        """Words of a prompt that describes the format; one of them suffices."""

    @property
    def call_openers(self) -> tuple[str, ...]:
        """Words that start calls, even inside reasoning."""
        return ()

    @abstractmethod
    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        """Describe a forced call.

        Args:
            tools: the functions to choose from; for a named function only that one.
            parallel: whether several calls are allowed. Only formats with arrays use it.

        Returns:
            Alternatives. Empty if the format has no JSON; use the format `json` to force a call.
        """

    @abstractmethod
    def parse(
        self, source: Source, emitter: Emitter, reasoning: FurtherReasoning | None = None
    ) -> Parse[None]:
        """Read text and calls to the end.

        Args:
            reasoning: format of further reasoning in between.
        """
