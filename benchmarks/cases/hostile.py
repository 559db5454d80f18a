"""The cost of hostile bodies for another client, in three modes."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine.backend import make_backend
from benchmarks.hostile.attacks import (
    AT_ONCE,
    MOMENTS,
    REFUSED_UNDER_LOAD,
    leave_at_once,
    post,
    post_at_once,
)
from benchmarks.hostile.body import CHAT, HostileBody, chat
from benchmarks.hostile.corpus import CORPUS
from benchmarks.hostile.costs import (
    MAX_KEPT_MIB,
    MAX_PEAK_MIB,
    MAX_WAIT_MS,
    SETTLE_S,
    Cost,
    Gauge,
)
from benchmarks.hostile.generated_bodies import generated
from benchmarks.hostile.neighbour import neighbour_of
from benchmarks.hostile.tool_model import write_tool_model
from benchmarks.hostile.warm_up import warm_up
from benchmarks.options import Options
from benchmarks.paths import EXAMPLE
from benchmarks.result import CaseResult, Column
from benchmarks.servers.configuration import in_own_server, write_config
from benchmarks.servers.target import Target
from benchmarks.servers.truss import serve

_GENERATED = 500
_SEED = 11
_USUAL_S = 10.0
_MIXED_ROUNDS = 10
_GUIDES = 128
_GOOD = json.dumps({"prompt": "The sky is", "max_tokens": 4, "stream": False}).encode()
_QUICK_BODIES = 3
_COLUMNS = [
    Column("server", "server"),
    Column("mode", "mode"),
    Column("attacks", "attacks"),
    Column("statuses", "statuses"),
    Column("usual_max_ms", "usual max ms"),
    Column("wait_ms", "beyond it, max ms"),
    Column("peak_mib", "peak MiB"),
    Column("kept_mib", "RSS kept MiB"),
    Column("short", "fell short"),
]
_TEXT = f"""\
A neighbour asks for four tokens again and again while hostile bodies are sent to the same server:
one at a time; {AT_ONCE} at once, of the same body and mixed; and by clients that leave at a random
byte while they send, wait or receive. “example” is `examples/smollm2-135m-cpu`; “tools” is a
stand-in engine with a chat template for tools and reasoning and 1,000 special tokens. At the end
the example gets {_GUIDES} large guides that it accepts, and generated bodies. A wait is the whole
time of one of the neighbour's answers that overlaps with an attack. “Peak” is the most that Truss's
server held. “RSS kept” is what all processes hold {SETTLE_S:g} seconds after the last attack of a
mode, beyond what they held before the first. An attack is held if the neighbour waits at most
{MAX_WAIT_MS:g} ms longer than usual, the peak is at most {MAX_PEAK_MIB:g} MiB, at most
{MAX_KEPT_MIB:g} MiB are kept, every verdict is the expected one (at once also 429 or 503), and a
good request works afterwards. Honest prompts fill the KV cache beforehand, which is allocated as it
is used, and one guide starts the process that checks guides."""


@dataclass(frozen=True, slots=True)
class _Attack:
    """One attack: its name, a function that sends it, and the expected statuses."""

    name: str
    send: Callable[[], Iterable[int]]
    expected: frozenset[int] = frozenset()


def run(options: Options) -> CaseResult:
    """Measure the corpus on two servers, and generated bodies on the first."""
    name, title = "hostile", "The wait of another client beside hostile bodies"
    if options.server == "own":
        name, title = f"{name}@own", f"{title}, in our own server"
    result = CaseResult(name, title, _TEXT, _COLUMNS).begin()
    options.work.mkdir(parents=True, exist_ok=True)
    bodies = [body for body in CORPUS if options.bodies in body.name]
    example = [body for body in bodies if not body.needs_tools]
    tools = [body for body in bodies if body.needs_tools]
    rounds = 1 if options.quick else _MIXED_ROUNDS
    if options.quick:
        example, tools = example[:_QUICK_BODIES], tools[:_QUICK_BODIES]
    if example:
        config = write_config(options.work / "hostile.yaml", EXAMPLE)
        with _site("example", config, None, options, result) as site:
            site.attack(example, rounds)
            if not options.bodies:
                site.measure("accepted guides", [_guides(site.port, options.quick)])
                site.measure("generated", _generated(site.port, options.requests or _GENERATED))
    if tools:
        config = write_tool_model(options.work / "hostile-tools")
        with _site("tools", config, make_backend(options.work).folder, options, result) as site:
            site.attack(tools, rounds)
    return result


@contextmanager
def _site(
    name: str, config: Path, backends: Path | None, options: Options, result: CaseResult
) -> Iterator[_Site]:
    """Serve a configuration with a neighbour during the block."""
    if options.server == "own":
        config = in_own_server(config)
    with serve(config, backends) as target, neighbour_of(target) as neighbour:
        warm_up(target, guides=backends is None)
        gauge = Gauge(target, neighbour, options.seconds or _USUAL_S)
        yield _Site(name, target, gauge, result)
        result.find(f"{name}: {neighbour.failed} of the neighbour's answers were not 200.")


class _Site:
    """One server under attack.

    Attributes:
        port: port of the server.
    """

    def __init__(self, name: str, target: Target, gauge: Gauge, result: CaseResult) -> None:
        self.port = target.port
        self._name = name
        self._route = target.path
        self._gauge = gauge
        self._result = result

    def attack(self, bodies: Sequence[HostileBody], rounds: int) -> None:
        """Send bodies in all modes, with this many rounds of mixed ones."""
        for mode, attacks in _attacks(self.port, bodies, rounds).items():
            self.measure(mode, attacks)

    def measure(self, mode: str, attacks: Iterable[_Attack]) -> None:
        """Run attacks one after the other, and add a row for all of them."""
        before = self._gauge.rss_mib()
        costs = []
        for attack in attacks:
            cost = self._gauge.measure(attack.name, attack.send)
            costs.append(cost)
            if missed := cost.shortfalls + self._wrong(attack, cost):
                self._result.find(
                    f"Fell short: {self._name}, {mode}, {cost.name}: {', '.join(missed)}."
                )
        time.sleep(SETTLE_S)
        short = [cost for cost in costs if cost.shortfalls]
        statuses = sum((cost.statuses for cost in costs), Counter[int]())
        worst = max(costs, key=lambda cost: cost.wait_ms)
        highest = max(costs, key=lambda cost: cost.peak_mib)
        self._result.add(
            server=self._name,
            mode=mode,
            attacks=float(len(costs)),
            statuses=" ".join(f"{status}:{times}" for status, times in sorted(statuses.items())),
            usual_max_ms=max(self._gauge.usual_ms),
            wait_ms=worst.wait_ms,
            peak_mib=highest.peak_mib,
            kept_mib=self._gauge.rss_mib() - before,
            short=float(len(short)),
        )
        self._result.find(
            f"{self._name}, {mode}: the longest wait is {worst.wait_ms:.0f} ms beyond the longest "
            f"usual one ({worst.name}); the highest peak is {highest.peak_mib:.0f} MiB "
            f"({highest.name})."
        )

    def _wrong(self, attack: _Attack, cost: Cost) -> list[str]:
        """Check the verdicts, and that the server still works; describe what is wrong."""
        other = set(cost.statuses) - attack.expected if attack.expected else set()
        wrong = [f"status {status}" for status in sorted(other)]
        good = post(self.port, self._route, _GOOD)
        if good.status != 200:
            wrong.append(f"then {good.status} for a good request")
        if wrong:
            self._result.fault(f"{self._name}, {attack.name}: {', '.join(wrong)}.")
        return wrong


def _attacks(port: int, bodies: Sequence[HostileBody], rounds: int) -> dict[str, list[_Attack]]:
    """Return the attacks of each mode."""

    def alone(body: HostileBody) -> _Attack:
        return _Attack(
            body.name,
            lambda: [post(port, body.route, body.make()).status],
            frozenset({body.status}),
        )

    def same(body: HostileBody) -> _Attack:
        return _Attack(
            body.name,
            lambda: _at_once(port, [(body.route, body.make())] * AT_ONCE),
            frozenset({body.status, *REFUSED_UNDER_LOAD}),
        )

    def left(body: HostileBody) -> _Attack:
        return _Attack(body.name, lambda: _left(port, body))

    def mixed(number: int) -> _Attack:
        picked = random.Random(f"{_SEED} {number}").choices(bodies, k=AT_ONCE)
        return _Attack(
            f"round {number + 1}",
            lambda: _at_once(port, [(body.route, body.make()) for body in picked]),
            frozenset({*(body.status for body in picked), *REFUSED_UNDER_LOAD}),
        )

    return {
        "one at a time": [alone(body) for body in bodies],
        f"{AT_ONCE} at once": [same(body) for body in bodies],
        f"{AT_ONCE} mixed": [mixed(number) for number in range(rounds)],
        "leaving": [left(body) for body in bodies],
    }


def _at_once(port: int, requests: Sequence[tuple[str, bytes]]) -> list[int]:
    return [reply.status for reply in post_at_once(port, requests)]


def _left(port: int, body: HostileBody) -> list[int]:
    made = body.make()
    leave_at_once(
        port,
        [
            (body.route, made, MOMENTS[number % len(MOMENTS)], f"{_SEED} {body.name} {number}")
            for number in range(AT_ONCE)
        ],
    )
    return []


def _guides(port: int, is_quick: bool) -> _Attack:
    """Have three clients send large guides that all differ, to be compiled."""
    bodies = [
        chat(response_format={"type": "regex", "regex": f"(a|b{n}(c|d){{1,9}}){{1,4000}}"})()
        for n in range(3 if is_quick else _GUIDES)
    ]

    def send() -> list[int]:
        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(lambda body: post(port, CHAT, body).status, bodies))

    name = f"{len(bodies)} guides of 7 MB"
    return _Attack(name, send, frozenset({200, *REFUSED_UNDER_LOAD}))


def _generated(port: int, count: int) -> Iterator[_Attack]:
    for number, (route, body) in enumerate(generated(count, _SEED)):
        yield _Attack(f"{route} {number}", lambda: [post(port, route, body).status])  # noqa: B023
