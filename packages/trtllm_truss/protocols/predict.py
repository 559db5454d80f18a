"""The predict protocol: one body, answered with plain text, server-sent events or one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from trtllm_truss.errors import InvalidRequest, RequestError, SettingsError, TrussError
from trtllm_truss.protocols.base import (
    JSON_MEDIA_TYPE,
    MAX_MESSAGES,
    MAX_TOOLS,
    SSE_MEDIA_TYPE,
    TEXT_MEDIA_TYPE,
    Call,
    Defaults,
    WholeWriter,
    sse_event,
    sse_text,
)
from trtllm_truss.protocols.conversation.chat import read_messages
from trtllm_truss.protocols.fields import (
    NonEmpty,
    Unsupported,
    check_min_tokens,
    invalid_request,
    named_once,
    refuse_unsupported,
    request_arguments,
    with_request_fields,
)
from trtllm_truss.protocols.openai.fields import read_response_format
from trtllm_truss.protocols.openai.tools import read_tool_use
from trtllm_truss.protocols.tool_use import NO_FORMATS, ModelFormats, ToolUse
from trtllm_truss.request_fields import INT32_MAX, SAMPLING
from trtllm_truss.requests import (
    AnswerItem,
    ChatFormat,
    GenerationEnd,
    GenerationRequest,
    TextDelta,
)
from trtllm_truss.validation import Strict

ALIASES = {
    "stop_words_list": "stop_words",
    "stop": "stop_words",
    "bad_words_list": "bad_words",
    **{older: row.name for row in SAMPLING for older in row.tensors[1:]},
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
}
"""Fields by alias."""

UNUSED = {
    "metadata": "answers are not stored",
    "model": "one model is served",
    "pad_id": "it pads beams, and only the best one is returned",
    "service_tier": "the server has one tier",
    "store": "answers are not stored",
    "stream_options": "the last event always has the usage",
    "user": "nothing is stored about callers",
}
"""Fields without effect, with the reasons."""

REFUSED = {
    "logprobs": Unsupported("answers are text; /v1/chat/completions reports them", (False,)),
    "n": Unsupported("answers are one text; /v1/chat/completions has choices", (1,)),
    "top_logprobs": Unsupported("answers are text; /v1/chat/completions reports them", (0,)),
}
"""Unsupported fields and their neutral values."""


@with_request_fields("predict")
class PredictBody(Strict):
    """The fields of a predict body; other fields are rejected."""

    prompt: NonEmpty | None = Field(
        None, description="The text to continue; it is not repeated in the response."
    )
    messages: Annotated[list[Any], Field(min_length=1, max_length=MAX_MESSAGES)] | None = Field(
        None,
        description="Instead of `prompt`: a conversation for the tokenizer's chat template, with "
        "tool results and everything else that [chat completions](openai.md) accept; "
        "special tokens written out in it are plain text "
        "(`serving.control_tokens_in_messages`).",
    )
    tools: list[Any] | None = Field(
        None,
        max_length=MAX_TOOLS,
        description="Functions that the model may call, as in chat completions; the response is "
        "the text that the model writes, including calls and reasoning.",
    )
    tool_choice: Any = Field(None, description="As in chat completions.")
    parallel_tool_calls: bool = Field(
        True, description="If false, a forced tool call produces at most one call."
    )
    response_format: dict[str, Any] | None = Field(
        None,
        description="The format of the output, as in chat completions; with `messages` and a "
        "reasoning model, the text is the reasoning with its end marker, followed by the "
        "[structured output](openai.md#structured-output-of-models-that-reason).",
    )
    max_tokens: int = Field(
        50,
        ge=1,
        le=INT32_MAX,
        description="Maximum number of generated tokens, excluding the prompt.",
    )
    end_id: int | None = Field(
        None,
        ge=-1,
        le=INT32_MAX,
        description="Added to `stop_token_ids`; -1 means `ignore_eos`.",
    )
    stream: bool = Field(True, description="False returns one JSON object.")


_KNOWN = [*PredictBody.model_fields, *ALIASES, *UNUSED, *REFUSED]


def parse_predict(
    body: Mapping[str, Any], defaults: Mapping[str, Any], formats: ModelFormats = NO_FORMATS
) -> tuple[GenerationRequest, bool]:
    """Parse a predict body into a request and its `stream` field; null counts as missing.

    Args:
        defaults: values of missing fields (`model_metadata.generation`).
        formats: the model's formats of tool calls and reasoning.

    Raises:
        InvalidRequest: a field is missing, unknown, of the wrong type or out of range.
    """
    sent = _by_field(body)
    parsed = _validated({**defaults, **sent})
    if (parsed.prompt is None) == (parsed.messages is None):
        raise _prompt_problem(body, parsed)
    arguments = request_arguments(parsed, "predict")
    check_min_tokens(arguments["sampling"].min_tokens, parsed.max_tokens)
    use, guide = ToolUse(), None
    if parsed.tools or parsed.tool_choice is not None:
        use = read_tool_use(parsed.tools, parsed.tool_choice, parallel=parsed.parallel_tool_calls)
    if parsed.response_format is not None:
        guide = read_response_format(parsed.response_format)
    if use.tools and parsed.messages is None:
        raise InvalidRequest(
            "tools are given without messages; send the prompt as a message.", param="tools"
        )
    if parsed.end_id == -1:
        arguments["ignore_eos"] = True
    elif parsed.end_id is not None:
        arguments["stop_token_ids"] += (parsed.end_id,)
    messages, is_prefix = (
        (None, False) if parsed.messages is None else read_messages(parsed.messages)
    )
    request = GenerationRequest(
        prompt=parsed.prompt,
        messages=messages,
        chat=ChatFormat(add_generation_prompt=not is_prefix, continue_final_message=is_prefix),
        max_tokens=parsed.max_tokens,
        max_tokens_given="max_tokens" in sent,
        guide=guide,
        names={"guide": "response_format"},
        **arguments,
    )
    if request.messages is not None:
        request = _with_tools(request, use, formats)
    return request, parsed.stream


def _with_tools(
    request: GenerationRequest, use: ToolUse, formats: ModelFormats
) -> GenerationRequest:
    """Add tools to a conversation. Reasoning and calls remain part of the text."""
    is_guided = use.is_forced or request.guide is not None
    request, _ = (formats if is_guided else replace(formats, reasoning=None)).apply(request, use)
    chat = replace(request.chat, reasoning=formats.reasoning, shows_reasoning_start=False)
    return replace(request, chat=chat)


NO_DEFAULTS = ("prompt", "messages", "tools", "tool_choice", "response_format")
"""Fields that `model_metadata.generation` must not set."""


def parse_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Validate `model_metadata.generation` by the rules of a body.

    Raises:
        SettingsError: a default is unknown, of the wrong type or out of range.
    """
    for name in NO_DEFAULTS:
        if name in generation:
            raise SettingsError(
                f"config.yaml: model_metadata.generation.{name} is not a default; remove it."
            )
    try:
        defaults = _by_field(generation)
        _validated(defaults)
    except RequestError as error:
        raise SettingsError(f"config.yaml: model_metadata.generation: {error.message}") from None
    return defaults


def response_form(accept: str, stream: bool) -> Literal["text", "events", "json"]:
    """Choose the response format by the `Accept` header and the field `stream`."""
    wanted = accept.lower()
    if not stream:
        return "json"
    if "text/event-stream" in wanted:
        return "events"
    return "json" if "application/json" in wanted else "text"


def _by_field(body: Mapping[str, Any]) -> dict[str, Any]:
    """Drop fields that are null or without effect, and resolve aliases."""
    sent = {name: value for name, value in body.items() if value is not None or name not in _KNOWN}
    for name in [name for name in sent if name in UNUSED or name in REFUSED]:
        value = sent.pop(name)
        if name in REFUSED:
            refuse_unsupported(name, value, REFUSED)
    if "max_completion_tokens" in sent:
        sent.pop("max_tokens", None)
    return named_once(sent, ALIASES, ("stop_words", "bad_words"))


def _validated(values: Mapping[str, Any]) -> PredictBody:
    try:
        return PredictBody.model_validate(values)
    except ValidationError as error:
        raise invalid_request(error, _KNOWN, REFUSED) from None


def _prompt_problem(body: Mapping[str, Any], parsed: PredictBody) -> InvalidRequest:
    if parsed.prompt is not None:
        return InvalidRequest(
            "prompt and messages are both given; send one of them.", param="messages"
        )
    was = "null" if "prompt" in body else "missing"
    return InvalidRequest(
        f"prompt is {was}; send the text to continue, or a conversation as messages.",
        param="prompt",
    )


@dataclass(frozen=True, slots=True)
class PredictAdapter:
    """The predict protocol.

    Attributes:
        formats: the model's formats of tool calls and reasoning.
        name: its name in metrics and log.
    """

    defaults: Defaults
    formats: ModelFormats = NO_FORMATS
    name: str = "predict"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        request, stream = parse_predict(body, self.defaults, self.formats)
        form = response_form(accept, stream)
        if form == "json":
            return Call([request], WholeText(), JSON_MEDIA_TYPE)
        if form == "events":
            return Call([request], Events(), SSE_MEDIA_TYPE)
        return Call([request], PlainText(), TEXT_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> dict[str, Any]:
        """Return `{"error": {"code", "message", "param"}}`."""
        return _error_body(error)


class PlainText:
    """Plain text; an error aborts the response."""

    def push(self, item: AnswerItem) -> bytes:
        return item.text.encode() if isinstance(item, TextDelta) else b""

    def end(self) -> bytes:
        return b""

    def error(self, error: TrussError) -> bytes:
        raise error


class Events:
    """One event per delta, then one with finish reason and usage."""

    def push(self, item: AnswerItem) -> bytes:
        """Return `data: {"text": …}`, or `data: {"finish_reason": …, "usage": …}` at the end."""
        return sse_text(item.text) if isinstance(item, TextDelta) else sse_event(_end_fields(item))

    def end(self) -> bytes:
        return b""

    def error(self, error: TrussError) -> bytes:
        """Return `data: {"error": …}`."""
        return sse_event(_error_body(error))


class WholeText(WholeWriter):
    """`{"text": …, "finish_reason": …, "usage": …}`."""

    def body(self) -> dict[str, Any]:
        answer, end = self.ended(0)
        return {"text": answer.text, **_end_fields(end)}


def _error_body(error: TrussError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": error.message, "param": error.param}}


def _end_fields(end: GenerationEnd) -> dict[str, Any]:
    usage = {
        "prompt_tokens": end.usage.prompt_tokens,
        "completion_tokens": end.usage.completion_tokens,
    }
    if end.usage.cached_tokens is not None:
        usage["cached_tokens"] = end.usage.cached_tokens
    return {"finish_reason": end.reason.value, "usage": usage}
