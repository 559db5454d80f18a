"""One LMI call, read: what is to be generated and how the answer is to look."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from trtllm_truss.requests import GenerationRequest


class LmiForm(str, enum.Enum):
    """How an answer is sent; the values are LMI's names of its output formatters."""

    JSON = "json"
    JSON_LINES = "jsonlines"
    EVENTS = "sse"

    @property
    def media_type(self) -> str:
        """Its content type."""
        return _MEDIA_TYPES[self]


_MEDIA_TYPES = {
    LmiForm.JSON: "application/json",
    LmiForm.JSON_LINES: "application/jsonlines",
    LmiForm.EVENTS: "text/event-stream",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LmiCall:
    """What a body asks for.

    Attributes:
        requests: one for each input, each with a prompt.
        listed: whether the inputs were a list, so that the answer is one.
        form: how the answer is sent; a list of inputs is answered as JSON only.
        tgi: whether the shapes are those of Text Generation Inference.
        details: whether to tell more than the text.
        return_full_text: whether `generated_text` begins with the input.
    """

    requests: tuple[GenerationRequest, ...]
    listed: bool
    form: LmiForm
    tgi: bool
    details: bool
    return_full_text: bool
