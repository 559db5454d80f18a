"""The body of `/v1/messages` to a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.protocols.fields import attribute_names, check_min_tokens, request_arguments
from trtllm_truss.protocols.messages.conversation import read_conversation
from trtllm_truss.protocols.messages.fields import read_fields
from trtllm_truss.protocols.messages.options import (
    read_output_format,
    read_thinking,
    read_tool_use,
)
from trtllm_truss.protocols.tool_use import ANY_FORMATS, ModelFormats, NewParser
from trtllm_truss.requests import ChatFormat, GenerationRequest

_NAMES = attribute_names("messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesCall:
    """A parsed body.

    Attributes:
        request: the request.
        model: the caller's name of the model; echoed.
        stream: whether the answer is streamed.
        new_parser: makes a parser of thinking and tool calls; None for text.
        shows_thinking: whether the answer holds the thoughts.
    """

    request: GenerationRequest
    model: str
    stream: bool
    new_parser: NewParser | None = None
    shows_thinking: bool = True


def parse_messages(
    body: Mapping[str, Any], defaults: Mapping[str, Any], formats: ModelFormats = ANY_FORMATS
) -> MessagesCall:
    """Parse a body of `/v1/messages`.

    Args:
        body: the JSON object.
        defaults: values for omitted fields, by the names of the predict body; then Anthropic's
            defaults apply.
        formats: the model's formats of tool calls and reasoning.

    Raises:
        InvalidRequest: a field is missing, unknown, unsupported, of the wrong type or out of
            range, or fields contradict each other.
    """
    fields = read_fields(body, defaults)
    arguments = request_arguments(fields, "messages")
    check_min_tokens(arguments["sampling"].min_tokens, fields.max_tokens)
    messages = read_conversation(fields.system, fields.messages)
    use = read_tool_use(fields.tools, fields.tool_choice)
    thinking = read_thinking(fields.thinking, fields.output_config)
    guide, guide_name = read_output_format(fields.output_config, fields.output_format)
    continues = messages[-1]["role"] == "assistant"
    request = GenerationRequest(
        messages=messages,
        chat=ChatFormat(
            add_generation_prompt=not continues,
            continue_final_message=continues,
            variables=thinking.variables,
        ),
        max_tokens=fields.max_tokens,
        max_tokens_given=False,  # Anthropic's limit may exceed the context
        guide=guide,
        model=fields.model,
        names={**_NAMES, "guide": guide_name},
        **arguments,
    )
    request, new_parser = formats.apply(request, use)
    return MessagesCall(
        request=request,
        model=fields.model,
        stream=fields.stream,
        new_parser=new_parser,
        shows_thinking=thinking.shown,
    )
