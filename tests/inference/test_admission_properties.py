"""Limits hold and no slot is lost, for any sequence of events."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from tests.support.virtual_time import virtually

from trtllm_truss.errors import EngineUnavailable, QueueFull
from trtllm_truss.inference.admission import Admission, Slot
from trtllm_truss.settings.model import Serving

MAX_REQUESTS, MAX_TOKENS, QUEUE_LIMIT, BUDGET_S = 3, 100, 6, 10

frequencies = {
    **{"arrive": 6, "arrive_with_others": 3, "look": 3, "cancel": 3, "release": 5, "wait": 1},
    "fail": 1,
}
events = st.tuples(
    st.sampled_from([name for name, count in frequencies.items() for _ in range(count)]),
    st.integers(1, 130),  # tokens, an index, or tenths of a second
)


class Play:
    """Events of one admission, and its invariants."""

    def __init__(self, call_share: float) -> None:
        limits = Serving(queue_limit=QUEUE_LIMIT, queue_timeout_s=BUDGET_S)
        self.now = asyncio.get_running_loop().time
        self.gate = Admission(
            MAX_REQUESTS, MAX_TOKENS, limits, call_share=call_share, clock=self.now
        )
        self.waits: dict[asyncio.Task[Slot], float] = {}
        self.of_calls: set[asyncio.Task[Slot]] = set()
        self.held: list[Slot] = []

    async def arrive(self, tokens: int) -> None:
        self.waits[asyncio.create_task(self.gate.admit(tokens))] = self.now()
        if tokens % 4:  # others may end before they run
            await asyncio.sleep(0)

    async def arrive_with_others(self, tokens: int) -> None:
        """Arrive as one of several requests of a call."""
        for _ in range(1 + tokens % 4):
            wait = asyncio.create_task(self.gate.admit(tokens, f"call {tokens % 3}"))
            self.waits[wait] = self.now()
            self.of_calls.add(wait)
        if tokens % 2:
            await asyncio.sleep(0)

    async def cancel(self, which: int) -> None:
        if self.waits:
            list(self.waits)[which % len(self.waits)].cancel()

    async def release(self, which: int) -> None:
        if self.held:
            ticket = self.held.pop(which % len(self.held))
            ticket.release()
            ticket.release()

    async def fail(self, _: int) -> None:
        self.gate.fail_waiting(EngineUnavailable("gone"))

    async def wait(self, tenths: int) -> None:
        await asyncio.sleep(tenths / 10)
        await self.look(0)

    async def look(self, _: int) -> None:
        for _ in range(3):  # slots pass from finished requests to waiting ones
            await asyncio.sleep(0)
        for wait in [wait for wait in self.waits if wait.done()]:
            del self.waits[wait]
            if wait.cancelled():
                continue
            error = wait.exception()
            assert error is None or isinstance(error, QueueFull | EngineUnavailable)
            if error is None:
                self.held.append(wait.result())
        assert self.gate.running == len(self.held)
        assert self.gate.reserved_tokens == sum(ticket.tokens for ticket in self.held)
        assert self.gate.waiting == len(self.waits)
        assert not self.waits or self.held, "a request waits for an idle engine"
        alone = {wait: begun for wait, begun in self.waits.items() if wait not in self.of_calls}
        assert all(self.now() - begun <= BUDGET_S for begun in alone.values())

    def limits_hold(self) -> bool:
        gate = self.gate
        return (
            0 <= gate.running <= MAX_REQUESTS
            and (gate.reserved_tokens <= MAX_TOKENS or gate.running == 1)
            and gate.waiting <= QUEUE_LIMIT
        )

    async def end(self) -> None:
        for _ in range(2 * QUEUE_LIMIT):
            await self.look(0)
            while self.held:
                await self.release(0)
        gate = self.gate
        assert not self.waits
        assert (gate.running, gate.reserved_tokens, gate.waiting) == (0, 0, 0)


@given(story=st.lists(events, min_size=20, max_size=80), call_share=st.sampled_from([0.3, 0.7, 1]))
@virtually
async def test_limits_hold_for_any_sequence_of_events(
    story: list[tuple[str, int]], call_share: float
) -> None:
    play = Play(call_share)
    for name, number in story:
        await getattr(play, name)(number)
        assert play.limits_hold()
    await play.end()
