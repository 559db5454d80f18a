"""What every protocol has in common when it answers."""

from __future__ import annotations

from typing import Any, Protocol

from trtllm_truss.errors import TrussError
from trtllm_truss.requests import Finish, Piece


class WholeWriter(Protocol):
    """Collects all answers to one call, and puts them into one JSON value."""

    def push(self, position: int, item: Piece | Finish) -> None:
        """Takes the next item in of an answer to the call's request at `position`."""

    def body(self) -> Any:
        """The value, once every answer has ended."""


class StreamWriter(Protocol):
    """Turns all answers to one call into bytes, as they come."""

    def push(self, position: int, item: Piece | Finish) -> bytes:
        """What the next item adds, possibly nothing."""

    def end(self) -> bytes:
        """What follows once every answer has ended."""

    def error(self, error: TrussError) -> bytes:
        """What ends a stream that broke off.

        Raises:
            TrussError: `error` itself, where only breaking off the response can say it.
        """
