"""Admission in virtual time: order, rejections and their messages."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.virtual_time import virtually

from trtllm_truss.errors import EngineUnavailable, QueueFull
from trtllm_truss.inference.admission import Admission, Slot
from trtllm_truss.settings.model import Serving


def admission(
    max_requests: int = 1, max_tokens: int | None = None, **limits: float | int
) -> Admission:
    clock = asyncio.get_running_loop().time
    return Admission(max_requests, max_tokens, Serving(**limits), clock=clock)  # type: ignore[arg-type]


async def queued(gate: Admission, *sizes: int) -> list[asyncio.Task[Slot]]:
    """Queue one request per number of tokens, in this order."""
    tasks = []
    for tokens in sizes:
        tasks.append(asyncio.create_task(gate.admit(tokens)))
        await asyncio.sleep(0)
    return tasks


async def served(gate: Admission, tokens: int, seconds: float) -> None:
    ticket = await gate.admit(tokens)
    await asyncio.sleep(seconds)
    ticket.release()


async def order_of(gate: Admission, tasks: list[asyncio.Task[Slot]]) -> list[int]:
    """Return the indices of waiting requests in order of admission, one by one."""
    order: list[int] = []
    while len(order) < len(tasks):
        await asyncio.sleep(0)
        (admitted,) = [i for i, task in enumerate(tasks) if task.done() and i not in order]
        order.append(admitted)
        tasks[admitted].result().release()
    return order


@virtually
async def test_a_free_engine_admits_at_once() -> None:
    gate = admission(max_requests=2, max_tokens=100)
    tickets = [await gate.admit(50), await gate.admit(50)]
    assert (gate.running, gate.reserved_tokens, gate.waiting) == (2, 100, 0)
    for ticket in tickets:
        ticket.release()
        ticket.release()
    assert (gate.running, gate.reserved_tokens) == (0, 0)


@virtually
async def test_equal_requests_are_admitted_in_order_of_arrival() -> None:
    gate = admission()
    running = await gate.admit(1)
    tasks = await queued(gate, 100, 100, 100)
    running.release()
    assert await order_of(gate, tasks) == [0, 1, 2]


@virtually
async def test_a_short_request_overtakes_a_long_one() -> None:
    gate = admission()
    running = await gate.admit(1)
    tasks = await queued(gate, 8000)
    await asyncio.sleep(3.9)
    tasks += await queued(gate, 100)
    running.release()
    assert await order_of(gate, tasks) == [1, 0]


@virtually
async def test_no_request_starves() -> None:
    gate = admission()
    running = await gate.admit(1)
    tasks = await queued(gate, 8000)
    await asyncio.sleep(4)
    tasks += await queued(gate, 1)
    running.release()
    assert await order_of(gate, tasks) == [0, 1]


@virtually
async def test_the_longest_request_is_admitted_within_the_budget() -> None:
    gate = admission(queue_timeout_s=10)
    running = await gate.admit(1)
    tasks = await queued(gate, 1_000_000)
    await asyncio.sleep(5)
    tasks += await queued(gate, 1)
    running.release()
    assert await order_of(gate, tasks) == [0, 1]


@virtually
async def test_tokens_are_reserved_for_the_head() -> None:
    gate = admission(max_requests=9, max_tokens=100)
    first, second = await gate.admit(50), await gate.admit(50)
    large, small = await queued(gate, 80, 81)
    first.release()
    await asyncio.sleep(0)
    assert not large.done()
    second.release()
    await asyncio.sleep(0)
    assert large.done()
    assert not small.done()
    assert gate.reserved_tokens == 80


@virtually
async def test_a_request_that_fits_passes_a_longer_head_that_does_not() -> None:
    gate = admission(max_requests=9, max_tokens=10_000)
    await gate.admit(5000)
    (large,) = await queued(gate, 8000)
    assert await gate.admit(100)
    assert not large.done()


@virtually
async def test_a_request_larger_than_the_cache_runs_alone() -> None:
    gate = admission(max_requests=9, max_tokens=100)
    small = await gate.admit(1)
    (huge,) = await queued(gate, 500)
    assert not huge.done()
    small.release()
    await asyncio.sleep(0)
    (next_small,) = await queued(gate, 1)
    assert not next_small.done()
    huge.result().release()
    await asyncio.sleep(0)
    assert next_small.done()


@virtually
async def test_the_queue_is_bounded() -> None:
    gate = admission(queue_limit=2)
    await gate.admit(1)
    await queued(gate, 1, 1)
    with pytest.raises(QueueFull, match=r"^2 requests .*serving\.queue_limit.* in 1 s\.$") as full:
        await gate.admit(1)
    assert full.value.retry_after_s == 1
    assert gate.waiting == 2


@virtually
async def test_no_wait_is_predicted_before_a_request_ends() -> None:
    gate = admission(queue_limit=500)
    await gate.admit(1)
    await queued(gate, *[1] * 500)
    assert gate.waiting == 500


@virtually
async def test_a_predicted_wait_beyond_the_budget_is_rejected_at_once() -> None:
    gate = admission(max_requests=2, queue_timeout_s=10)
    await asyncio.gather(served(gate, 1, 4), served(gate, 1, 4))
    await gate.admit(1)
    await gate.admit(1)
    await queued(gate, 1, 1, 1)  # 2, 4 and 6 s
    begun = asyncio.get_running_loop().time()
    with pytest.raises(QueueFull, match=r"about 8 s, too long for serving\.queue_timeout_s of 10"):
        await gate.admit(1)
    assert asyncio.get_running_loop().time() == begun


@virtually
async def test_retry_after_is_the_time_until_the_wait_fits_the_budget() -> None:
    gate = admission(queue_timeout_s=10)
    await served(gate, 1, 30)
    await gate.admit(1)
    with pytest.raises(QueueFull) as full:
        await gate.admit(1)
    assert full.value.retry_after_s == 23  # 30 s of wait, minus an acceptable 8 s, plus a token


@virtually
async def test_the_predicted_wait_includes_tokens() -> None:
    gate = admission(max_requests=100, max_tokens=1000, queue_timeout_s=10)
    await served(gate, 500, 7)
    await gate.admit(500)
    await gate.admit(500)
    (waiting,) = await queued(gate, 500)  # half of the reserved tokens must be released: 3.5 s
    with pytest.raises(QueueFull, match="about 11 s"):
        await gate.admit(1000)
    assert not waiting.done()


@virtually
async def test_the_predicted_wait_follows_a_faster_engine() -> None:
    gate = admission(queue_timeout_s=10)
    await served(gate, 1, 100)
    for _ in range(300):
        await served(gate, 1, 0.01)
    running = await gate.admit(1)
    (waiting,) = await queued(gate, 1)
    running.release()
    assert await waiting


@virtually
async def test_a_wait_beyond_the_budget_is_rejected() -> None:
    gate = admission(queue_timeout_s=10)
    await gate.admit(1)
    begun = asyncio.get_running_loop().time()
    with pytest.raises(QueueFull, match=r"has waited 10 s .*serving\.queue_timeout_s"):
        await gate.admit(1)
    assert asyncio.get_running_loop().time() == begun + 10
    assert gate.waiting == 0


@virtually
async def test_a_cancelled_head_unblocks_the_queue() -> None:
    gate = admission(max_requests=9, max_tokens=100, queue_timeout_s=10)
    await gate.admit(50)
    (large,) = await queued(gate, 90)
    await asyncio.sleep(5)
    (small,) = await queued(gate, 50)
    assert not small.done()
    await asyncio.sleep(5.1)
    assert isinstance(large.exception(), QueueFull)
    assert small.done()
    large_again, small_again = await queued(gate, 80, 81)
    large_again.cancel()
    await asyncio.sleep(0)
    small.result().release()
    assert not small_again.done()


@virtually
async def test_a_slot_granted_to_a_cancelled_waiter_is_released() -> None:
    gate = admission()
    running = await gate.admit(1)
    leaving, staying = await queued(gate, 1, 1)
    running.release()  # grants the slot to `leaving`, which does not run yet
    leaving.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert leaving.cancelled()
    assert staying.result()
    assert gate.running == 1


@virtually
async def test_fail_waiting_fails_every_waiter() -> None:
    gate = admission()
    running = await gate.admit(1)
    waits = await queued(gate, 1, 2, 3)
    gate.fail_waiting(EngineUnavailable("the engine is restarting.", retry_after_s=5))
    errors = await asyncio.gather(*waits, return_exceptions=True)
    assert {str(error) for error in errors} == {"the engine is restarting."}
    assert {getattr(error, "retry_after_s", None) for error in errors} == {5}
    assert len({id(error) for error in errors}) == 3
    assert gate.waiting == 0
    running.release()
    assert await gate.admit(1)


@virtually
async def test_ten_minutes_of_double_load() -> None:
    """Keep the engine busy and the waits within the budget, and reject at once."""
    gate = admission(max_requests=9, queue_timeout_s=10)
    loop = asyncio.get_running_loop()
    waits: list[float] = []
    refusals: list[float] = []

    async def request(number: int) -> None:
        begun = loop.time()
        try:
            await served(gate, 100 + number % 7, 3 + number % 5)
        except QueueFull:
            refusals.append(loop.time() - begun)
        else:
            waits.append(loop.time() - begun - 3 - number % 5)

    requests = []
    for number in range(2160):  # 3.6 a second, 5 s each
        requests.append(asyncio.create_task(request(number)))
        await asyncio.sleep(1 / 3.6)
    await asyncio.gather(*requests)
    assert len(waits) > 0.95 * 600 * 9 / 5
    assert max(waits) <= 10
    assert sum(refusal > 0 for refusal in refusals) <= 0.01 * len(refusals)


async def call_of(gate: Admission, name: str, count: int) -> list[asyncio.Task[Slot]]:
    """Queue requests of one call."""
    tasks = [asyncio.create_task(gate.admit(1, name)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


@virtually
async def test_a_call_of_many_requests_is_ahead_of_others_by_one() -> None:
    gate = admission(max_requests=1, queue_limit=1000)
    running = await gate.admit(1)
    many = await call_of(gate, "many", 256)
    few = await call_of(gate, "few", 3)
    (single,) = await queued(gate, 1)
    assert gate.waiting == 260
    order = []
    tasks = [*many, *few, single]
    while gate.waiting:
        running.release()
        await asyncio.sleep(0)
        (came,) = [task for task in tasks if task.done()]
        tasks.remove(came)
        running = came.result()
        order.append("m" if came in many else "f" if came in few else "s")
    assert "".join(order).rstrip("m") == "mfsmfmf"
    assert [task for task in many if not task.done()] == []
    running.release()
    assert (gate.running, gate.waiting, gate.reserved_tokens) == (0, 0, 0)


@virtually
async def test_the_budget_of_a_request_begins_in_the_queue() -> None:
    """A call of many prompts takes as long as it takes, while its requests get their slots."""
    gate = admission(max_requests=1, queue_timeout_s=10)
    running = await gate.admit(1)
    tasks = await call_of(gate, "call", 5)
    for task in tasks:
        await asyncio.sleep(3)
        running.release()
        running = await task
    others = await call_of(gate, "other", 2)
    await asyncio.sleep(10.1)
    assert isinstance(others[0].exception(), QueueFull)
    assert not others[1].done()
    await asyncio.sleep(10)
    assert isinstance(others[1].exception(), QueueFull)
    running.release()
    assert (gate.running, gate.waiting) == (0, 0)


@virtually
async def test_requests_of_a_call_that_leave_are_forgotten() -> None:
    gate = admission(max_requests=1)
    running = await gate.admit(1)
    tasks = await call_of(gate, "call", 5)
    (other,) = await queued(gate, 1)
    for task in (tasks[2], tasks[0]):
        task.cancel()
        await asyncio.sleep(0)
    assert gate.waiting == 4
    gate.fail_waiting(EngineUnavailable("gone"))
    results = await asyncio.gather(*tasks, other, return_exceptions=True)
    assert sum(isinstance(each, EngineUnavailable) for each in results) == 4
    assert gate.waiting == 0
    (again,) = await call_of(gate, "call", 1)
    running.release()
    (await again).release()
    assert (gate.running, gate.waiting) == (0, 0)


@virtually
async def test_the_queue_limit_counts_all_requests_of_a_call() -> None:
    gate = admission(max_requests=1, queue_limit=4)
    running = await gate.admit(1)
    tasks = await call_of(gate, "call", 6)
    await asyncio.sleep(0)
    assert gate.waiting == 4
    refused = [task for task in tasks if task.done()]
    assert len(refused) == 2
    assert all(isinstance(task.exception(), QueueFull) for task in refused)
    for task in tasks:
        task.cancel()
    running.release()


@virtually
async def test_calls_with_many_requests_have_a_share_while_others_run() -> None:
    """Their requests wait, and a single request needs no free place in the queue."""
    clock = asyncio.get_running_loop().time
    gate = Admission(8, None, Serving(queue_limit=30), call_share=1 / 4, clock=clock)
    neighbour = await gate.admit(1)
    tasks = [*await call_of(gate, "one", 10), *await call_of(gate, "two", 22)]
    assert (gate.running, gate.waiting) == (3, 30)
    others = [await gate.admit(1) for _ in range(5)]
    assert gate.running == 8
    for slot in (neighbour, *others):
        slot.release()
    await asyncio.sleep(0)
    assert gate.running == 2
    done = [task for task in tasks if task.done()]
    done[0].result().release()
    await asyncio.sleep(0)
    assert gate.running == 2  # the neighbour may come again
    await asyncio.sleep(2)
    done[1].result().release()
    await asyncio.sleep(0)
    assert gate.running == 8  # they are alone
    for task in tasks:
        (await task).release()
    assert (gate.running, gate.waiting) == (0, 0)
