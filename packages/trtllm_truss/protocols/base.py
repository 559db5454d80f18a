"""The interface of a protocol: read bodies, write answers and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trtllm_truss.errors import TrussError
from trtllm_truss.protocols.writers import StreamWriter, WholeWriter
from trtllm_truss.requests import GenerationRequest

EVENTS = "text/event-stream"

Defaults = Mapping[str, Any]
"""Values for fields that a body leaves out, by the names of the predict body."""


@dataclass(frozen=True, slots=True)
class WholeCall:
    """One body, read; its answers are to be one JSON value.

    Attributes:
        requests: what is to be generated, side by side.
        writer: puts the answers together.
    """

    requests: Sequence[GenerationRequest]
    writer: WholeWriter


@dataclass(frozen=True, slots=True)
class StreamedCall:
    """One body, read; its answers are to be sent as they come.

    Attributes:
        requests: what is to be generated, side by side.
        writer: turns the answers into bytes.
        media_type: of these.
    """

    requests: Sequence[GenerationRequest]
    writer: StreamWriter
    media_type: str


class Dialect(Protocol):
    """One protocol, as one client speaks it."""

    @property
    def name(self) -> str:
        """What metrics and log call it."""

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> WholeCall | StreamedCall:
        """What a body asks for.

        Args:
            body: the JSON object that the caller sent.
            accept: the header of that name; empty if there is none.
            call_id: unique, for answers that have an id.

        Raises:
            InvalidRequest: it cannot be understood, or asks for what is not served.
        """

    def error_body(self, error: TrussError) -> Any:
        """The JSON value of an error response."""
