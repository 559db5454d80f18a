"""Closed loops, which send a request after the previous one, and open loops at a fixed rate."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator

from benchmarks.load.http import Connection, Failed, request_bytes
from benchmarks.load.record import Record
from benchmarks.load.spec import LoadSpec

_ATTEMPT_S = 20.0
"""Limit for opening a connection; a slower one counts as lost."""

_POLL_S = 0.5

_PAUSE_S = 0.02
"""Between a closed connection and the next one of a stream."""


async def run_http(spec: LoadSpec, record: Record) -> None:
    """Run a load over HTTP."""
    requests = itertools.cycle([request_bytes(spec.path, body) for body in spec.bodies])
    if spec.rate is not None:
        await _open_loop(spec, record, requests)
        return

    async def stream(more: Callable[[], bool]) -> None:
        connection = None
        try:
            while more():
                connection = await _ask(spec.port, connection, next(requests), record)
                if connection is None:
                    await asyncio.sleep(_PAUSE_S)
        finally:
            if connection is not None:
                connection.close()

    await closed_loop(spec, record, stream)


async def closed_loop(
    spec: LoadSpec,
    record: Record,
    stream: Callable[[Callable[[], bool]], Awaitable[None]],
) -> None:
    """Run `spec.streams` concurrent streams.

    Args:
        spec: limits the duration or the number of requests.
        record: receives stalled streams.
        stream: sends requests one after another while its argument returns true.
    """
    deadline = time.perf_counter() + spec.duration_s
    numbers = itertools.count()

    def more_requests() -> bool:
        assert spec.requests is not None
        return next(numbers) < spec.requests

    def new_stream() -> Awaitable[None]:
        if spec.requests is not None:
            return stream(more_requests)
        first = itertools.chain([True], itertools.repeat(False))
        return stream(lambda: next(first) or time.perf_counter() < deadline)

    tasks: set[asyncio.Future[None]]
    tasks = {asyncio.ensure_future(new_stream()) for _ in range(spec.streams)}
    await _end_all(tasks, spec.patience_s, record)


async def _open_loop(spec: LoadSpec, record: Record, requests: Iterator[bytes]) -> None:
    """Start requests at random times, like many independent clients."""
    assert spec.rate is not None
    chance = random.Random(1)  # the same times in every run
    tasks: set[asyncio.Future[None]] = set()
    start, next_s = time.perf_counter(), 0.0
    while next_s < spec.duration_s:
        await asyncio.sleep(max(0.0, start + next_s - time.perf_counter()))
        tasks.add(asyncio.ensure_future(_ask_once(spec.port, next(requests), record)))
        next_s += chance.expovariate(spec.rate)
    await _end_all(tasks, spec.patience_s, record)


async def _ask_once(port: int, request: bytes, record: Record) -> None:
    connection = await _ask(port, None, request, record)
    if connection is not None:
        connection.close()


async def _ask(
    port: int, connection: Connection | None, request: bytes, record: Record
) -> Connection | None:
    """Send one request and record its answer; return the connection if it is reusable."""
    start_s = time.perf_counter()
    try:
        if connection is None:
            connection = await _connect(port, record)
            record.add_connect(time.perf_counter() - start_s)
        answer = await connection.ask(request)
    except Failed as failure:
        record.add_failure(str(failure))
        return None
    except asyncio.CancelledError:
        if connection is not None:
            connection.close()
        raise
    if answer.outcome == "200":
        record.add(start_s, answer.arrivals_s, answer.tokens)
    else:
        record.add_failure(answer.outcome)
    return connection if connection.is_open else None


async def _connect(port: int, record: Record) -> Connection:
    loop = asyncio.get_running_loop()
    opening = loop.create_connection(lambda: Connection(record), "127.0.0.1", port)
    try:
        _, connection = await asyncio.wait_for(opening, _ATTEMPT_S)
    except (OSError, asyncio.TimeoutError):
        raise Failed("lost") from None
    return connection


async def _end_all(tasks: set[asyncio.Future[None]], patience_s: float, record: Record) -> None:
    """Wait for all tasks while bytes arrive; raise an error of this client."""
    running = tasks
    while running and time.perf_counter() - record.last_byte_s < patience_s:
        done, running = await asyncio.wait(running, timeout=_POLL_S)
        for task in done:
            task.result()
    for task in running:
        task.cancel()
        record.add_failure("stalled")
        with contextlib.suppress(asyncio.CancelledError):
            await task
