"""Read the engine's statistics and KV cache events before they fill a queue.

Before NVIDIA/TensorRT-LLM pull request 9980 (1.0 to 1.2), the worker sends both unasked: one entry
per step, and all events. In this process they wait in unlimited queues on the event loop where
requests start, which exist from the first request on. Only the asynchronous calls read these; the
others decode the None that ``_SyncQueue.get`` of tensorrt_llm/llmapi/utils.py returns there after
its time limit. Since that pull request the worker keeps a bounded number, which both kinds of calls
request over an ``rpc_client``, blocking. Sources: ``get_stats``, ``aget_kv_events`` and
``_iteration_result_task`` of tensorrt_llm/executor/proxy.py, ``IterationResult`` of
executor/result.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_READ_S = 0.05
_IDLE_S = 0.4
_AT_ONCE = 100
"""Entries per pass, which block the event loop for about 2 ms."""

_PENDING_BYTES = 2**24
_SENT_TOGETHER = 100


class Source:
    """A queue of the library.

    Args:
        name: name in its calls, such as ``stats`` in ``get_stats`` and ``get_stats_async``.
        take: receives the entries of a pass, possibly none; called on the reading thread.
    """

    def __init__(self, name: str, take: Callable[[Sequence[Mapping[str, Any]]], None]) -> None:
        self.name = name
        self._take = take
        self._has_failed = False

    def pass_on(self, llm: Any, loop: asyncio.AbstractEventLoop) -> int:
        """Read the available entries, at most `_AT_ONCE` per event loop; return their number.

        An error is logged once, and the queue is still read.
        """
        entries: list[Mapping[str, Any]] = []
        try:
            if hasattr(getattr(llm, "_executor", None), "rpc_client"):
                entries = getattr(llm, f"get_{self.name}")(timeout=0)
            else:
                entries = asyncio.run_coroutine_threadsafe(self._drain(llm), loop).result()
            self._take(entries)
        except Exception:
            if not self._has_failed:
                logger.exception("%s of the engine cannot be read", self.name)
            self._has_failed = True
        return len(entries)

    async def _drain(self, llm: Any) -> list[Mapping[str, Any]]:
        entries: list[Mapping[str, Any]] = []
        with suppress(AssertionError, IndexError, asyncio.QueueEmpty):  # no queue, or an empty one
            async for entry in getattr(llm, f"get_{self.name}_async")(timeout=0):
                entries.append(entry)
                if len(entries) == _AT_ONCE:
                    break
        return entries


def read_until_ended(
    llm: Any,
    loop: asyncio.AbstractEventLoop,
    sources: Sequence[Source],
    ended: threading.Event,
) -> None:
    """Read queues until the engine has stopped.

    Args:
        loop: event loop on which requests start.
    """
    pause_s = _READ_S
    while not ended.wait(pause_s):
        most = max(source.pass_on(llm, loop) for source in sources)
        if most >= _AT_ONCE:
            pause_s = 0.0
        else:
            pause_s = _READ_S if most else min(2 * max(pause_s, _READ_S), _IDLE_S)


class EventLines:
    """Sends KV cache events to a Unix socket, one per line.

    A line is a JSON object with `id`, `window`, and `stored` (the hash of the preceding block, and
    pairs of a hash and token ids) or `removed` (hashes), or neither. A Truss that does not read for
    a while loses the oldest events, which leaves a gap in `id`; if it is gone, it loses all.
    """

    def __init__(self, address: Path) -> None:
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._rest = b""
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(str(address))
            self._socket.setblocking(False)
        except OSError as error:
            self._give_up(error)

    def send(self, events: Sequence[Mapping[str, Any]]) -> None:
        if self._socket is None:
            return
        for event in events:
            self._lines.append(json.dumps(_short(event)).encode() + b"\n")
            self._bytes += len(self._lines[-1])
        while self._bytes > _PENDING_BYTES:
            self._bytes -= len(self._lines.popleft())
        try:
            self._flush(self._socket)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Drop unsent and all later events; idempotent."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._rest, self._bytes = None, b"", 0
        self._lines.clear()

    def _flush(self, truss: socket.socket) -> None:
        """Send what the socket accepts; a partly sent line is kept."""
        with suppress(BlockingIOError):
            while self._rest or self._lines:
                if not self._rest:
                    count = min(_SENT_TOGETHER, len(self._lines))
                    self._rest = b"".join(self._lines.popleft() for _ in range(count))
                    self._bytes -= len(self._rest)
                self._rest = self._rest[truss.send(self._rest) :]

    def _give_up(self, error: OSError) -> None:
        logger.warning("KV events are no longer reported: %s", error)
        self.close()


def _short(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event without the fields that no router reads.

    Source: ``KVCacheEventSerializer`` of tensorrt_llm/_utils.py, near 1.2; 1.0 has no window.
    """
    data = event["data"]
    short: dict[str, Any] = {"id": event["event_id"], "window": event.get("window_size")}
    if data["type"] == "stored":
        blocks = [
            (block["block_hash"], [token["token_id"] for token in block["tokens"]])
            for block in data["blocks"]
        ]
        short["stored"] = (data["parent_hash"], blocks)
    elif data["type"] == "removed":
        short["removed"] = data["block_hashes"]
    return short


_BLOCKS = {
    "max": "maxNumBlocks",
    "used": "usedNumBlocks",
    "free": "freeNumBlocks",
    "reused": "reusedBlocks",
    "tokens_per": "tokensPerBlock",
}
"""The kinds of ``nv_trt_llm_kv_cache_block_metrics``, and their names in statistics.

Source: the metrics endpoint in docs/source/commands/trtllm-serve/trtllm-serve.rst of TensorRT-LLM.
"""


def cache_blocks(statistics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the latest numbers of blocks by kind; empty if no entry has them."""
    for entry in reversed(statistics):
        if cache := entry.get("kvCacheStats"):
            return {kind: float(cache[name]) for kind, name in _BLOCKS.items() if name in cache}
    return {}
