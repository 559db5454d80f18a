"""One call of the API, read: what is to be generated and how the answer is to look."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.protocols.openai.shapes import Shape
from trtllm_truss.requests import GenerationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAICall:
    """What a body asks for.

    Attributes:
        requests: one for each prompt, to be answered side by side.
        model: the name that the caller used; echoed.
        stream: whether the answer is sent as it is generated.
        include_usage: whether a stream ends with the usage.
        shape: the objects of the API that was called.
    """

    requests: tuple[GenerationRequest, ...]
    model: str
    stream: bool
    include_usage: bool
    shape: Shape

    @property
    def n(self) -> int:
        """Choices for each prompt."""
        return self.requests[0].n
