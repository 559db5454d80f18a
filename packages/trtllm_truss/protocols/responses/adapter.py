"""Responses as an endpoint uses them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.errors import TrussError
from trtllm_truss.protocols.base import JSON_MEDIA_TYPE, SSE_MEDIA_TYPE, Call, Defaults
from trtllm_truss.protocols.openai.answers import error_body
from trtllm_truss.protocols.responses.answers import Answer, ResponseStream, WholeResponse
from trtllm_truss.protocols.responses.body import parse_response
from trtllm_truss.protocols.tool_use import ModelFormats


@dataclass(frozen=True, slots=True)
class ResponsesAdapter:
    """The protocol of `/v1/responses`.

    Attributes:
        defaults: values for omitted fields.
        formats: the model's formats of tool calls and reasoning.
        name: its name in metrics and log.
    """

    defaults: Defaults
    formats: ModelFormats
    name: str = "responses"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        call = parse_response(body, self.defaults, self.formats)
        answer = Answer(call, call_id, int(time.time()))
        if call.stream:
            return Call([call.request], ResponseStream(answer), SSE_MEDIA_TYPE)
        return Call([call.request], WholeResponse(answer), JSON_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> Any:
        return error_body(error)
