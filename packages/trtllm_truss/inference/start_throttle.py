"""Limit request starts per round of the event loop, alternating between calls."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from trtllm_truss.inference.fair_queue import FairQueue

STARTS_PER_ROUND = 8


class StartThrottle:
    """Limits the starts in one round of the event loop, over all calls.

    Preparing and sending a request takes as long as sending several chunks. Without the limit, a
    burst of hundreds delays every running answer until all have started. With the limit, running
    answers send their chunks between starts, and the last request of the burst starts no later.
    Calls take turns, so a call with two thousand choices does not hold up one with a single choice.
    """

    def __init__(self) -> None:
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._started = 0

    async def turn(self, call: Hashable = None) -> None:
        """Wait for the caller's turn; return at once while the round is below its limit.

        Args:
            call: identifies a call with several turns; None for a call with one.
        """
        loop = asyncio.get_running_loop()
        if self._started == 0:
            loop.call_soon(self._next_round)
        if self._started < STARTS_PER_ROUND:
            self._started += 1
            return
        turn = loop.create_future()
        self._waiting.add(turn if call is None else call, turn)
        await turn

    def _next_round(self) -> None:
        self._started = 0
        while self._waiting and self._started < STARTS_PER_ROUND:
            turn = self._waiting.pop()
            if not turn.done():  # otherwise the caller has left
                turn.set_result(None)
                self._started += 1
        if self._started:
            asyncio.get_running_loop().call_soon(self._next_round)
