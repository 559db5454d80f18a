"""The body of `/v1/responses`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import MAX_TOOLS, is_encodable
from trtllm_truss.protocols.conversation.items import read_items
from trtllm_truss.protocols.fields import Unsupported
from trtllm_truss.protocols.openai.body import SHARED_UNUSED, ChatExtensions, chat_format
from trtllm_truss.protocols.openai.fields import (
    FLAT_PATH,
    REFUSED_EXTENSIONS,
    UNUSED_EXTENSIONS,
    StreamOptions,
    generation_arguments,
    read_body,
    read_response_format,
)
from trtllm_truss.protocols.openai.tools import read_flat_tool_use
from trtllm_truss.protocols.tool_origins import Origins
from trtllm_truss.protocols.tool_use import NO_FORMATS, ModelFormats, NewParser
from trtllm_truss.request_fields import INT32_MAX
from trtllm_truss.requests import GenerationRequest
from trtllm_truss.validation import Strict

LOG_PROBS = "message.output_text.logprobs"

Summary = Literal["auto", "concise", "detailed"]


class Reasoning(Strict):
    """`reasoning`."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None

    @property
    def summary_asked_for(self) -> Summary | None:
        """`summary`, or its older name."""
        return self.summary or self.generate_summary


class TextOptions(Strict):
    """`text`. The verbosity has no effect."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesFields(ChatExtensions):
    """Fields of `/v1/responses`."""

    input: Any = Field(
        description="A text, or items of type `message`, `function_call`, "
        "`function_call_output`, `custom_tool_call`, `custom_tool_call_output` and "
        "`reasoning`; content is text or parts of text. `developer` means `system`."
    )
    instructions: str | None = Field(None, description="The system message before the input.")
    max_output_tokens: int | None = Field(
        None,
        ge=1,
        le=INT32_MAX,
        description="Maximum number of generated tokens, including reasoning; at most, and by "
        "default, the rest of the context.",
    )
    text: TextOptions = Field(
        default_factory=TextOptions,
        description="`format`: `text`, `json_object`, `json_schema`; beyond OpenAI's, `regex` "
        "and `grammar`. `verbosity` has no effect.",
    )
    reasoning: Reasoning = Field(
        default_factory=Reasoning,
        description="`effort` is passed to the chat template as `reasoning_effort`. With "
        "`summary`, whatever its value, the full reasoning is returned as the item's "
        "`summary`, where OpenAI's clients look for it; otherwise as its `content`.",
    )
    include: list[
        Literal[
            "message.output_text.logprobs",
            "reasoning.encrypted_content",
            "code_interpreter_call.outputs",
            "computer_call_output.output.image_url",
            "file_search_call.results",
            "message.input_image.image_url",
            "web_search_call.action.sources",
            "web_search_call.results",
        ]
    ] = Field(
        default_factory=list,
        max_length=64,
        description=f"`{LOG_PROBS}`: log probabilities of the text's tokens; only without tools "
        "or reasoning. OpenAI's other values have no effect.",
    )
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=20,
        description=f"Alternatives to report per token; requires `{LOG_PROBS}`. Values above 0 "
        "(above 1 in greedy decoding) need an engine that reports alternatives.",
    )
    tools: list[Any] | None = Field(
        None,
        max_length=MAX_TOOLS,
        description="Tools of the model: `function`; `custom`, with free text as input; and "
        "`namespace`, whose tools the model knows as `<namespace>__<name>`.",
    )
    tool_choice: Any = Field(
        None,
        description="`auto`, `none`, `required`, a named tool, or `allowed_tools`; default: "
        "`auto`.",
    )
    parallel_tool_calls: bool = Field(
        True, description="Allow several calls in one response; false returns only the first."
    )
    stream: bool = Field(False, description="Server-sent events.")
    stream_options: StreamOptions | None = Field(
        None, description="`include_obfuscation` may only be false; the usage is always included."
    )
    metadata: dict[
        Annotated[str, Field(max_length=64)],
        Annotated[str, Field(max_length=512)],
    ] = Field(
        default_factory=dict,
        max_length=16,
        description="Echoed in the response; texts of at most 512 characters, as OpenAI's.",
    )


REFUSED = {
    "background": Unsupported("answers are not stored", (False,)),
    "context_management": Unsupported("the input is not compacted", ([],)),
    "conversation": Unsupported("answers are not stored; send the earlier items in input"),
    "max_tokens": Unsupported("the limit is max_output_tokens"),
    "moderation": Unsupported("moderation is not available"),
    "n": Unsupported("a response has one choice", (1,)),
    "previous_response_id": Unsupported("answers are not stored; send the earlier items in input"),
    "prompt": Unsupported("prompt templates are not stored; send instructions and input"),
    "response_format": Unsupported("the format is text.format"),
    "truncation": Unsupported(
        "items are not dropped; truncate_prompt_tokens keeps the end of the prompt", ("disabled",)
    ),
}

UNUSED = {
    **SHARED_UNUSED,
    "access_programs": "the server has no programs",
    "background_options": "answers are not stored",
    "image": "images are not read",
    "max_tool_calls": "it limits built-in tools, of which there are none",
    "service_tier": "the server has one tier, `default` in the response",
    "store": "answers are not stored; `store` is false in the response",
}

_ALL_REFUSED = {**REFUSED_EXTENSIONS, **REFUSED}
_ALL_UNUSED = {**UNUSED_EXTENSIONS, **UNUSED}

_FUNCTION = {"type": "function", "description": None, "parameters": None, "strict": None}
"""The keys of a function that a response always includes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesCall:
    """A parsed body.

    Attributes:
        echo: request fields that the response repeats.
        alternatives: see `ChatShape`; not None only without `new_parser`.
        new_parser: creates the parser of reasoning and tool calls; None for text.
        origins: the tools behind the functions that the model calls.
        summarizes: return reasoning as summaries.
    """

    request: GenerationRequest
    echo: Mapping[str, Any]
    stream: bool
    alternatives: int | None
    new_parser: NewParser | None
    origins: Origins
    summarizes: bool = False


def parse_response(
    body: Mapping[str, Any], defaults: Mapping[str, Any], formats: ModelFormats = NO_FORMATS
) -> ResponsesCall:
    """Parse a body of `/v1/responses`.

    Args:
        defaults: values for omitted fields, by the predict body's field names; OpenAI's defaults
            apply after them.
        formats: the model's formats of tool calls and reasoning.

    Raises:
        InvalidRequest: a field is missing, unknown, unsupported, of the wrong type or out of
            range, or fields contradict each other.
    """
    fields = read_body(ResponsesFields, body, defaults, refused=_ALL_REFUSED, unused=_ALL_UNUSED)
    messages = read_items(fields.input, fields.instructions)
    use, origins = read_flat_tool_use(
        fields.tools, fields.tool_choice, parallel=fields.parallel_tool_calls
    )
    alternatives = _alternatives(fields)
    arguments = generation_arguments(
        fields,
        max_tokens=fields.max_output_tokens or fields.max_tokens,
        max_tokens_given=fields.max_output_tokens is not None,
        names={
            "messages": "input",
            "log_probs": "top_logprobs",
            "max_tokens": "max_output_tokens",
            "guide": FLAT_PATH,
        },
        text_format=read_response_format(fields.text.format, flat=True),
    )
    request = GenerationRequest(
        messages=messages,
        chat=chat_format(fields, str(messages[-1]["role"]), fields.reasoning.effort),
        log_probs=alternatives,
        **arguments,
    )
    request, new_parser = formats.apply(request, use)
    if alternatives is not None and new_parser is not None:
        raise InvalidRequest(
            f"include has {LOG_PROBS}, which is not available with tools or reasoning; leave it "
            "out.",
            param="include",
        )
    return ResponsesCall(
        request=request,
        echo=_echo(fields),
        stream=fields.stream,
        alternatives=alternatives,
        new_parser=new_parser,
        origins=origins,
        summarizes=fields.reasoning.summary_asked_for is not None,
    )


def _alternatives(fields: ResponsesFields) -> int | None:
    if LOG_PROBS in fields.include:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise InvalidRequest(
            f"top_logprobs is {fields.top_logprobs}, but include lacks {LOG_PROBS}; add it.",
            param="top_logprobs",
        )
    return None


def _echo(fields: ResponsesFields) -> dict[str, Any]:
    """Return the request fields that the response repeats.

    Raises:
        InvalidRequest: a field cannot be encoded as JSON.
    """
    text = fields.text
    echo = {
        "model": fields.model,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": None,
        "metadata": fields.metadata,
        "parallel_tool_calls": fields.parallel_tool_calls,
        "reasoning": {
            "effort": fields.reasoning.effort,
            "summary": fields.reasoning.summary_asked_for,
        },
        "temperature": fields.temperature,
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": fields.top_p,
        "tools": [
            {**_FUNCTION, **tool} if tool["type"] == "function" else tool
            for tool in fields.tools or ()
        ],
        "tool_choice": fields.tool_choice or "auto",
        "text": {
            "format": text.format or {"type": "text"},
            "verbosity": text.verbosity or "medium",
        },
    }
    for name, value in echo.items():
        if not is_encodable(value):
            raise InvalidRequest(
                f"{name} contains a lone surrogate, which is not valid Unicode, or a number "
                "that is out of range; send whole characters and finite numbers.",
                param=name,
            )
    return echo
