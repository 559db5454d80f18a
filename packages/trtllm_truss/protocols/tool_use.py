"""Tools and reasoning of a conversation, for every protocol.

`ModelFormats` is chosen once for the model. `ToolUse` is what one request may call; `apply` turns
both into the arguments of a `GenerationRequest` and the parser of its answers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import check_size, schema_text
from trtllm_truss.requests import ChatFormat, GenerationRequest, Guide
from trtllm_truss.settings.model import Serving
from trtllm_truss.tool_calls.events import Tool
from trtllm_truss.tool_calls.parser import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    OutputParser,
    ReasoningFormat,
    detect_reasoning_format,
    detect_tool_format,
)
from trtllm_truss.tool_calls.tool_format import CallGuide, ToolFormat, write_call

Message = dict[str, Any]
NewParser = Callable[[], OutputParser]

_NEUTRAL = TOOL_FORMATS["json"]
_DEFAULT = "hermes"
"""The format for chat templates without tools."""

_LACKS_SYSTEM_ROLE = re.compile(r"raise_exception\(['\"]System role")
_TESTS_NONE = re.compile(r"content(['\"]\])? is (not )?none")
_JOINS_ARGUMENTS = re.compile(r"arguments(['\"]\])?\s*[+~]")
"""The use of arguments as text in DeepSeek's templates."""

_WANTS_SHORT_IDS = re.compile(r"length\s*!=\s*9\b")
"""The test of Mistral's templates for the ids of calls."""

_DESCRIPTION = """\
You can call these functions, each described by a JSON schema:
<tools>
{tools}
</tools>

To call a function, write its name and its arguments exactly in this form:
{call}

The results follow in the next message. Answer directly if no function is needed."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions of one request.

    Attributes:
        tools: OpenAI's descriptions, for the chat template; None for none.
        offered: the functions that may be called.
        is_forced: whether the answer must be a call.
        is_named: whether the caller named the function of that call.
        parallel: whether it may have several.
    """

    tools: Sequence[Mapping[str, Any]] | None = None
    offered: tuple[Tool, ...] = ()
    is_forced: bool = False
    is_named: bool = False
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class ModelFormats:
    """The formats of a model, and the limits of its chat template.

    Attributes:
        tools: the format of calls; None leaves calls in the text.
        reasoning: the format of reasoning; None leaves it in the text.
        template: the source of the chat template.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    template: str = "tools tool_calls"

    @classmethod
    def choose(cls, serving: Serving, template: str) -> ModelFormats:
        """Choose the formats by the settings, or else by the chat template."""
        tools: str | None = serving.tool_parser
        if tools == "auto":
            tools = detect_tool_format(template) or (None if "tools" in template else _DEFAULT)
        reasoning: str | None = serving.reasoning_parser
        if reasoning == "auto":
            reasoning = detect_reasoning_format(template)
        return cls(TOOL_FORMATS.get(tools or ""), REASONING_FORMATS.get(reasoning or ""), template)

    def apply(
        self, request: GenerationRequest, use: ToolUse
    ) -> tuple[GenerationRequest, NewParser | None]:
        """Add tools and reasoning to a request.

        Returns:
            The request, and what makes a parser for each of its answers; None if these are text.

        Raises:
            InvalidRequest: the schemas of a forced call are too long.
        """
        assert request.messages is not None
        messages = self._messages(request.messages, use)
        if use.is_forced:
            return self._forced(replace(request, messages=messages), use)
        if not use.tools and self.reasoning is None:
            return replace(request, messages=messages), None
        tools = self.tools if use.offered else None
        shown: set[str] = set()
        for chosen in (tools, self.reasoning):
            shown |= chosen.special_tokens if chosen else set()
        reasoning = self.reasoning
        chat = replace(request.chat, tools=use.tools, reasoning=reasoning)
        if request.guide and reasoning and not chat.continue_final_message:
            chat = replace(chat, answer_prefix=reasoning.answer)
        request = replace(
            request, messages=messages, chat=chat, shown_special_tokens=frozenset(shown)
        )
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
        if len(guides) != 1:  # engines take one schema and one prefix
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
            guide=Guide("json_schema", schema),
            names={**request.names, "guide": "tool_choice"},
        )
        before = reasoning.before(form) if reasoning else None
        return request, partial(OutputParser, form, before, use.offered, parallel=use.parallel)

    def _messages(self, messages: Sequence[Mapping[str, Any]], use: ToolUse) -> list[Message]:
        """Adapt messages to the chat template.

        A template without tools gets them as text: their description in the system message, calls
        as the model would write them, results in messages of the user.
        """
        adapted = [dict(message) for message in messages]
        if "tool_calls" not in self.template:
            adapted = self._calls_as_text(adapted)
        elif _has_trait(_JOINS_ARGUMENTS, self.template):
            _arguments_as_text(adapted)
        if _has_trait(_WANTS_SHORT_IDS, self.template):
            _shorten_ids(adapted)
        absent = None if _has_trait(_TESTS_NONE, self.template) else ""
        for message in adapted:
            message.setdefault("content", absent)
        if use.tools and "tools" not in self.template:
            self._describe(use.tools, adapted)
        return adapted

    def _describe(self, tools: Sequence[Mapping[str, Any]], messages: list[Message]) -> None:
        example = self._write_call("FUNCTION", '{"ARGUMENT": VALUE}')
        listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        text = _DESCRIPTION.format(tools=listed, call=example)
        role = "user" if _has_trait(_LACKS_SYSTEM_ROLE, self.template) else "system"
        if messages[0]["role"] == role:
            begin, end = str(messages[0]["content"]), text
            if role == "user":
                begin, end = end, begin
            messages[0]["content"] = f"{begin}\n\n{end}"
        else:
            messages.insert(0, {"role": role, "content": text})

    def _calls_as_text(self, messages: Sequence[Message]) -> list[Message]:
        for message in messages:
            if calls := message.pop("tool_calls", None):
                written = [
                    self._write_call(call["function"]["name"], _json(call["function"]["arguments"]))
                    for call in calls
                ]
                message["content"] = "\n".join(filter(None, [message.get("content"), *written]))
        adapted: list[Message] = []
        for are_results, turns in groupby(messages, lambda message: message["role"] == "tool"):
            if are_results:
                lines = (
                    line
                    for result in turns
                    for line in ("<tool_response>", result.get("content", ""), "</tool_response>")
                )
                adapted.append({"role": "user", "content": "\n".join(lines)})
            else:
                adapted += turns
        return adapted

    def _write_call(self, name: str, arguments: str) -> str:
        form = self.tools or _NEUTRAL
        guides: list[CallGuide] = form.guides([Tool(name, {})], parallel=True)
        guide = (guides or _NEUTRAL.guides([Tool(name, {})], parallel=True))[0]
        return write_call(guide, name, arguments)


NO_FORMATS = ModelFormats()
"""Calls and reasoning stay in the text."""


def read_tool(name: Any, parameters: Any, path: str) -> Tool:
    """Check a function.

    Args:
        parameters: the JSON schema of its arguments; None for none.
        path: the field that holds it, for errors.

    Raises:
        InvalidRequest: the name or the schema is unusable.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,256}", name):
        raise InvalidRequest(
            f"{path}.name must be a string of at most 256 letters, digits and . _ -; rename the "
            "function.",
            param="tools",
        )
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequest(f"{path}.parameters must be a JSON schema, an object.", param="tools")
    return Tool(name, parameters or {})


@lru_cache(64)
def _has_trait(trait: re.Pattern[str], template: str) -> bool:
    """Return whether a template has a trait; templates are long, and searched once."""
    return trait.search(template) is not None


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _arguments_as_text(messages: Sequence[Message]) -> None:
    for message in messages:
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": _json(arguments)}}
                for call in calls
                for arguments in [call["function"]["arguments"]]
            ]


def _shorten_ids(messages: Sequence[Message]) -> None:
    """Replace ids of calls by nine letters and digits; equal ids stay equal."""
    for message in messages:
        for holder, key in (
            (message, "tool_call_id"),
            *((call, "id") for call in message.get("tool_calls", ())),
        ):
            if (id_ := holder.get(key)) and not re.fullmatch(r"[0-9A-Za-z]{9}", id_):
                holder[key] = hashlib.sha256(id_.encode()).hexdigest()[:9]
