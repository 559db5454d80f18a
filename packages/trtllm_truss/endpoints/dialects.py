"""The protocols that are spoken here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.endpoints.dialect import EVENTS, StreamedCall, WholeCall
from trtllm_truss.errors import TrussError
from trtllm_truss.protocols import frames
from trtllm_truss.protocols.lmi import errors as lmi_errors
from trtllm_truss.protocols.lmi.answers import LmiAnswer
from trtllm_truss.protocols.lmi.body import parse_lmi
from trtllm_truss.protocols.lmi.call import LmiForm
from trtllm_truss.protocols.lmi.streams import LmiStream
from trtllm_truss.protocols.openai import errors as openai_errors
from trtllm_truss.protocols.openai.answers import EventStream, WholeAnswer
from trtllm_truss.protocols.openai.call import OpenAICall
from trtllm_truss.protocols.predict import parse_predict, response_form

Defaults = Mapping[str, Any]
"""Values for fields that a body leaves out, by the names of the predict body."""


@dataclass(frozen=True, slots=True)
class PredictDialect:
    """Our own: plain text, server-sent events, or one object."""

    defaults: Defaults
    name: str = "predict"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> WholeCall | StreamedCall:
        """As `Dialect.read`."""
        request, stream = parse_predict(body, self.defaults)
        form = response_form(accept, stream)
        if form == "json":
            return WholeCall([request], frames.WholeText())
        if form == "events":
            return StreamedCall([request], frames.Events(), EVENTS)
        return StreamedCall([request], frames.PlainText(), "text/plain; charset=utf-8")

    def error_body(self, error: TrussError) -> Any:
        """`{"error": {"code", "message", "param"}}`."""
        return frames.error_body(error)


@dataclass(frozen=True, slots=True)
class LmiDialect:
    """LMI's, or with `tgi` that of Text Generation Inference."""

    defaults: Defaults
    tgi: bool = False
    name: str = "lmi"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> WholeCall | StreamedCall:
        """As `Dialect.read`."""
        call = parse_lmi(body, self.defaults, tgi=self.tgi)
        if call.form is LmiForm.JSON:
            return WholeCall(call.requests, LmiAnswer(call))
        return StreamedCall(call.requests, LmiStream(call), call.form.media_type)

    def error_body(self, error: TrussError) -> Any:
        """LMI's shape or TGI's."""
        return lmi_errors.error_body(error, tgi=self.tgi)


@dataclass(frozen=True, slots=True)
class OpenAIDialect:
    """One of OpenAI's APIs, by what parses its bodies."""

    parse: Callable[[Mapping[str, Any], Defaults], OpenAICall]
    defaults: Defaults
    name: str

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> WholeCall | StreamedCall:
        """As `Dialect.read`."""
        call = self.parse(body, self.defaults)
        created_s = int(time.time())
        if call.stream:
            return StreamedCall(call.requests, EventStream(call, call_id, created_s), EVENTS)
        return WholeCall(call.requests, WholeAnswer(call, call_id, created_s))

    def error_body(self, error: TrussError) -> Any:
        """OpenAI's shape."""
        return openai_errors.error_body(error)
