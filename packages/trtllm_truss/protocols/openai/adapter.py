"""OpenAI's APIs as an endpoint uses them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.errors import TrussError
from trtllm_truss.protocols.base import JSON_MEDIA_TYPE, SSE_MEDIA_TYPE, Call, Defaults
from trtllm_truss.protocols.openai import errors
from trtllm_truss.protocols.openai.answers import EventStream, WholeAnswer
from trtllm_truss.protocols.openai.call import OpenAICall


@dataclass(frozen=True, slots=True)
class OpenAIAdapter:
    """One of OpenAI's APIs, by what parses its bodies."""

    parse: Callable[[Mapping[str, Any], Defaults], OpenAICall]
    defaults: Defaults
    name: str

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        """As `ApiAdapter.read`."""
        call = self.parse(body, self.defaults)
        created_s = int(time.time())
        if call.stream:
            return Call(call.requests, EventStream(call, call_id, created_s), SSE_MEDIA_TYPE)
        return Call(call.requests, WholeAnswer(call, call_id, created_s), JSON_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> Any:
        """OpenAI's shape."""
        return errors.error_body(error)
