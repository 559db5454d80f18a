"""The order, the limits and the end of encodings in threads."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count

import pytest
from tests.fakes.engine import ENGINE
from tests.support.smollm2 import smollm2_tokenizer
from tests.support.waiting import until

from trtllm_truss.errors import InvalidRequest, QueueFull
from trtllm_truss.inference import encoding_queue as module
from trtllm_truss.inference.encoding_queue import Abandoned, Checkpoint, EncodingQueue
from trtllm_truss.inference.tokenization import encode_prompt
from trtllm_truss.requests import GenerationRequest

SHORT, LONG = 3000, module.SHORT_CHARACTERS + 1


@asynccontextmanager
async def busy(queue: EncodingQueue, *sizes: int) -> AsyncIterator[None]:
    """Keep a thread busy for each size."""
    release, started = threading.Event(), threading.Semaphore(0)

    def block(checkpoint: Checkpoint) -> None:
        started.release()
        release.wait()

    works = []
    for size in sizes:
        works.append(asyncio.create_task(queue.run(block, size)))
        await asyncio.to_thread(started.acquire)
    try:
        yield
    finally:
        release.set()
        await asyncio.gather(*works)


async def test_a_short_work_does_not_wait_for_long_ones() -> None:
    queue = EncodingQueue()
    async with busy(queue, LONG, LONG):
        assert await queue.run(lambda checkpoint: "done", SHORT) == "done"


async def test_short_works_go_first_and_long_ones_are_not_forgotten() -> None:
    queue, order = EncodingQueue(), []
    sizes = [50 * LONG, 2 * LONG, 9 * LONG, SHORT]

    def note(size: int) -> Callable[[Checkpoint], None]:
        return lambda checkpoint: order.append(size)

    async with busy(queue, LONG):
        async with busy(queue, LONG, SHORT):
            works = [asyncio.create_task(queue.run(note(size), size)) for size in sizes]
            await asyncio.sleep(0)
            assert (queue.waiting, queue.waiting_characters) == (4, sum(sizes))
        await asyncio.gather(*works)
    assert (queue.waiting, queue.waiting_characters) == (0, 0)
    assert [size for size in order if size != SHORT] == [2 * LONG, 9 * LONG, 50 * LONG]
    assert len(order) == len(sizes)


@pytest.mark.parametrize("limit", ["MAX_WAITING", "MAX_WAITING_CHARACTERS"])
async def test_works_beyond_the_limit_are_refused(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(module, limit, 1)
    queue = EncodingQueue()
    async with busy(queue, LONG, LONG, SHORT):
        waits = asyncio.create_task(queue.run(lambda checkpoint: 1, SHORT))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match=r"1 prompts of 3000 characters.* in 2 s\.") as refused:
            await queue.run(lambda checkpoint: 2, SHORT)
        assert refused.value.retry_after_s == 2
    assert await waits == 1


async def test_a_work_whose_client_left_is_dropped() -> None:
    queue, called = EncodingQueue(), []
    async with busy(queue, LONG, LONG, SHORT):
        body = threading.Event()  # stands for a request
        held = weakref.ref(body)
        waits = asyncio.create_task(queue.run(lambda checkpoint, body=body: called.append(body), 9))
        await asyncio.sleep(0)
        del body
        waits.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waits
        del waits
        await asyncio.sleep(0)  # the step that was woken by the error ends
        assert held() is None
        assert (queue.waiting, queue.waiting_characters) == (0, 0)
    await queue.run(lambda checkpoint: None, LONG)
    assert not called


async def test_a_running_work_ends_when_its_client_leaves() -> None:
    queue, started, ended = EncodingQueue(), threading.Event(), threading.Event()

    def work(checkpoint: Checkpoint) -> None:
        started.set()
        try:
            for _ in count():
                checkpoint()
        except Abandoned:
            ended.set()
            raise

    running = asyncio.create_task(queue.run(work, LONG))
    await asyncio.to_thread(started.wait)
    running.cancel()
    assert await asyncio.to_thread(ended.wait, 60)
    assert running.cancelled()


async def test_an_error_leaves_nothing_to_the_collector() -> None:
    queue = EncodingQueue()

    async def refused() -> weakref.ref[threading.Event]:
        body = threading.Event()

        def work(checkpoint: Checkpoint) -> None:
            assert body is not None
            raise InvalidRequest("no")

        with contextlib.suppress(InvalidRequest):
            await queue.run(work, LONG)
        return weakref.ref(body)

    gc.disable()
    try:
        held = await refused()
        await until(lambda: held() is None)
    finally:
        gc.enable()


async def test_of_long_conversations_one_is_written_at_a_time() -> None:
    queue, engine = EncodingQueue(), replace(ENGINE, max_input_tokens=1 << 20)
    entered: list[int] = []

    async def encode(length: int) -> None:
        @contextlib.contextmanager
        def alone() -> Iterator[None]:
            with lock:
                entered.append(length)
                yield

        queue.alone, lock = alone(), queue.alone
        request = GenerationRequest(
            messages=[{"role": "user", "content": "a" * length}], max_tokens=1
        )
        assert (await encode_prompt(request, smollm2_tokenizer(), engine, queue)).ids
        queue.alone = lock

    for length in (1, SHORT, LONG):
        await encode(length)
    assert entered == [LONG]
