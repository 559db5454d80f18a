"""The predict protocol as an endpoint uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.errors import TrussError
from trtllm_truss.protocols.base import EVENTS, Defaults, StreamedCall, WholeCall
from trtllm_truss.protocols.predict import frames
from trtllm_truss.protocols.predict.body import parse_predict, response_form


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
