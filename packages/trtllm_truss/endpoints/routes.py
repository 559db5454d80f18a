"""The endpoints of Truss's routes, and the selection of their protocols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.requests import Request

from trtllm_truss.endpoints.endpoint import REQUEST_ID_HEADER, Endpoint
from trtllm_truss.endpoints.turns import Turns
from trtllm_truss.protocols.base import ApiAdapter, Defaults
from trtllm_truss.protocols.lmi import LmiAdapter, is_lmi, is_tgi_client
from trtllm_truss.protocols.messages.adapter import MessagesAdapter
from trtllm_truss.protocols.openai.adapter import (
    EmbeddingsAdapter,
    OpenAIAdapter,
    usable_defaults,
)
from trtllm_truss.protocols.openai.body import parse_chat, parse_completion
from trtllm_truss.protocols.predict import PredictAdapter
from trtllm_truss.protocols.responses.adapter import ResponsesAdapter
from trtllm_truss.protocols.tool_use import ModelFormats
from trtllm_truss.serving.service import Service

ANTHROPIC_ID_HEADERS = (REQUEST_ID_HEADER, "Request-Id")
"""Anthropic's client reads the second one."""

INVOCATIONS = "/invocations"
"""SageMaker's route. Truss hands it to the same method as `:predict`."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The endpoints of one service.

    Attributes:
        predict: `/v1/models/model:predict` for bodies of predict, LMI or TGI, and `/invocations`
            for bodies of LMI, TGI or OpenAI.
        chat_completions: `/v1/chat/completions`.
        completions: `/v1/completions`.
        responses: `/v1/responses`.
        messages: `/v1/messages`.
        embeddings: `/v1/embeddings`; refuses all bodies.
    """

    predict: Endpoint
    chat_completions: Endpoint
    completions: Endpoint
    responses: Endpoint
    messages: Endpoint
    embeddings: Endpoint


def build_routes(service: Service, defaults: Defaults) -> Routes:
    """Build the endpoints of a running service.

    Args:
        service: the running service.
        defaults: `model_metadata.generation`, validated; overrides the model's
            `generation_config.json` in OpenAI's and Anthropic's APIs.
    """
    formats = ModelFormats.choose(service.limits, service.chat_template)
    predict = PredictAdapter(defaults, formats)
    lmi, tgi = LmiAdapter(defaults), LmiAdapter(defaults, tgi=True)
    recommended = {**usable_defaults(service.sampling), **defaults}
    chat = OpenAIAdapter(partial(parse_chat, formats=formats), recommended, "chat_completions")
    completion = OpenAIAdapter(parse_completion, recommended, "completions")
    invoked = {
        "messages": replace(chat, parse=partial(parse_chat, formats=formats, top_is_chosen=True)),
        "prompt": replace(completion, parse=partial(parse_completion, top_is_chosen=True)),
    }

    def choose(request: Request, body: Mapping[str, Any]) -> ApiAdapter:
        invokes = request.scope["path"] == INVOCATIONS
        if invokes:
            for field, adapter in invoked.items():
                if field in body:
                    return adapter
        if body and not (invokes or is_lmi(body)):
            return predict
        if is_tgi_client(request.headers.get("user-agent", "")):
            return tgi
        return lmi if invokes or body else predict

    endpoint = partial(Endpoint, service, Turns())
    return Routes(
        predict=endpoint(predict, choose),
        chat_completions=endpoint(chat),
        completions=endpoint(completion),
        responses=endpoint(ResponsesAdapter(recommended, formats)),
        messages=endpoint(MessagesAdapter(recommended, formats), id_headers=ANTHROPIC_ID_HEADERS),
        embeddings=endpoint(EmbeddingsAdapter()),
    )
