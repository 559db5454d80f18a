"""The interface of tool call formats, and the calls that guided decoding enforces.

Calls are enforced for `tool_choice: required` and named functions.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trtllm_truss.tool_calls.events import Emitter, Malformed, Markers, Parse, Source, Tool

Schema = dict[str, Any]


class CallGuide(NamedTuple):
    """A forced call: `prefix`, then JSON, then `suffix`.

    For an engine that takes only a JSON schema, append `prefix` to the prompt and feed it to the
    parser before the output. `suffix` is optional.

    Attributes:
        prefix: literal text.
        suffix: literal text.
    """

    prefix: str
    schema: Schema
    suffix: str


def guide_each(tools: Sequence[Tool], affixes: Callable[[str], tuple[str, str]]) -> list[CallGuide]:
    """Return one guide per function, whose JSON is the arguments.

    Args:
        affixes: gives prefix and suffix for a function's name.
    """
    guides = []
    for tool in tools:
        prefix, suffix = affixes(tool.name)
        guides.append(CallGuide(prefix, _arguments_schema(tool), suffix))
    return guides


def call_schema(
    tools: Sequence[Tool], *, arguments_key: str = "arguments", parallel: bool | None = None
) -> Schema:
    """Return the schema of a call written as one JSON object with its function's name.

    Args:
        tools: the functions; at least one.
        parallel: whether an array of calls may have several; None for a call without an array.
    """
    calls: list[Schema] = []
    definitions: Schema = {}
    for position, tool in enumerate(tools):
        rooted, has_references = _rooted(_arguments_schema(tool), f"#/$defs/tool{position}")
        if has_references:
            definitions[f"tool{position}"] = rooted
            rooted = {"$ref": f"#/$defs/tool{position}"}
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, arguments_key: rooted},
                "required": ["name", arguments_key],
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
    """Write a call as a guide would have it.

    Args:
        arguments: its arguments as JSON text.
    """
    call = guide.schema.get("items", guide.schema)
    if keys := call.get("required"):  # the keys of `call_schema`
        arguments = f'{{"name": {json.dumps(name)}, "{keys[1]}": {arguments}}}'
    if "items" in guide.schema:
        arguments = f"[{arguments}]"
    return guide.prefix + arguments + guide.suffix


def _arguments_schema(tool: Tool) -> Schema:
    if not tool.parameters:  # OpenAI's API: "an empty parameter list"
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **tool.parameters}


def _rooted(schema: Schema, root: str) -> tuple[Schema, bool]:
    """Copy a schema and have its references begin at `root` instead of `#`.

    Without recursion: the request decides how deep a schema is.
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


MAX_NAME = 256
NAME = re.compile(r"[\w.-]*")


class ToolFormat(ABC):
    """A way of writing tool calls."""

    @property
    @abstractmethod
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""

    @abstractmethod
    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        """Describe a forced call.

        Args:
            tools: the functions to choose from; for a named function only that one.
            parallel: whether several calls are allowed. Only formats with arrays make use of it.

        Returns:
            Alternatives. Empty if the format has no JSON; use the format `json` to force a call.
        """

    @abstractmethod
    def parse(self, source: Source, emitter: Emitter) -> Parse[None]:
        """Read text and calls to the end."""


@dataclass(frozen=True)
class MarkerFormat(ToolFormat):
    """A format whose calls begin with a marker in the text.

    Attributes:
        markers: words that may begin calls wherever they stand.
        line_markers: characters that may begin calls at the beginning of a line.
        closers: words that may follow calls.
    """

    markers: tuple[str, ...] = ()
    line_markers: str = ""
    closers: tuple[str, ...] = ()

    @property
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""
        return frozenset((*self.markers, *self.closers))

    def parse(self, source: Source, emitter: Emitter) -> Parse[None]:
        """Read text and calls to the end."""
        markers = Markers(*self.markers, *self.line_markers)
        while marker := (yield from source.until(markers, emitter.text)):
            if marker in self.line_markers and not emitter.line_is_blank:
                emitter.text(marker)
            else:
                source.hold(marker)
                yield from attempt(self.read(marker, source, emitter), source, emitter)

    @abstractmethod
    def read(self, marker: str, source: Source, emitter: Emitter) -> Parse[None]:
        """Read the calls that follow a marker.

        Raises:
            Malformed: they are no calls, or cut off.
        """


def attempt(calls: Parse[None], source: Source, emitter: Emitter) -> Parse[None]:
    """Read calls, and emit held text outside of them as text."""
    try:
        yield from calls
    except Malformed:
        emitter.abandon_call()
    emitter.text(source.release())


def read_name(source: Source, emitter: Emitter) -> Parse[str]:
    """Read the name of a function.

    Raises:
        Malformed: it is not offered.
    """
    name = yield from source.look_along(NAME, MAX_NAME)
    if not emitter.offers(name):
        raise Malformed
    return source.skip(len(name))
