"""Anthropic's Messages API as an endpoint uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.errors import TrussError
from trtllm_truss.protocols.base import JSON_MEDIA_TYPE, SSE_MEDIA_TYPE, Call, Defaults
from trtllm_truss.protocols.messages.answers import MessageEvents, WholeMessage, error_body
from trtllm_truss.protocols.messages.body import parse_messages
from trtllm_truss.protocols.tool_use import ModelFormats


@dataclass(frozen=True, slots=True)
class MessagesAdapter:
    """The Messages API.

    Attributes:
        defaults: values for omitted fields.
        formats: the model's formats of tool calls and reasoning.
    """

    defaults: Defaults
    formats: ModelFormats

    @property
    def name(self) -> str:
        return "messages"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        call = parse_messages(body, self.defaults, self.formats)
        if call.stream:
            return Call([call.request], MessageEvents(call, call_id), SSE_MEDIA_TYPE)
        return Call([call.request], WholeMessage(call, call_id), JSON_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> Any:
        return error_body(error)
