"""The body of `/v1/messages` to a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.protocols.fields import check_min_tokens, read_sampling
from trtllm_truss.protocols.messages.conversation import read_conversation
from trtllm_truss.protocols.messages.fields import read_fields
from trtllm_truss.protocols.messages.options import (
    read_output_format,
    read_thinking,
    read_tool_use,
)
from trtllm_truss.protocols.tool_use import ANY_FORMATS, ModelFormats, NewParser
from trtllm_truss.requests import ChatFormat, GenerationRequest

_NAMES = {
    "truncate_prompt": "truncate_prompt_tokens",
    "stop_words": "stop_sequences",
    "include_stop": "include_stop_str_in_output",
}
"""Anthropic's names of a request's attributes, where they differ."""


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
    check_min_tokens(fields.min_tokens, fields.max_tokens)
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
        truncate_prompt=fields.truncate_prompt_tokens,
        max_tokens=fields.max_tokens,
        max_tokens_given=False,  # Anthropic's limit may exceed the context
        stop_words=tuple(fields.stop_sequences),
        include_stop=fields.include_stop_str_in_output,
        bad_words=tuple(fields.bad_words),
        beam_width=fields.beam_width,
        ignore_eos=fields.ignore_eos,
        skip_special_tokens=fields.skip_special_tokens,
        guide=guide,
        lora_task_id=fields.lora_task_id,
        model=fields.model,
        sampling=read_sampling(fields),
        names={**_NAMES, "guide": guide_name},
    )
    request, new_parser = formats.apply(request, use)
    return MessagesCall(
        request=request,
        model=fields.model,
        stream=fields.stream,
        new_parser=new_parser,
        shows_thinking=thinking.shown,
    )
