"""The body of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import INT32_MAX, NonEmpty, Unsupported
from trtllm_truss.protocols.limits import MAX_MESSAGES, MAX_TOOLS
from trtllm_truss.protocols.openai.fields import SharedFields, read_body
from trtllm_truss.protocols.openai.generation import generation_arguments, include_usage
from trtllm_truss.protocols.openai.messages import read_messages, read_tools
from trtllm_truss.protocols.openai.shapes import ChatShape, OpenAICall
from trtllm_truss.requests import ChatFormat, GenerationRequest
from trtllm_truss.validation import shown


class ChatExtensions(SharedFields):
    """What the chat template may be told beyond OpenAI's fields; the names are vLLM's."""

    add_generation_prompt: bool | None = Field(
        None, description="Whether the template begins the assistant's answer; default: true."
    )
    continue_final_message: bool = Field(
        False, description="The answer goes on in the last message, which is the assistant's."
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Further names for the template: `enable_thinking` …"
    )


class ChatFields(ChatExtensions):
    """What a caller may send to `/v1/chat/completions`."""

    messages: Annotated[list[Any], Field(min_length=1, max_length=MAX_MESSAGES)] = Field(
        description="The conversation, for the tokenizer's chat template; content is text, or "
        "parts of type text. `developer` means `system`."
    )
    max_completion_tokens: int | None = Field(
        None, ge=1, le=INT32_MAX, description="The newer name of max_tokens."
    )
    logprobs: bool = Field(False, description="Log probabilities of the answer's tokens.")
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=20,
        description="Likeliest tokens to tell in each place; needs logprobs. The engines so far "
        "tell the chosen token alone, so that only 0 passes.",
    )
    tools: list[Any] | None = Field(
        None,
        max_length=MAX_TOOLS,
        description="Given to the chat template. What the model then writes is the content; it is "
        "not read into `tool_calls`.",
    )
    tool_choice: Any = Field(
        None, description="`auto`, or `none`, which keeps the tools from the template."
    )
    reasoning_effort: NonEmpty | None = Field(
        None, description="Given to the chat template under this name."
    )


REFUSED = {
    "audio": Unsupported("answers are text"),
    "modalities": Unsupported("answers are text", (["text"],)),
    "function_call": Unsupported("tools and tool_choice have replaced it", ("auto", "none")),
    "functions": Unsupported("tools have replaced it", ([],)),
    "moderation": Unsupported("there is no moderation model"),
    "parallel_tool_calls": Unsupported("tool calls are not restrained", (True,)),
    "prediction": Unsupported("there are no predicted outputs"),
    "service_tier": Unsupported("there is one tier only", ("auto", "default")),
    "store": Unsupported("nothing is stored", (False,)),
    "verbosity": Unsupported("say it in a message", ("medium",)),
    "web_search_options": Unsupported("there is no web search"),
}

UNUSED = {
    "metadata": "nothing is stored that it could be attached to",
    "prompt_cache_key": "the engine finds equal beginnings by itself",
    "prompt_cache_options": "the engine finds equal beginnings by itself",
    "prompt_cache_retention": "the engine finds equal beginnings by itself",
    "safety_identifier": "nothing is kept about callers",
    "user": "nothing is kept about callers",
}


_FIELDS_OF_TEMPLATES = ("messages", "tools", "add_generation_prompt", "continue_final_message")
"""What templates are told by fields of their own."""


def parse_chat(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> OpenAICall:
    """A body of `/v1/chat/completions`.

    Args:
        body: the JSON object that the caller sent.
        defaults: values for fields that it leaves out, by the names of the predict body;
            OpenAI's own defaults hold where there is none.

    Raises:
        InvalidRequest: a field is missing, unknown, not served, of the wrong type or out of
            range, or two contradict each other.
    """
    fields = read_body(ChatFields, body, defaults, refused=REFUSED, unused=UNUSED)
    limits = ("max_tokens", "max_completion_tokens")
    given = [name for name in limits if body.get(name) is not None]
    if len(given) == len(limits):
        raise InvalidRequest(
            "max_tokens and max_completion_tokens are both given; send the latter.",
            param="max_tokens",
        )
    log_probs = _log_probs(fields)
    messages = read_messages(fields.messages)
    request = GenerationRequest(
        messages=messages,
        chat=_chat_format(fields, str(messages[-1]["role"])),
        log_probs=log_probs,
        **generation_arguments(
            fields,
            max_tokens=fields.max_completion_tokens or fields.max_tokens,
            max_tokens_given=bool(given),
            names={"log_probs": "top_logprobs", "max_tokens": given[0] if given else limits[0]},
        ),
    )
    return OpenAICall(
        requests=(request,),
        model=fields.model,
        stream=fields.stream,
        include_usage=include_usage(fields),
        shape=ChatShape(log_probs=log_probs is not None),
    )


def _log_probs(fields: ChatFields) -> int | None:
    if fields.top_logprobs is not None and not fields.logprobs:
        raise InvalidRequest(
            f"top_logprobs is {fields.top_logprobs}, but logprobs is false; set logprobs to true.",
            param="top_logprobs",
        )
    return (fields.top_logprobs or 0) if fields.logprobs else None


def _chat_format(fields: ChatFields, last_role: str) -> ChatFormat:
    going_on = fields.continue_final_message
    if going_on and fields.add_generation_prompt:
        raise InvalidRequest(
            "add_generation_prompt and continue_final_message are both true; choose one.",
            param="continue_final_message",
        )
    if going_on and last_role != "assistant":
        raise InvalidRequest(
            f"continue_final_message is true, but the last message is by {shown(last_role)}; end "
            "messages with one by the assistant.",
            param="continue_final_message",
        )
    variables = dict(fields.chat_template_kwargs)
    for name in _FIELDS_OF_TEMPLATES:
        if name in variables:
            raise InvalidRequest(
                f"chat_template_kwargs holds {name}; send it as a field of its own.",
                param="chat_template_kwargs",
            )
    if fields.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", fields.reasoning_effort)
    begins = fields.add_generation_prompt
    return ChatFormat(
        tools=_tools(fields),
        add_generation_prompt=not going_on if begins is None else begins,
        continue_final_message=going_on,
        variables=variables,
    )


def _tools(fields: ChatFields) -> list[Mapping[str, Any]] | None:
    tools = read_tools(fields.tools)
    if fields.tool_choice not in (None, "auto", "none"):
        raise InvalidRequest(
            f"tool_choice is {shown(fields.tool_choice)}; only auto and none are supported.",
            param="tool_choice",
        )
    return None if fields.tool_choice == "none" else tools
