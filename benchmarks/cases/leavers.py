"""Clients that disconnect at any byte of their request, or while their answer streams."""

from __future__ import annotations

import json
import random
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

from benchmarks.cases.setup import set_up
from benchmarks.options import Options
from benchmarks.result import CaseResult, Column
from benchmarks.servers.target import Target
from benchmarks.servers.truss import serve
from benchmarks.servers.usage import PeakMemory, total, usage_by_role

_ROUTE = "/v1/chat/completions"
_LEAVERS = 20_000
_SMALLEST_BYTES, _LARGEST_BYTES = 16 << 10, (8 << 20) - 1024
_CLIENTS = 8
_UNFINISHED = 100
_WARM_UP = 200
_SETTLE_S = 10.0
_MOST_GROWTH_MIB = 50.0
_TIMEOUT_S = 60.0
_SEED = 17
_WAYS = ("before the body", "within the body", "after the body", "while streaming")
_SHARES = (1, 4, 2, 3)
_COLUMNS = [
    Column("phase", "clients"),
    Column("count", "number"),
    Column("sent_mib", "sent MiB"),
    Column("peak_mib", "RSS added, peak MiB"),
    Column("kept_mib", "RSS added, after 10 s MiB"),
]
_TEXT = f"""\
{_CLIENTS} clients at a time send chat requests of 16 KiB to 8 MiB, most of them small ones, and
leave: before the body, at a random byte of it, after its last byte, or after the first piece of
their answer. Then {_UNFINISHED} clients send 8 MiB less one byte, and leave together. RSS is that
of all processes of the server, beyond what they held after {_WARM_UP} such clients."""


def run(options: Options) -> CaseResult:
    """Have clients disconnect, and report what the server keeps."""
    result = CaseResult("leavers", "Clients that leave", _TEXT, _COLUMNS).begin()
    bench = set_up(options, "leavers")
    count = options.requests or _LEAVERS
    chance = random.Random(options.seed or _SEED)
    with serve(bench.config, bench.backend.folder) as truss:
        _leave(truss, [chance.random() for _ in range(min(count, _WARM_UP))])
        time.sleep(0 if options.quick else _SETTLE_S)
        before = _rss_mib(truss)
        plans = [chance.random() for _ in range(count)]
        with PeakMemory(truss.pid) as peak:
            ways, sent = _leave(truss, plans)
        kept = _report(result, options, truss, "leave", count, sent, peak, before)
        result.find(", ".join(f"{ways[way]} left {way}" for way in _WAYS) + ".")
        if kept > _MOST_GROWTH_MIB and not options.quick:
            result.fault(f"the server keeps {kept:.0f} MiB; at most {_MOST_GROWTH_MIB:.0f} may be")
        with PeakMemory(truss.pid) as peak:
            sent = _hold_unfinished(truss, 4 if options.quick else _UNFINISHED)
        unfinished = 4 if options.quick else _UNFINISHED
        _report(result, options, truss, "hold", unfinished, sent, peak, before)
    return result


def _report(
    result: CaseResult,
    options: Options,
    truss: Target,
    phase: str,
    count: int,
    sent_bytes: int,
    peak: PeakMemory,
    before: float,
) -> float:
    """Add a row; return the memory that the server keeps, in MiB."""
    time.sleep(0 if options.quick else _SETTLE_S)
    kept = _rss_mib(truss) - before
    result.add(
        phase=phase,
        count=float(count),
        sent_mib=sent_bytes / 2**20,
        peak_mib=peak.rss_bytes / 2**20 - before,
        kept_mib=kept,
    )
    return kept


def _leave(truss: Target, plans: list[float]) -> tuple[Counter[str], int]:
    """Disconnect once per plan; return the counts by kind, and the sent bytes."""
    with ThreadPoolExecutor(_CLIENTS) as pool:
        done = list(pool.map(lambda plan: _leave_once(truss, random.Random(plan)), plans))
    return Counter(way for way, _ in done), sum(sent for _, sent in done)


def _leave_once(truss: Target, chance: random.Random) -> tuple[str, int]:
    (way,) = chance.choices(_WAYS, _SHARES)
    ratio = _LARGEST_BYTES / _SMALLEST_BYTES
    body = _body(int(_SMALLEST_BYTES * ratio ** chance.random()))
    length = len(body)
    if way == "before the body":
        length = 0
    elif way == "within the body":
        length = chance.randrange(1, len(body))
    with suppress(ConnectionError), _connect(truss) as connection:
        connection.sendall(_head(len(body)))
        connection.sendall(memoryview(body)[:length])
        if way == "while streaming":
            connection.recv(1)
    return way, length


def _hold_unfinished(truss: Target, count: int) -> int:
    """Send all but the last byte of large bodies, and hold them until all are sent."""
    body = _body(_LARGEST_BYTES)[:-1]
    with ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(_connect(truss))
            with suppress(ConnectionError):
                connection.sendall(_head(len(body) + 1) + body)
        time.sleep(1.0)
    return count * len(body)


def _connect(truss: Target) -> socket.socket:
    return socket.create_connection(("127.0.0.1", truss.port), timeout=_TIMEOUT_S)


def _head(length: int) -> bytes:
    return f"POST {_ROUTE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()


def _body(size_bytes: int) -> bytes:
    messages = [{"role": "user", "content": "Hi"}]
    fields = {"messages": messages, "max_tokens": 64, "stream": True, "user": ""}
    empty = json.dumps(fields)
    return json.dumps({**fields, "user": "a" * (size_bytes - len(empty))}).encode()


def _rss_mib(truss: Target) -> float:
    return total(usage_by_role(truss.pid)).rss_bytes / 2**20
