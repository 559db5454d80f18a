"""The endpoints of Truss's routes, and the selection of their protocols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from trtllm_truss.endpoints.endpoint import REQUEST_ID_HEADER, Endpoint
from trtllm_truss.protocols.base import ApiAdapter, Defaults
from trtllm_truss.protocols.lmi.adapter import LmiAdapter
from trtllm_truss.protocols.lmi.body import is_lmi, is_tgi_client
from trtllm_truss.protocols.messages.adapter import MessagesAdapter
from trtllm_truss.protocols.openai.adapter import OpenAIAdapter, usable_defaults
from trtllm_truss.protocols.openai.chat import parse_chat
from trtllm_truss.protocols.openai.completions import parse_completion
from trtllm_truss.protocols.predict.adapter import PredictAdapter
from trtllm_truss.protocols.responses.adapter import ResponsesAdapter
from trtllm_truss.protocols.tool_use import ModelFormats
from trtllm_truss.serving.service import Service

ANTHROPIC_ID_HEADERS = (REQUEST_ID_HEADER, "Request-Id")
"""Anthropic's client reads the second one."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The endpoints of one service.

    Attributes:
        predict: `/v1/models/model:predict` and `/invocations`: predict, LMI or TGI bodies.
        chat_completions: `/v1/chat/completions`.
        completions: `/v1/completions`.
        responses: `/v1/responses`.
        messages: `/v1/messages`.
    """

    predict: Endpoint
    chat_completions: Endpoint
    completions: Endpoint
    responses: Endpoint
    messages: Endpoint


def build_routes(service: Service, defaults: Defaults) -> Routes:
    """Build the endpoints of a running service.

    Args:
        service: the running service.
        defaults: `model_metadata.generation`, validated; overrides the model's
            `generation_config.json` in OpenAI's and Anthropic's APIs.
    """
    predict = PredictAdapter(defaults)
    lmi, tgi = LmiAdapter(defaults), LmiAdapter(defaults, tgi=True)

    def choose(headers: Mapping[str, str], body: Mapping[str, Any]) -> ApiAdapter:
        from_tgi = is_tgi_client(headers.get("user-agent", ""))
        if is_lmi(body) or (from_tgi and not body):
            return tgi if from_tgi else lmi
        return predict

    recommended = {**usable_defaults(service.sampling), **defaults}
    formats = ModelFormats.choose(service.limits, service.chat_template)
    chat = OpenAIAdapter(partial(parse_chat, formats=formats), recommended, "chat_completions")
    completion = OpenAIAdapter(parse_completion, recommended, "completions")
    return Routes(
        predict=Endpoint(service, predict, choose),
        chat_completions=Endpoint(service, chat),
        completions=Endpoint(service, completion),
        responses=Endpoint(service, ResponsesAdapter(recommended, formats)),
        messages=Endpoint(
            service, MessagesAdapter(recommended, formats), id_headers=ANTHROPIC_ID_HEADERS
        ),
    )
