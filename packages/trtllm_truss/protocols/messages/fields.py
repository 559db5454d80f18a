"""The fields of `/v1/messages`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import (
    Finite,
    Unsupported,
    Words,
    body_field,
    invalid_request,
    own_defaults,
    refuse_unsupported,
    with_request_fields,
)
from trtllm_truss.protocols.limits import MAX_MESSAGES, MAX_MODEL_CHARACTERS, MAX_TOOLS
from trtllm_truss.request_fields import INT32_MAX
from trtllm_truss.validation import Strict, shown, shown_name


@with_request_fields("messages", without=("temperature", "top_p", "stop_sequences"))
class MessagesExtensions(Strict):
    """Fields beyond Anthropic's, and `top_k`."""


class MessagesFields(MessagesExtensions):
    """Fields of `/v1/messages`."""

    model: Annotated[str, Field(max_length=MAX_MODEL_CHARACTERS)] = Field(
        "model", description="Echoed; one model is served, by any name."
    )
    max_tokens: int = Field(
        ge=1, le=INT32_MAX, description="Limit of generated tokens; cut down to the context."
    )
    messages: Annotated[list[Any], Field(min_length=1, max_length=MAX_MESSAGES)] = Field(
        description="Turns by `user`, `assistant` and `system`; content is text, or blocks. A last "
        "one by `assistant` is continued."
    )
    system: Any = Field(None, description="The system prompt: text, or blocks of type `text`.")
    stop_sequences: Words = body_field("stop_words")
    stream: bool = Field(False, description="Server-sent events, the last one `message_stop`.")
    temperature: Finite = body_field("temperature", default=1.0, le=2)
    top_p: Finite = body_field("top_p", default=1.0)
    tools: list[Any] | None = Field(
        None,
        max_length=MAX_TOOLS,
        description="Tools of the caller, with `name` and `input_schema`; see below.",
    )
    tool_choice: dict[str, Any] | None = Field(
        None,
        description="Type `auto`, `any`, `tool` with a `name`, or `none`; "
        "`disable_parallel_tool_use`. Default: `auto`.",
    )
    thinking: dict[str, Any] | None = Field(
        None,
        description="Type `enabled`, `disabled` or `adaptive`; `display`. See below.",
    )
    output_config: dict[str, Any] | None = Field(
        None,
        description="`format` of type `json_schema`, by guided decoding; `effort`, given to the "
        "chat template as `reasoning_effort`.",
    )
    output_format: dict[str, Any] | None = Field(
        None, description="The older name of `output_config.format`."
    )


REFUSED = {
    "compaction": Unsupported("nothing is compacted"),
    "container": Unsupported("code is not executed"),
    "context_management": Unsupported(
        "conversations are not edited",
        ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    ),
    "fallbacks": Unsupported("one model is served", ([],)),
    "mcp_servers": Unsupported("tools are called by the client", ([],)),
    "service_tier": Unsupported("the server has one tier", ("auto", "standard_only")),
    "speed": Unsupported("the server has one speed", ("standard",)),
}

UNUSED = {
    "anthropic_version": "the server has one version of the API",
    "cache_control": "the engine reuses equal prefixes automatically",
    "diagnostics": "the engine reuses equal prefixes automatically",
    "inference_geo": "the deployment decides where it runs",
    "metadata": "nothing is stored about callers",
    "user_profile_id": "nothing is stored about callers",
    "workspace_id": "nothing is stored about callers",
}

_KNOWN = [*MessagesFields.model_fields, *REFUSED, *UNUSED]


def read_fields(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> MessagesFields:
    """Validate the fields of a body. A field that is null counts as omitted.

    Args:
        body: the JSON object.
        defaults: values for omitted fields, by the names of the predict body.

    Raises:
        InvalidRequest: a field is missing, unknown, unsupported, of the wrong type or out of range.
    """
    sent = {}
    for name, value in body.items():
        if name in UNUSED or (value is None and name in _KNOWN):
            continue
        if name in REFUSED:
            refuse_unsupported(name, value, REFUSED)
        else:
            sent[name] = value
    values = own_defaults(defaults, MessagesFields, "messages")
    for name in ("max_tokens", "stream"):
        values.pop(name, None)
    try:
        return MessagesFields.model_validate({**values, **sent})
    except ValidationError as error:
        raise invalid_request(error, _KNOWN) from None


def check_keys(
    value: Mapping[str, Any], known: Collection[str], path: str, ignored: Collection[str] = ()
) -> None:
    """Refuse an unknown key of an object by its path.

    Raises:
        InvalidRequest: a key is neither known nor ignored.
    """
    for name in value:
        if name not in known and name not in ignored:
            raise InvalidRequest(
                f"{path}.{shown_name(name)} is not a field; the fields of {path} are "
                f"{', '.join(known)}.",
                param=field_of(path),
            )


def wrong(path: str, value: Any, wanted: str) -> InvalidRequest:
    """Build the error of a value within a field."""
    return InvalidRequest(f"{path} is {shown(value)}; it must be {wanted}.", param=field_of(path))


def field_of(path: str) -> str:
    """Return the field that holds a path such as ``messages[0].content``."""
    return path.partition("[")[0].partition(".")[0]
