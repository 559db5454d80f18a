"""Disconnects and overload."""

from __future__ import annotations

import http.client
import queue
import threading
import time
from contextlib import ExitStack

from trtllm_workbench.selftest.bench.bench import Bench, expect
from trtllm_workbench.selftest.bench.calls import PREDICT, Stream
from trtllm_workbench.selftest.bench.results import CannotRun, FellShort, Held

LIMIT_S = 0.5
"""For the engine to stop after a client has left."""

_RUNNING = "trtllm_truss_requests_running"
_WASTED = "trtllm_truss_tokens_after_disconnect_total"
_STREAMS, _MOST_STREAMS = 4, 64
_TICK_S = 0.01
_SETTLE_S = 15.0
_REFUSALS = 4
_MOST_CONNECTIONS = 512
_SPARE_SHARE = 8


def cancellation(bench: Bench) -> Held:
    """Fill the engine with streams and disconnect them all; server and engine must be free in time.

    The engine is free when it gives a first token to as many requests as it runs at once.
    """
    count = bench.batch if bench.batch <= _MOST_STREAMS else _STREAMS
    usual_s = _first_tokens_s(bench, count)
    wasted = bench.api.metric(_WASTED)
    with ExitStack() as opened:
        for _ in range(count):
            stream = opened.enter_context(bench.api.stream(PREDICT, bench.long))
            _first_piece(stream)
        if (running := bench.api.metric(_RUNNING)) < count:
            raise CannotRun(
                f"{count - running:.0f} of {count} answers of {bench.longest_answer} tokens had "
                "ended before they could be cancelled"
            )
    started = time.perf_counter()
    while bench.api.metric(_RUNNING) > 0 and time.perf_counter() - started < _SETTLE_S:
        time.sleep(_TICK_S)
    server_s = time.perf_counter() - started
    if server_s > LIMIT_S:
        raise _too_late(f"the server still ran {count} requests", server_s)
    _first_tokens_s(bench, count)
    engine_s = max(0.0, time.perf_counter() - started - usual_s)
    if engine_s > LIMIT_S:
        raise _too_late(f"the engine was still busy with {count} requests", engine_s)
    wasted = bench.api.metric(_WASTED) - wasted
    server_ms, engine_ms = round(server_s * 1000), round(engine_s * 1000)
    return Held(
        f"{count} clients left: server free after {server_ms} ms, engine after {engine_ms} ms and "
        f"{wasted:.0f} tokens",
        {"server_ms": server_ms, "engine_ms": engine_ms, "tokens_after_disconnect": wasted},
    )


def _first_tokens_s(bench: Bench, count: int) -> float:
    """Return the seconds that so many answers of one token take."""
    started = time.perf_counter()
    bench.direct.generate_all([bench.prompt_ids] * count, 1)
    return time.perf_counter() - started


def _too_late(what: str, seconds: float) -> FellShort:
    return FellShort(
        f"{what} {seconds:.1f} s after their clients had left; the limit is {LIMIT_S * 1000:.0f} ms"
    )


def engine_cancellation(bench: Bench) -> Held:
    """Stop a request in the engine itself and wait for its end there."""
    stopped = bench.direct.stop(bench.prompt_ids, bench.longest_answer, LIMIT_S)
    if stopped.was_over:
        raise CannotRun(
            f"the engine ended its answer of {bench.longest_answer} tokens before it could be "
            "stopped"
        )
    by, seconds = "stop", stopped.by_stop_s
    if seconds is None:
        by, seconds = "a cancelled call", stopped.by_cancel_s
    if seconds is None:
        raise FellShort(
            f"the engine ignores `stop` and the cancellation of a call: its request still ran "
            f"{LIMIT_S * 1000:.0f} ms after each; see cancellation_check_period_ms"
        )
    return Held(
        f"by {by}: the engine ended its request after {seconds * 1000:.0f} ms",
        {"engine_cancellation_ms": round(seconds * 1000)},
    )


def overload(bench: Bench) -> Held:
    """Send more requests than engine and queue take; the surplus must be refused at once."""
    limit = bench.settings.serving.queue_limit
    count = bench.batch + bench.batch // _SPARE_SHARE + 1 + limit + _REFUSALS
    if count > _MOST_CONNECTIONS:
        raise CannotRun(
            f"it takes {count} connections (max_batch_size {bench.batch}, queue_limit {limit}); "
            f"this client opens {_MOST_CONNECTIONS} at most"
        )
    found: queue.Queue[Stream | Exception] = queue.Queue()

    def ask() -> None:
        try:
            found.put(bench.api.open(PREDICT, bench.long))
        except (OSError, http.client.HTTPException) as error:
            found.put(error)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        with ExitStack() as opened:
            refused = _collect(found, count, opened)
    finally:
        while any(thread.is_alive() for thread in threads) or not found.empty():
            _close_next(found)
    if len(refused) < _REFUSALS:
        raise FellShort(
            f"{len(refused)} of {count} requests at once were refused; the engine runs "
            f"{bench.batch} and the queue holds {limit}"
        )
    for stream in refused:
        if "retry-after" not in stream.headers:
            raise FellShort(f"HTTP {stream.status} came without Retry-After")
    _settle(bench)
    expect(bench.api.post(PREDICT, {**bench.long, "max_tokens": 2}))
    statuses = sorted({stream.status for stream in refused})
    return Held(
        f"{len(refused)} of {count} requests at once got {statuses} with Retry-After, the next "
        "one was answered",
        {"requests": count, "refused": len(refused)},
    )


def _collect(found: queue.Queue[Stream | Exception], count: int, opened: ExitStack) -> list[Stream]:
    """Wait for the refusals and return them; `opened` closes all streams."""
    refused: list[Stream] = []
    deadline = time.monotonic() + _SETTLE_S
    for _ in range(count):
        try:
            stream = found.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(stream, Exception):
            raise FellShort(f"a request got no status: {stream}") from stream
        opened.callback(stream.close)
        if stream.status in (429, 503):
            refused.append(stream)
        elif stream.status != http.client.OK:
            raise FellShort(f"a request got HTTP {stream.status} under load")
        if len(refused) == _REFUSALS:
            break
    return refused


def _close_next(found: queue.Queue[Stream | Exception]) -> None:
    try:
        stream = found.get(timeout=_TICK_S)
    except queue.Empty:
        return
    if isinstance(stream, Stream):
        stream.close()


def _settle(bench: Bench) -> None:
    deadline = time.monotonic() + _SETTLE_S
    while bench.api.metric("trtllm_truss_requests_in_flight") > 0:
        if time.monotonic() > deadline:
            raise FellShort("requests still run after all clients have left")
        time.sleep(_TICK_S)


def _first_piece(stream: Stream) -> None:
    if stream.status != http.client.OK:
        raise FellShort(f"a stream began with HTTP {stream.status}")
    next(stream.pieces(), None)
