"""Tools and reasoning, for all protocols.

`ModelFormats` is chosen once per model. `ToolUse` lists the functions that one request may call;
`apply` turns both into the arguments of a `GenerationRequest` and the parser of its choices.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import (
    check_size,
    schema_text,
    wrong,
)
from trtllm_truss.requests import ChatFormat, GenerationRequest, Guide
from trtllm_truss.tool_calls.catalog import TOOL_FORMATS
from trtllm_truss.tool_calls.events import Tool
from trtllm_truss.tool_calls.parser import OutputParser
from trtllm_truss.tool_calls.reasoning import ReasoningFormat
from trtllm_truss.tool_calls.tool_format import CallGuide, ToolFormat, arguments_schema, write_call

logger = logging.getLogger(__name__)
NewParser = Callable[[], OutputParser]

_NEUTRAL = TOOL_FORMATS["json"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions of one request.

    Attributes:
        tools: OpenAI's descriptions, for the chat template; None for none.
        offered: the functions that may be called.
        is_forced: the choice must be a call.
        is_named: the caller specified the function of that call.
        parallel: several calls are allowed.
    """

    tools: Sequence[Mapping[str, Any]] | None = None
    offered: tuple[Tool, ...] = ()
    is_forced: bool = False
    is_named: bool = False
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class ModelFormats:
    """The output formats of a model.

    Attributes:
        tools: format of calls; None leaves calls in the text.
        reasoning: format of reasoning; None leaves it in the text.
        warns: log the first request whose calls stay in the text.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    warns: bool = False

    def apply(
        self, request: GenerationRequest, use: ToolUse
    ) -> tuple[GenerationRequest, NewParser | None]:
        """Add tools and reasoning to a request.

        Returns:
            The request and a parser factory; None if choices are plain text.

        Raises:
            InvalidRequest: the schemas of a forced call are too long.
        """
        assert request.messages is not None
        if self.tools is not None:
            request = replace(request, chat=replace(request.chat, write_call=self._write_call))
        if use.is_forced:
            return self._forced(request, use)
        if not use.tools and self.reasoning is None:
            return request, None
        tools = self.tools if use.offered else None
        shown: set[str] = set()
        for chosen in (tools, self.reasoning):
            shown |= chosen.special_tokens if chosen else set()
        reasoning = self.reasoning
        chat = replace(request.chat, tools=use.tools, reasoning=reasoning)
        if request.guide and reasoning and not chat.continue_final_message:
            chat = replace(chat, answer_prefix=reasoning.answer)
        request = replace(request, chat=chat, shown_special_tokens=frozenset(shown))
        if use.offered and tools is None and self.warns:
            _warn_of_text()
        if any(tool.is_strict for tool in use.offered):
            _note_strict_free_calls()
        if tools is None and reasoning is None:
            return request, None
        return request, partial(OutputParser, tools, reasoning, use.offered, parallel=use.parallel)

    def _forced(
        self, request: GenerationRequest, use: ToolUse
    ) -> tuple[GenerationRequest, NewParser]:
        """Force a call by a guide: one JSON schema, after a prefix."""
        form, name = self.tools or _NEUTRAL, "the schema of tools"
        check_size([[tool.name, tool.parameters] for tool in use.offered], name, "tools")
        guides = form.guides(use.offered, parallel=use.parallel)
        if len(guides) != 1:  # engines support one schema and one prefix
            form = _NEUTRAL
            guides = form.guides(use.offered, parallel=use.parallel)
        (guide,) = guides
        schema = schema_text(guide.schema, name, "tools")
        reasoning = self.reasoning
        prefix = guide.prefix or (reasoning.answer if reasoning else "")
        chat: ChatFormat = replace(
            request.chat, tools=use.tools, answer_prefix=prefix, reasoning=reasoning
        )
        request = replace(
            request,
            chat=chat,
            shown_special_tokens=reasoning.special_tokens if reasoning else frozenset(),
            guide=Guide("json_schema", schema, strict_parts=_strict_parts(use.offered, name)),
            names={**request.names, "guide": "tool_choice"},
        )
        before = reasoning.before(form) if reasoning else None
        return request, partial(OutputParser, form, before, use.offered, parallel=use.parallel)

    def _write_call(self, name: str, arguments: str) -> str:
        form = self.tools or _NEUTRAL
        guides: list[CallGuide] = form.guides([Tool(name, {})], parallel=True)
        guide = (guides or _NEUTRAL.guides([Tool(name, {})], parallel=True))[0]
        return write_call(guide, name, arguments)


@cache
def _warn_of_text() -> None:
    logger.warning(
        "a request offers functions with tool_choice auto; the model's calls stay in the text, "
        "because their format is unknown. Set it in serving.tool_parser. Further requests of "
        "this kind are not logged."
    )


@cache
def _note_strict_free_calls() -> None:
    logger.info(
        "a request offers functions with strict: true and tool_choice auto; the arguments are "
        "not checked against the schema. Only tool_choice required or a specified function "
        "enforces their schemas. Further requests of this kind are not logged."
    )


def _strict_parts(tools: Sequence[Tool], name: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"the function {tool.name}", schema_text(arguments_schema(tool), name, "tools"))
        for tool in tools
        if tool.is_strict
    )


NO_FORMATS = ModelFormats()
"""Calls and reasoning stay in the text."""


def read_tool(name: Any, parameters: Any, path: str, strict: Any = None) -> Tool:
    """Check a function's description.

    Args:
        parameters: JSON schema of its arguments; None for none.
        path: the field that contains it, for errors.
        strict: the caller's `strict`; None for false.

    Raises:
        InvalidRequest: the name or the schema is invalid.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,256}", name):
        raise InvalidRequest(
            f"{path}.name must be a string of at most 256 letters, digits and . _ -; rename the "
            "function.",
            param="tools",
        )
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequest(f"{path}.parameters must be a JSON schema, an object.", param="tools")
    if strict is not None and not isinstance(strict, bool):
        raise wrong(f"{path}.strict", strict, "true or false", "tools")
    return Tool(name, parameters or {}, bool(strict))
