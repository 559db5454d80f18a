"""The clients of the soak: each reads whole answers, leaves, or checks a verdict."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from benchmarks.chaos.clients import LEFT, WHOLE, WRONG, Client, Tally
from benchmarks.chaos.soak_clients import CALLS, Attacker, Guest, Leaver
from benchmarks.hostile.body import PREDICT, HostileBody, dumps
from tests.support.truss_process import Served

LONG = HostileBody("a long prompt", PREDICT, dumps(prompt="1 " * 50_000), ())


def ends_of_one(client: Client) -> dict[tuple[str, str], int]:
    tally = Tally()

    async def visit() -> None:
        over = asyncio.Event()
        running = asyncio.create_task(client.run(tally, over))
        await asyncio.sleep(0)
        over.set()
        await running

    asyncio.run(visit())
    assert not [example for example in tally.examples if "wrong" not in example], tally.examples
    return dict(tally.ends)


def url_of(server: Served) -> str:
    return f"http://127.0.0.1:{server.port}"


IN_EVERY_RUN = ("predict", "chat tools", "responses")
EACH_KIND = [
    pytest.param(kind, marks=[] if kind in IN_EVERY_RUN else pytest.mark.thorough) for kind in CALLS
]
"""Of the others, the modules of this folder read answers of each protocol."""


@pytest.fixture(scope="module")
def guests(
    server: Served, request: pytest.FixtureRequest
) -> dict[str, Future[dict[tuple[str, str], int]]]:
    """The ends of a guest of each kind, all at once: they share the engine's steps."""
    kinds = CALLS if request.config.getoption("--engines") == "all" else IN_EVERY_RUN
    with ThreadPoolExecutor(len(kinds)) as pool:
        return {
            kind: pool.submit(ends_of_one, Guest(kind, url_of(server), random.Random(5)))
            for kind in kinds
        }


@pytest.mark.parametrize("kind", EACH_KIND)
def test_a_guest_reads_a_whole_answer(
    guests: dict[str, Future[dict[tuple[str, str], int]]], kind: str
) -> None:
    assert guests[kind].result() == {(kind, WHOLE): 1}


def test_a_leaver_leaves(server: Served) -> None:
    leaver = Leaver(url_of(server), random.Random(5), [LONG])
    assert ends_of_one(leaver) == {("leavers", LEFT): 1}


@pytest.mark.parametrize(("expected", "end"), [(400, "400"), (413, WRONG)])
def test_an_attacker_checks_the_verdict(server: Served, expected: int, end: str) -> None:
    body = HostileBody(LONG.name, LONG.route, LONG.make, (), expected)
    attacker = Attacker(url_of(server), random.Random(5), [body])
    assert ends_of_one(attacker) == {("hostile bodies", end): 1}
