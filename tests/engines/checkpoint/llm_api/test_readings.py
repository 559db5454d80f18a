"""Statistics of the engine and events of its KV cache: read in time, whoever reads on."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.engines.checkpoint.llm_api.conftest import StartEngine, StartTriton
from tests.engines.checkpoint.llm_api.test_engine import answer
from tests.engines.checkpoint.llm_api.test_triton_model import chunks
from tests.fakes.tensorrt_llm import VERSIONS
from tests.support.waiting import PATIENCE_S, settles

from trtllm_backends.llm_api.library import Library
from trtllm_backends.llm_api.readings import (
    _PENDING_BYTES,
    EventLines,
    Source,
    cache_blocks,
    read_until_ended,
)

RELEASES = VERSIONS
"""Before and after the pull request that changed the way to both."""

STEPS = 900 * 50
"""Of a quarter of an hour, with 20 ms each."""

STEPS_A_SECOND = 2000
"""The steps pass within 23 s, in which more wait than are read at once."""

BEHIND_STEPS = 3 * STEPS_A_SECOND
"""Maximum backlog of a reader, which is lost when the engine stops."""

STATISTIC = json.dumps(
    {
        "iter": 1,
        "kvCacheStats": {"maxNumBlocks": 9, "usedNumBlocks": 4, "freeNumBlocks": 5},
        "inflightBatchingStats": {f"numRequests{number}": number for number in range(40)},
    }
)
EVENT = json.dumps(
    {"event_id": 1, "window_size": 4096, "data": {"type": "removed", "block_hashes": [*range(32)]}}
)
ENTRIES = {"stats": STATISTIC, "kv_cache_events": EVENT}
GROWTH_BYTES = 2**24
"""Above what Python's allocator keeps; what nobody reads takes twice as much."""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread, as the engine's does."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "events"))
        listener.listen()
        yield listener


class EngineOfQueues:
    """The queues of a library, which an engine fills while the reader waits.

    It is the event for which the reader waits, too, so that no time passes.

    Args:
        queues: the library's queues by name, whose `entries` are JSON.
        asked: the queues are the worker's, which is asked for them.
        may_step: returns only when a reader has caught up; time passes faster than it reads.
    """

    def __init__(
        self,
        queues: Mapping[str, Any],
        *,
        asked: bool,
        may_step: Callable[[int], object] = lambda steps: None,
    ) -> None:
        self._queues = queues
        self._may_step = may_step
        self._executor = SimpleNamespace(rpc_client=None) if asked else SimpleNamespace()
        self._due = 0.0
        self.steps = 0
        self.longest = 0

    def wait(self, pause_s: float) -> bool:
        self._due += pause_s * STEPS_A_SECOND
        new, self._due = int(self._due), self._due % 1
        self._may_step(self.steps)
        self.steps += new
        for name, queue in self._queues.items():
            # A text for each, as the worker sends them.
            queue.entries.extend(ENTRIES[name][:-1] + "}" for _ in range(new))
            self.longest = max(self.longest, len(queue.entries))
        return self.steps >= STEPS

    def get_stats(self, timeout: float) -> list[Any]:
        return self._get("stats")

    def get_kv_cache_events(self, timeout: float) -> list[Any]:
        return self._get("kv_cache_events")

    def _get(self, name: str) -> list[Any]:
        entries = [json.loads(entry) for entry in self._queues[name].entries]
        self._queues[name].entries.clear()
        return entries

    def get_stats_async(self, timeout: float) -> Any:
        return self._get_async("stats", timeout)

    def get_kv_cache_events_async(self, timeout: float) -> Any:
        return self._get_async("kv_cache_events", timeout)

    def _get_async(self, name: str, timeout: float) -> Any:
        self._queues[name].timeout = timeout
        return self._queues[name]


def library_queues() -> dict[str, Any]:
    """Return the library's own queues, which have no limit."""
    from tensorrt_llm.fake.result import IterationResult  # type: ignore[import-not-found]

    queues = {name: IterationResult() for name in ENTRIES}
    assert all(queue.entries.maxlen is None for queue in queues.values())
    return queues


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "truss",
    [
        "waits",
        pytest.param("reads", marks=pytest.mark.thorough),
        pytest.param("is gone", marks=pytest.mark.thorough),
    ],
)
def test_many_steps_leave_queues_and_memory_as_they_were(
    truss: str,
    loop: asyncio.AbstractEventLoop,
    library: Library,
    listener: socket.socket,
) -> None:
    read = 0

    def count(lines: Iterable[str]) -> None:
        nonlocal read
        for _ in lines:
            read += 1

    def wait_for_reader(steps: int) -> None:
        if truss == "reads":
            assert settles(lambda: steps - read <= BEHIND_STEPS)

    engine: Any = EngineOfQueues(
        library_queues(), asked=library.version.startswith("1.3"), may_step=wait_for_reader
    )
    blocks: dict[str, float] = {}
    lines = EventLines(Path(listener.getsockname()))
    connection, _ = listener.accept()
    stream = connection.makefile()
    reading = threading.Thread(target=count, args=(stream,))
    with connection, stream, closing(lines):
        if truss == "reads":
            reading.start()
        elif truss == "is gone":
            stream.close()
            connection.close()
        before = resident_bytes()
        statistics = Source("stats", lambda entries: blocks.update(cache_blocks(entries)))
        sources = [statistics, Source("kv_cache_events", lines.send)]
        read_until_ended(engine, loop, sources, engine)
        grown = resident_bytes() - before
        lines.close()
        if truss == "reads":
            reading.join()
    assert engine.steps >= STEPS
    assert engine.longest < STEPS_A_SECOND
    assert grown < GROWTH_BYTES + (_PENDING_BYTES if truss == "waits" else 0)
    assert blocks == {"max": 9, "used": 4, "free": 5}
    if truss == "reads":
        assert read >= STEPS - BEHIND_STEPS - STEPS_A_SECOND


@pytest.mark.usefixtures("library")
def test_steps_that_nobody_reads_grow() -> None:
    """The library's queues have no limit: the test above would see it."""
    queues = library_queues()
    engine = EngineOfQueues(queues, asked=False)
    while not engine.wait(1.0):
        pass
    assert engine.longest >= STEPS
    held = sum(sys.getsizeof(entry) for queue in queues.values() for entry in queue.entries)
    assert held > 2 * GROWTH_BYTES


def test_a_truss_that_reads_late_gets_whole_lines(listener: socket.socket) -> None:
    lines = EventLines(Path(listener.getsockname()))
    connection, _ = listener.accept()
    event = json.loads(EVENT)
    count = 2 * _PENDING_BYTES // len(EVENT)
    got: list[int] = []
    with connection, connection.makefile() as stream, closing(lines):
        for number in range(count):
            lines.send([{**event, "event_id": number}])
        while not got or got[-1] < count - 1:
            lines.send([])
            got.append(json.loads(stream.readline())["id"])
    assert got == sorted(set(got))
    assert got[0] == 0
    assert len(got) < count


@pytest.mark.usefixtures("counting")
def test_blocks_are_told_while_requests_run_and_after(start_engine: StartEngine) -> None:
    told: list[dict[str, float]] = []
    engine = start_engine(
        on_blocks=lambda blocks: told.append(dict(blocks)),
        llm_args={"enable_iter_perf_stats": True, "kv_cache_config": {"max_tokens": 4096}},
        canary_interval_s=3600,
    )
    answer(engine, 64)
    assert settles(lambda: any(blocks.get("used") == 0 for blocks in told))
    seen = [blocks for blocks in told if blocks]
    assert all(blocks["free"] == blocks["max"] - blocks["used"] for blocks in seen)
    assert {blocks["tokens_per"] for blocks in seen} == {32}


@pytest.mark.usefixtures("counting")
def test_events_are_read_though_nobody_wants_them(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    engine = start_engine(
        kv_events=tmp_path / "nobody",
        llm_args={"kv_cache_config": {"event_buffer_max_size": 64}},
        canary_interval_s=3600,
    )
    for number in range(3):
        answer(engine, 8, prompt=[*range(number, number + 40)])
    (events,) = [q for name, q in engine._llm._executor.readings.items() if name == "kv_events"]
    assert settles(lambda: not events.entries)


@pytest.mark.usefixtures("counting")
async def test_triton_shows_the_blocks(start_llm_triton: StartTriton, checkpoint: Path) -> None:
    triton = start_llm_triton(checkpoint, llm_args={"enable_iter_perf_stats": True})
    assert triton.launch is not None
    page = f"http://127.0.0.1:{triton.launch.ports.metrics}/metrics"
    await chunks(triton.grpc_address)

    def shown() -> dict[str, float]:
        line = re.compile(r"^trtllm_truss_kv_cache_blocks\{(.*)\} (.*)$", re.MULTILINE)
        found = line.findall(httpx.get(page, timeout=PATIENCE_S).text)
        return {re.findall('type="(.*?)"', labels)[0]: float(value) for labels, value in found}

    assert settles(
        lambda: shown() == {"max": 64, "used": 0, "free": 64, "reused": 0, "tokens_per": 32}
    )
