"""Requests begin few at a time."""

from __future__ import annotations

import asyncio
from collections import deque

AT_ONCE = 8


class Turns:
    """Lets few requests begin in each round of the event loop.

    To plan a request and send it to the engine takes as long as to send several chunks. When
    hundreds come at once and all begin in one round, every answer that runs waits for the whole of
    it. Eight at a time, chunks go out between them, and nobody waits longer in the end.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._begun = 0

    async def turn(self) -> None:
        """Returns when it is the caller's turn: at once if few have begun in this round."""
        loop = asyncio.get_running_loop()
        if self._begun == 0:
            loop.call_soon(self._next_round)
        if self._begun < AT_ONCE:
            self._begun += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_round(self) -> None:
        self._begun = 0
        while self._waiting and self._begun < AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():  # else the caller has left
                turn.set_result(None)
                self._begun += 1
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next_round)
