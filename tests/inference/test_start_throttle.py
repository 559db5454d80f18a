"""The event loop starts few requests per round."""

from __future__ import annotations

import asyncio

from trtllm_truss.inference.generation import STARTS_PER_ROUND, StartThrottle


async def begin(turns: StartThrottle, number: int, begun: list[int]) -> None:
    await turns.turn()
    begun.append(number)


async def test_turns_come_in_order_and_few_per_round() -> None:
    turns, begun = StartThrottle(), []
    tasks = [
        asyncio.create_task(begin(turns, number, begun)) for number in range(10 * STARTS_PER_ROUND)
    ]
    rounds = []
    while not all(task.done() for task in tasks):
        before = len(begun)
        await asyncio.sleep(0)
        rounds.append(len(begun) - before)
    assert begun == list(range(10 * STARTS_PER_ROUND))
    assert max(rounds) == STARTS_PER_ROUND


async def test_few_requests_start_at_once() -> None:
    turns = StartThrottle()
    for _ in range(3):
        for _ in range(STARTS_PER_ROUND):
            try:
                turns.turn().send(None)
            except StopIteration:
                continue
            raise AssertionError("it waits")
        await asyncio.sleep(0)


async def test_cancelled_waiters_do_not_block() -> None:
    turns, begun = StartThrottle(), []
    tasks = [
        asyncio.create_task(begin(turns, number, begun)) for number in range(4 * STARTS_PER_ROUND)
    ]
    await asyncio.sleep(0)
    leaving = range(STARTS_PER_ROUND, 3 * STARTS_PER_ROUND)
    for number in leaving:
        tasks[number].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert begun == [number for number in range(4 * STARTS_PER_ROUND) if number not in leaving]
    await asyncio.sleep(0)
    await begin(turns, -1, begun)
    assert begun[-1] == -1
