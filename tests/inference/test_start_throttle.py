"""Few requests begin in each round of the event loop."""

from __future__ import annotations

import asyncio

from trtllm_truss.inference.generation import STARTS_AT_ONCE, StartThrottle


async def begin(turns: StartThrottle, number: int, begun: list[int]) -> None:
    await turns.turn()
    begun.append(number)


async def test_in_the_order_of_coming_and_few_a_round() -> None:
    turns, begun = StartThrottle(), []
    tasks = [
        asyncio.create_task(begin(turns, number, begun)) for number in range(10 * STARTS_AT_ONCE)
    ]
    rounds = []
    while not all(task.done() for task in tasks):
        before = len(begun)
        await asyncio.sleep(0)
        rounds.append(len(begun) - before)
    assert begun == list(range(10 * STARTS_AT_ONCE))
    assert max(rounds) == STARTS_AT_ONCE


async def test_few_do_not_wait() -> None:
    turns = StartThrottle()
    for _ in range(3):
        for _ in range(STARTS_AT_ONCE):
            try:
                turns.turn().send(None)
            except StopIteration:
                continue
            raise AssertionError("it waits")
        await asyncio.sleep(0)


async def test_who_leaves_holds_nobody_up() -> None:
    turns, begun = StartThrottle(), []
    tasks = [
        asyncio.create_task(begin(turns, number, begun)) for number in range(4 * STARTS_AT_ONCE)
    ]
    await asyncio.sleep(0)
    leaving = range(STARTS_AT_ONCE, 3 * STARTS_AT_ONCE)
    for number in leaving:
        tasks[number].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert begun == [number for number in range(4 * STARTS_AT_ONCE) if number not in leaving]
    await asyncio.sleep(0)
    await begin(turns, -1, begun)
    assert begun[-1] == -1
