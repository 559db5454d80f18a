"""A parsed LMI call and the forms of its answer."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from trtllm_truss.requests import GenerationRequest


class LmiForm(str, enum.Enum):
    """Form of an answer; values are LMI's output formatters."""

    JSON = "json"
    JSON_LINES = "jsonlines"
    EVENTS = "sse"

    @property
    def media_type(self) -> str:
        return _MEDIA_TYPES[self]


_MEDIA_TYPES = {
    LmiForm.JSON: "application/json",
    LmiForm.JSON_LINES: "application/jsonlines",
    LmiForm.EVENTS: "text/event-stream",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LmiCall:
    """A parsed LMI body.

    Attributes:
        requests: one per input, each with a prompt.
        listed: the inputs are a list, so the answer is a list.
        form: form of the answer; JSON for a list.
        tgi: use the shapes of Text Generation Inference.
        details: include `details`.
        return_full_text: start `generated_text` with the input.
    """

    requests: tuple[GenerationRequest, ...]
    listed: bool
    form: LmiForm
    tgi: bool
    details: bool
    return_full_text: bool
