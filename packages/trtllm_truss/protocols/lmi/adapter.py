"""The `ApiAdapter` of LMI's protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.errors import TrussError
from trtllm_truss.protocols.base import Call, Defaults
from trtllm_truss.protocols.lmi.answers import LmiAnswer, LmiStream, error_body
from trtllm_truss.protocols.lmi.body import parse_lmi
from trtllm_truss.protocols.lmi.call import LmiForm


@dataclass(frozen=True, slots=True)
class LmiAdapter:
    """LMI's protocol, or with `tgi` that of Text Generation Inference."""

    defaults: Defaults
    tgi: bool = False
    name: str = "lmi"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        call = parse_lmi(body, self.defaults, tgi=self.tgi)
        writer = LmiAnswer(call) if call.form is LmiForm.JSON else LmiStream(call)
        return Call(call.requests, writer, call.form.media_type)

    def error_body(self, error: TrussError) -> Any:
        return error_body(error, tgi=self.tgi)
