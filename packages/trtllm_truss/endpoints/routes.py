"""Truss's routes, and which protocol a request on each of them speaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtllm_truss.endpoints.endpoint import Endpoint
from trtllm_truss.protocols.base import Dialect
from trtllm_truss.protocols.lmi.adapter import LmiDialect
from trtllm_truss.protocols.lmi.body import is_lmi, is_tgi_client
from trtllm_truss.protocols.openai.adapter import OpenAIDialect
from trtllm_truss.protocols.openai.chat import parse_chat
from trtllm_truss.protocols.openai.completions import parse_completion
from trtllm_truss.protocols.openai.sampling import usable_defaults
from trtllm_truss.protocols.predict.adapter import PredictDialect
from trtllm_truss.serving.service import Service


class Routes:
    """The endpoints of one service.

    Attributes:
        predict: `/v1/models/model:predict` and `/invocations`: our own body, or LMI's.
        chat_completions: `/v1/chat/completions`.
        completions: `/v1/completions`.
    """

    def __init__(self, service: Service, defaults: Mapping[str, Any]) -> None:
        """Binds all endpoints to what answers.

        Args:
            service: the running engine.
            defaults: `model_metadata.generation`, checked. In OpenAI's APIs it goes before what
                the model's authors recommend.
        """
        predict = PredictDialect(defaults)
        lmi, tgi = LmiDialect(defaults), LmiDialect(defaults, tgi=True)

        def choose(headers: Mapping[str, str], body: Mapping[str, Any]) -> Dialect:
            from_tgi = is_tgi_client(headers.get("user-agent", ""))
            if is_lmi(body) or (from_tgi and not body):
                return tgi if from_tgi else lmi
            return predict

        recommended = {**usable_defaults(service.sampling), **defaults}
        chat = OpenAIDialect(parse_chat, recommended, "chat_completions")
        completion = OpenAIDialect(parse_completion, recommended, "completions")
        self.predict = Endpoint(service, choose)
        self.chat_completions = Endpoint(service, lambda headers, body: chat)
        self.completions = Endpoint(service, lambda headers, body: completion)
