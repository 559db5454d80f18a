"""Kill and stop processes of a two-rank engine while clients check every answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.chaos.clients import CUT, FAULTS, LEFT, PREDICT, WHOLE, Tally, Visitor, run_clients
from benchmarks.chaos.inspected import serve_and_inspect
from benchmarks.chaos.killer import Killer
from benchmarks.chaos.texts import Texts
from benchmarks.engine.backend import FAKE_BACKENDS
from benchmarks.engine.folder import write_engine
from benchmarks.options import Options
from benchmarks.result import CaseResult, Column
from benchmarks.servers.configuration import TOKENIZER_REPOSITORY, write_config
from benchmarks.servers.target import Target
from benchmarks.servers.usage import Usage, descendants, usage_by_role

_CLIENTS = 24
_RANKS = 2
_MINUTES = 10.0
_STRIKES_S = (8.0, 25.0)
_CALM_S = 15.0
_QUIET_S = 8.0
_QUICKER = 6.0
_MAX_BODY_BYTES = 1 << 20
_MORE_MIB, _MORE_FDS, _MORE_THREADS = 100.0, 8, 4
_START_LIMIT_S = 30
_BACK_LIMIT_S = 3.0 * _START_LIMIT_S
"""The last strike may stop a start, which is killed at its limit.

Another start and an answer follow.
"""

_ENGINE: dict[str, Any] = {"step_ms": 5.0, "max_batch_size": 16, "world_size": _RANKS}
_SERVING = {
    "hang_timeout_s": 3,
    "start_timeout_s": _START_LIMIT_S,
    "restart_limit": 100,
    "restart_backoff_s": 0.1,
    "max_body_bytes": _MAX_BODY_BYTES,
    "drain_timeout_s": 1,
}
_COLUMNS = [
    Column("client", "client"),
    Column("whole", "whole"),
    Column("cut", "cut visibly"),
    Column("left", "left"),
    Column("refused", "refused"),
    *(Column(fault, fault) for fault in FAULTS),
]


@dataclass(frozen=True, slots=True)
class _State:
    """Memory and processes of an idle server."""

    truss: Usage
    processes: Counter[str]


def run(options: Options) -> CaseResult:
    """Run the chaos; violated expectations are the result's faults."""
    minutes = options.minutes or _MINUTES
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    quicker = _QUICKER if options.quick else 1.0
    every_s = (_STRIKES_S[0] / quicker, _STRIKES_S[1] / quicker)
    text = (
        f"An engine of {_RANKS} ranks, {_CLIENTS} clients, {minutes:g} minutes. Every "
        f"{every_s[0]:g} to {every_s[1]:g} s a process below Truss's server gets SIGKILL, SIGTERM "
        f"or SIGSTOP; half of the stopped ones are resumed. Seed: {seed}. An answer is whole if it "
        "is exactly the expected text; “wrong” is complete but different, “hung” did not end "
        "within a minute, “lost” has no status, “internal” is a 500."
    )
    result = CaseResult("chaos", "Chaos: killed and stopped processes", text, _COLUMNS).begin()
    print(f"  seed {seed}", flush=True)
    options.work.mkdir(parents=True, exist_ok=True)
    log = options.work / "chaos.log"
    with serve_and_inspect(result, _configured(options), log, FAKE_BACKENDS) as truss:
        tally = asyncio.run(_chaos(truss, seed, minutes * 60, every_s, quicker, result))
        restarts = truss.status.restarts
    _fill(result, tally)
    result.find(f"The engine was restarted {restarts} times.")
    return result


def _configured(options: Options) -> Path:
    engine = write_engine(options.work / "chaos-engine", **_ENGINE)
    return write_config(
        options.work / "chaos.yaml",
        engine_repository=str(engine.resolve()),
        tokenizer_repository=TOKENIZER_REPOSITORY,
        tensor_parallelism=_RANKS,
        serving=_SERVING,
    )


async def _chaos(
    truss: Target,
    seed: int,
    duration_s: float,
    every_s: tuple[float, float],
    quicker: float,
    result: CaseResult,
) -> Tally:
    """Inspect the idle server, cause the chaos, and inspect the server again."""
    url = f"http://127.0.0.1:{truss.port}"
    texts = Texts()
    visitors = [Visitor(n, seed, url, texts, _MAX_BODY_BYTES) for n in range(_CLIENTS)]
    await run_clients(visitors, Tally(), lambda: asyncio.sleep(_CALM_S / quicker))
    before = await _idle_state(truss, url, texts, result)
    killer = Killer(truss.pid, seed, every_s)

    async def kill() -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(killer.run(), duration_s)

    tally = Tally()
    await run_clients(visitors, tally, kill)
    after = await _idle_state(truss, url, texts, result)
    strikes = ", ".join(f"{count} × {name}" for name, count in sorted(killer.strikes.items()))
    result.find(f"{killer.strikes.total()} strikes: {strikes}.")
    if before is not None and after is not None:
        _compare(result, before, after)
    return tally


async def _idle_state(truss: Target, url: str, texts: Texts, result: CaseResult) -> _State | None:
    """Wait until the server answers correctly again and is idle."""
    body = {"prompt": "One two three", "max_tokens": 30, "stream": False}
    expected = texts.completion("One two three", 30)
    deadline = time.monotonic() + _BACK_LIMIT_S
    async with httpx.AsyncClient(base_url=url, timeout=_BACK_LIMIT_S) as client:
        while time.monotonic() < deadline:
            answer = await client.post(PREDICT, json=body)
            if answer.status_code == 200 and answer.json()["text"] == expected:
                await asyncio.sleep(_QUIET_S)
                return _State(usage_by_role(truss.pid)["truss"], _processes(truss))
            await asyncio.sleep(0.5)
    result.fault(f"the server sent no whole answer within {_BACK_LIMIT_S:g} s after the chaos.")
    return None


def _processes(truss: Target) -> Counter[str]:
    return Counter(descendants(truss.pid).values())


def _compare(result: CaseResult, before: _State, after: _State) -> None:
    """Report the growth of Truss's server."""
    more_mib = (after.truss.rss_bytes - before.truss.rss_bytes) / 2**20
    more_fds = after.truss.fds - before.truss.fds
    more_threads = after.truss.threads - before.truss.threads
    result.find(
        f"Truss's server when idle, before and after: {before.truss.rss_bytes / 2**20:.0f} MiB "
        f"({more_mib:+.1f}), {before.truss.fds} open files ({more_fds:+d}), "
        f"{before.truss.threads} threads ({more_threads:+d}), "
        f"{before.processes.total()} processes below `serve` "
        f"({after.processes.total() - before.processes.total():+d})."
    )
    if more_mib > _MORE_MIB or more_fds > _MORE_FDS or more_threads > _MORE_THREADS:
        result.fault("Truss's server has grown.")
    if before.processes != after.processes:
        result.fault(f"processes before: {dict(before.processes)}, after: {dict(after.processes)}.")


def _fill(result: CaseResult, tally: Tally) -> None:
    """Add a row per kind of client, and one for all."""
    kinds = sorted({kind for kind, _ in tally.ends})
    for client, chosen in [*((kind, {kind}) for kind in kinds), ("all", set(kinds))]:
        ends: Counter[str] = Counter()
        for (kind, end), count in tally.ends.items():
            if kind in chosen:
                ends[end] += count
        refused = [f"{count} × {end}" for end, count in sorted(ends.items()) if end.isdigit()]
        result.add(
            client=client,
            whole=float(ends[WHOLE]),
            cut=float(ends[CUT]),
            left=float(ends[LEFT]),
            refused=", ".join(refused) or "0",
            **{fault: float(ends[fault]) for fault in FAULTS},
        )
    result.find(f"The longest request, without slow readers, took {tally.longest_s:.1f} s.")
    for fault in FAULTS:
        if count := tally.count(fault):
            result.fault(f"{count} requests ended {fault}.")
    for example in tally.examples:
        result.find(example)
    if not tally.count(WHOLE):
        result.fault("no answer was whole.")
