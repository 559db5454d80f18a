"""OpenAI's APIs as an endpoint uses them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.errors import InvalidRequest, NotServed, TrussError
from trtllm_truss.protocols.base import JSON_MEDIA_TYPE, SSE_MEDIA_TYPE, Call, Defaults
from trtllm_truss.protocols.openai.answers import EventStream, WholeAnswer, error_body
from trtllm_truss.protocols.openai.completions import parse_completion
from trtllm_truss.protocols.openai.parsed_messages import MessageStream, WholeMessage
from trtllm_truss.protocols.openai.shapes import OpenAICall

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenAIAdapter:
    """One of OpenAI's APIs.

    Attributes:
        parse: the parser of its bodies.
        defaults: values for omitted fields.
        name: its name in metrics and log.
    """

    parse: Callable[[Mapping[str, Any], Defaults], OpenAICall]
    defaults: Defaults
    name: str

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        call = self.parse(body, self.defaults)
        created_s = int(time.time())
        if call.stream:
            events = EventStream if call.new_parser is None else MessageStream
            return Call(call.requests, events(call, call_id, created_s), SSE_MEDIA_TYPE)
        whole = WholeAnswer if call.new_parser is None else WholeMessage
        return Call(call.requests, whole(call, call_id, created_s), JSON_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> Any:
        return error_body(error)


@dataclass(frozen=True, slots=True)
class EmbeddingsAdapter:
    """The API that an engine for text has no answers to."""

    name: str = "embeddings"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        raise NotServed(
            "embeddings are not served: the engine generates text. Use a deployment of an "
            "embedding model."
        )

    def error_body(self, error: TrussError) -> Any:
        return error_body(error)


def usable_defaults(recommended: Mapping[str, Any]) -> dict[str, Any]:
    """Return the authors' recommendations that a body accepts; log the others.

    With another value, such as a `top_k` of 2000, each request that omits the field would be
    refused.

    Args:
        recommended: the values of `generation_config.json`, by the names of the predict body.
    """
    usable = {}
    for name, value in recommended.items():
        try:
            parse_completion({"prompt": "Hello", name: value}, {})
        except InvalidRequest as refused:
            logger.warning("generation_config.json: %s is not used: %s", name, refused.message)
        else:
            usable[name] = value
    return usable
