"""The event loop starts few requests per round."""

from __future__ import annotations

import asyncio

from trtllm_truss.inference.start_throttle import STARTS_PER_ROUND, StartThrottle


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


async def test_a_call_with_many_answers_holds_up_no_other() -> None:
    turns, begun = StartThrottle(), []

    async def answer(call: str, number: int) -> None:
        await turns.turn(call)
        begun.append((call, number))

    many = [asyncio.create_task(answer("many", number)) for number in range(1000)]
    await asyncio.sleep(0)
    few = [asyncio.create_task(answer("few", number)) for number in range(3)]
    single = asyncio.create_task(answer("single", 0))
    await asyncio.gather(*many, *few, single)
    assert begun.index(("single", 0)) < 3 * STARTS_PER_ROUND
    assert begun.index(("few", 2)) < 4 * STARTS_PER_ROUND
    for call in ("many", "few"):
        numbers = [number for name, number in begun if name == call]
        assert numbers == sorted(numbers)
