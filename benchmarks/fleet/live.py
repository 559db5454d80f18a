"""Two replicas on this machine's CPU behind a router of another project.

    python -m benchmarks.fleet.live                       # serve until Ctrl-C
    python -m benchmarks.fleet.live --measure --docs docs
    python -m benchmarks.fleet.live --kills 10            # ten minutes

`make fleet` installs the routers.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tools.docs.tables import fill, table

from benchmarks.fleet.processes import (
    BATCH,
    HEALTH_S,
    MODEL,
    PATIENCE_S,
    Outcome,
    Replica,
    ask,
    nginx,
    router,
    two_replicas,
)
from trtllm_truss.cli.common import unwinding

_NOTICE_S = 5 * HEALTH_S
"""Routers drop a replica after three failed checks, each of which takes up to its interval."""

_CONVERSATIONS = 8
_WORDS = 120
_CHAOS_CLIENTS = BATCH
"""The limit of one replica, so that none is refused while the other one starts."""

_CHAOS_TOKENS = 32
_REQUESTS_PER_MINUTE = 100
_LONG_TOKENS = 120


def shown(outcomes: Sequence[Outcome]) -> str:
    """Return "3 whole, 1 error", counting visible errors before any output separately."""
    names = Counter(
        f"{each.status or 'no'} status"
        if each.kind == "error" and each.status != 200
        else each.kind
        for each in outcomes
    )
    return ", ".join(f"{count} {name}" for name, count in sorted(names.items()))


class Streams:
    """Long streams in threads.

    Args:
        url: the router's.
        count: how many.
        prompt: its words.
    """

    def __init__(self, url: str, count: int, prompt: str = "Tell me a story") -> None:
        self._begun = threading.Semaphore(0)
        self._pool = ThreadPoolExecutor(count)
        self._count = count
        self._results: list[Future[Outcome]] = [
            self._pool.submit(self._run, url, f"{number} {prompt}") for number in range(count)
        ]

    def _run(self, url: str, prompt: str) -> Outcome:
        is_first = [True]

        def on_piece() -> None:
            if is_first.pop() if is_first else False:
                self._begun.release()

        return ask(url, prompt, _LONG_TOKENS, on_piece)

    def wait_until_begun(self) -> None:
        for _ in range(self._count):
            self._begun.acquire(timeout=PATIENCE_S)

    @property
    def unfinished(self) -> int:
        return sum(not result.done() for result in self._results)

    def outcomes(self) -> list[Outcome]:
        found = [result.result() for result in self._results]
        self._pool.shutdown()
        return found


def prefixes(url: str) -> str:
    """Return how soon second turns get a response, and how many find their first one cached."""
    firsts, cached = [], 0
    draw = random.Random(7)
    prompts = [
        " ".join(f"word{draw.randrange(10**6)}" for _ in range(_WORDS // 3))
        for _ in range(_CONVERSATIONS)
    ]
    for prompt in prompts:
        ask(url, prompt, 1)
    draw.shuffle(prompts)
    for prompt in prompts:
        outcome = ask(url, f"{prompt} And?", 1)
        firsts.append(outcome.first_s)
        cached += outcome.cached_tokens > 100
    return f"{median(firsts) * 1000:,.0f} ms, {cached} of {len(prompts)}"


def used_again(url: str, replica: Replica) -> str:
    """Send requests, more than the other replica takes, until this one gets some of them.

    Returns:
        Text of a cell without any.
    """
    deadline_s, before = time.monotonic() + PATIENCE_S, replica.finished()
    while replica.finished() == before:
        if time.monotonic() > deadline_s:
            return f"; not used again within {PATIENCE_S:.0f} s"
        with ThreadPoolExecutor(2 * BATCH) as pool:
            for number in range(2 * BATCH):
                pool.submit(ask, url, f"{number} again", 1)
        time.sleep(1)
    return ""


def harmed(
    url: str,
    replicas: Sequence[Replica],
    harm: Callable[[Replica], None],
    *,
    begun: bool = True,
) -> str:
    """Return the outcomes of four streams, one on a harmed replica, and of four new ones."""
    prompt = "Tell me a story" if begun else " ".join(f"word{n}" for n in range(_WORDS))
    streams = Streams(url, BATCH, prompt)
    if begun:
        streams.wait_until_begun()
    else:
        time.sleep(0.3)
    victim = max(replicas, key=Replica.running)
    running = victim.running()
    harm(victim)
    after = [ask(url, "Hi", 4) for _ in range(BATCH)]
    found = f"{running} there: {shown(streams.outcomes())}; then {shown(after)}"
    victim.revive()
    return found + used_again(url, victim)


def full(url: str, replicas: Sequence[Replica]) -> str:
    """Return the outcomes of requests while one replica refuses all, and while both do."""
    streams = Streams(replicas[0].url, BATCH)
    streams.wait_until_begun()
    one = [ask(url, "Hi", 1) for _ in range(BATCH)]
    more = Streams(replicas[1].url, BATCH)
    more.wait_until_begun()
    both = [ask(url, "Hi", 1) for _ in range(2)]
    streams.outcomes()
    more.outcomes()
    time.sleep(1)
    after = [ask(url, "Hi", 1) for _ in range(2)]
    return f"{shown(one)}; both full: {shown(both)}; then {shown(after)}"


def hung(url: str, replicas: Sequence[Replica]) -> str:
    """Return the outcomes of requests sent as one replica stops, and of later ones."""
    with replicas[0].hung():
        streams = Streams(url, BATCH)
        time.sleep(_NOTICE_S)
        waiting = streams.unfinished
        after = [ask(url, "Hi", 4) for _ in range(BATCH)]
    found = f"{shown(streams.outcomes())}, {waiting} of them only once it went on; "
    return f"{found}after {_NOTICE_S} s {shown(after)}{used_again(url, replicas[0])}"


_ROUTERS = [
    f"{program}:{policy}"
    for program in ("smg", "vllm-router")
    for policy in ("round_robin", "cache_aware")
]
_WITHOUT = dict.fromkeys(("nginx", *_ROUTERS[::2]), ", which knows no prefixes")
_COLUMNS = (
    "router",
    "second turn p50, prefixes found",
    "kill -9 after the first byte",
    "kill -9 before it",
    "SIGTERM",
    "full",
    "hung (SIGSTOP)",
)


def measure(names: Sequence[str], folder: Path, replicas: Sequence[Replica]) -> str:
    rows = []
    for name in names:
        with router(name, folder, replicas) as url:
            cells = [f"`{name}`{_WITHOUT.get(name, '')}"]
            steps: list[Callable[[], str]] = [
                lambda: prefixes(url),
                lambda: harmed(url, replicas, Replica.kill),
                lambda: harmed(url, replicas, Replica.kill, begun=False),
                lambda: harmed(url, replicas, Replica.drain),
                lambda: full(url, replicas),
                lambda: hung(url, replicas),
            ]
            for step in steps:
                cells.append(step())
                print(f"{cells[0]}: {_COLUMNS[len(cells) - 1]}: {cells[-1]}", flush=True)
        rows.append(cells)
    return table(list(_COLUMNS), rows)


@dataclass(frozen=True)
class Kills:
    """The outcomes of requests while one replica after another was killed at random."""

    outcomes: list[Outcome]
    kills: int
    total_s: float

    @property
    def faults(self) -> list[str]:
        """Answers that are truncated or hang, and errors before any output: none may occur."""
        kinds = Counter(each.kind for each in self.outcomes)
        early = [each for each in self.outcomes if each.kind == "error" and each.status != 200]
        found = [f"{kinds[kind]} {kind}" for kind in ("short", "hung") if kinds[kind]]
        found += [f"before the answer: {shown(early)}"] if early else []
        return found + ([] if self.kills and kinds["whole"] else ["nothing was shown"])

    def __str__(self) -> str:
        minutes = self.total_s / 60
        verdict = "; ".join(self.faults) or "none short, none hung, no error before an answer began"
        return (
            f"{len(self.outcomes):,} requests in {minutes:.1f} minutes with {self.kills} kills: "
            f"{shown(self.outcomes)}. {verdict}"
        )


def random_kills(
    url: str, replicas: Sequence[Replica], minutes: float, requests: int, seed: int
) -> Kills:
    """Send requests, spread over the minutes, while one busy replica after another is killed."""
    draw, begun_s = random.Random(seed), time.monotonic()
    ended = threading.Event()
    numbers = iter(range(requests))
    lock = threading.Lock()

    def client() -> list[Outcome]:
        found: list[Outcome] = []
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return found
            time.sleep(max(0.0, begun_s + 60 * minutes * number / requests - time.monotonic()))
            found.append(ask(url, f"{number}: Hi", _CHAOS_TOKENS))

    def kill() -> int:
        kills = 0
        while not ended.wait(draw.uniform(5, 20)):
            while not (busy := [each for each in replicas if each.running()]):
                if ended.wait(0.02):
                    return kills
            victim = draw.choice(busy)
            victim.kill()
            kills += 1
            victim.revive()
            ended.wait(2 * HEALTH_S)  # the router must see it
        return kills

    with ThreadPoolExecutor(_CHAOS_CLIENTS + 1) as pool:
        killer = pool.submit(kill)
        clients = [pool.submit(client) for _ in range(_CHAOS_CLIENTS)]
        try:
            outcomes = [outcome for each in clients for outcome in each.result()]
            total_s = time.monotonic() - begun_s
        finally:
            ended.set()
        return Kills(outcomes, killer.result(), total_s)


def main() -> int:
    """Run the command; return 1 if a kill had a forbidden effect."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.live", description=__doc__)
    parser.add_argument("--router", action="append", metavar="NAME[:POLICY]")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--measure", action="store_true", help="harm the replicas in every way")
    parser.add_argument("--kills", type=float, metavar="MINUTES", help="kill replicas at random")
    parser.add_argument(
        "--requests",
        type=int,
        help=f"during the kills (default: {_REQUESTS_PER_MINUTE} for each minute)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write the table into fleet.md")
    options = parser.parse_args()
    names = options.router or [*_ROUTERS, *(["nginx"] if nginx() else [])]
    with ExitStack() as stack:
        stack.enter_context(unwinding())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-")))
        replicas = stack.enter_context(two_replicas(folder))
        if options.measure:
            text = measure(names, folder, replicas)
            print(text)
            if options.docs is not None:
                page = options.docs / "fleet.md"
                page.write_text(fill(page.read_text(), {"fleet-live": text}), encoding="utf-8")
            return 0
        name = options.router[0] if options.router else "smg:cache_aware"
        port = 0 if options.kills else options.port
        url = stack.enter_context(router(name, folder, replicas, port))
        if options.kills:
            requests = options.requests or round(_REQUESTS_PER_MINUTE * options.kills)
            found = random_kills(url, replicas, options.kills, requests, options.seed)
            print(found)
            return int(bool(found.faults))
        print(f"two replicas, {replicas[0].url} and {replicas[1].url}, behind {name}: {url}")
        print(
            f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d "
            f'\'{{"model": "{MODEL}", "stream": true, '
            '"messages": [{"role": "user", "content": "Hi"}]}\''
        )
        with suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
