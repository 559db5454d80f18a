"""Where the responses to one request go."""

from __future__ import annotations

from typing import Protocol

from trtllm_truss.backends.openvino_genai.answer import Outputs


class Reply(Protocol):
    """The caller's end of one request. Its methods never raise: a caller may be gone any time."""

    def send(self, outputs: Outputs, *, final: bool) -> None:
        """Send one data response; nothing may follow the final one."""

    def finish(self) -> None:
        """End with a response without data."""

    def fail(self, message: str, *, caller_at_fault: bool) -> None:
        """End with an error."""

    def is_cancelled(self) -> bool:
        """True once the caller has cancelled or left."""
