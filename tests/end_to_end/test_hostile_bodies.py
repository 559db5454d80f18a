"""Bodies of disproportionate cost: each error names the field and the limit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from benchmarks.hostile.attacks import (
    AT_ONCE,
    MOMENTS,
    REFUSED_UNDER_LOAD,
    Reply,
    leave_at_once,
    post,
    post_at_once,
)
from benchmarks.hostile.body import LIMIT_BYTES, HostileBody
from benchmarks.hostile.corpus import CORPUS
from benchmarks.hostile.generated_bodies import generated
from benchmarks.hostile.tool_model import write_tool_model
from benchmarks.servers.configuration import in_own_server
from tests.fakes.triton import FAKE_ENGINE
from tests.support.truss_process import Served
from tests.support.waiting import settles

from trtllm_truss.settings.model import Serving

PLAIN = [body for body in CORPUS if not body.needs_tools]
WITH_TOOLS = [body for body in CORPUS if body.needs_tools]
OF_THE_EXAMPLE = {
    *("tool described in 4 MB", "regex of expensive tokens", "regex of 64 kB of options"),
    *("ambiguous grammar", "4,096 items of reasoning", "forced call of 16 tools, 4 choices"),
    "32 prompts, a strict schema of 1,000 fields",
    "256 prompts of 2,000 ids, log probabilities",
}
"""Bodies whose verdict needs guides, log probabilities or a template without tools.

In every run the server of a compiled stand-in, which generates for nothing, refuses all others.
"""

_MEMORY_MARGIN_BYTES = 100 << 20
_PAGE_BYTES = 4096


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have tools behind our own server too with `--servers all`, as `server` is."""
    if "tool_server" in metafunc.fixturenames:
        own = ("own",) if metafunc.config.getoption("--servers") == "all" else ()
        metafunc.parametrize("tool_server", ("truss", *own), indirect=True, scope="module")


@pytest.fixture(scope="module")
def tool_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A server whose template has tools, and whose tokenizer has 1,000 special tokens."""
    config = write_tool_model(tmp_path_factory.mktemp("tools"))
    served = Served(in_own_server(config) if request.param == "own" else config, FAKE_ENGINE)
    try:
        yield served.wait_until_ready()
        assert served.end() == 0, served.log
    finally:
        if served.process.poll() is None:
            served.process.kill()


def resident_bytes(server: Served) -> int:
    """Return the memory of Truss's server and of Triton."""
    pages = 0
    for pid in server.processes():
        with suppress(OSError):  # the check of a guide has finished
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * _PAGE_BYTES


def check_still_serves(server: Served) -> None:
    answer = server.post({"prompt": "Hi", "max_tokens": 2, "stream": False})
    assert answer.status_code == 200, answer.text


def check_verdict(hostile: HostileBody, reply: Reply) -> None:
    assert reply.status == hostile.status, reply.content[:500]
    if hostile.status != 200:
        assert len(reply.content) < 2000
        error = json.loads(reply.content)["error"]
        message = error if isinstance(error, str) else error["message"]
        assert all(part in message for part in hostile.message), message


def check_at_once(server: Served, bodies: Sequence[HostileBody]) -> None:
    """Send bodies at the same time; overload is a verdict too."""
    replies = post_at_once(server.port, [(body.route, body.make()) for body in bodies])
    for body, reply in zip(bodies, replies, strict=True):
        if reply.status not in REFUSED_UNDER_LOAD:
            check_verdict(body, reply)
    check_still_serves(server)


def check_leaving(server: Served, bodies: Sequence[HostileBody]) -> None:
    """Leave each request once, at a random byte."""
    leave_at_once(
        server.port,
        (
            (body.route, body.make(), MOMENTS[number % len(MOMENTS)], body.name)
            for number, body in enumerate(bodies)
        ),
    )
    assert settles(lambda: server.running() == 0)
    check_still_serves(server)


def test_the_limit_is_the_default() -> None:
    assert Serving().max_body_bytes == LIMIT_BYTES


def test_the_corpus_is_as_large_as_it_should_be() -> None:
    assert len({body.name for body in CORPUS}) == len(CORPUS) >= 60


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(body, marks=[] if body.name in OF_THE_EXAMPLE else pytest.mark.thorough)
        for body in PLAIN
    ],
    ids=lambda body: body.name,
)
def test_a_hostile_body_is_refused_by_field_and_limit(server: Served, hostile: HostileBody) -> None:
    check_verdict(hostile, post(server.port, hostile.route, hostile.make()))
    check_still_serves(server)


@pytest.mark.parametrize(
    "hostile",
    [*WITH_TOOLS, *(body for body in PLAIN if body.name not in OF_THE_EXAMPLE)],
    ids=lambda body: body.name,
)
def test_a_hostile_body_is_refused_beside_tools(tool_server: Served, hostile: HostileBody) -> None:
    check_verdict(hostile, post(tool_server.port, hostile.route, hostile.make()))
    check_still_serves(tool_server)


def test_twelve_different_bodies_at_once(server: Served) -> None:
    check_at_once(server, random.Random(11).sample(PLAIN, AT_ONCE))


def test_twelve_bodies_for_tools_at_once(tool_server: Served) -> None:
    check_at_once(tool_server, random.Random(11).choices(WITH_TOOLS, k=AT_ONCE))


@pytest.mark.parametrize("name", ["message of control tokens", "guided_json of 2.6 million arrays"])
def test_twelve_equal_bodies_at_once(server: Served, name: str) -> None:
    check_at_once(server, [next(body for body in CORPUS if body.name == name)] * AT_ONCE)


@pytest.mark.thorough
def test_clients_leave_at_a_random_byte(server: Served) -> None:
    check_leaving(server, PLAIN)


def test_clients_of_tools_leave_at_a_random_byte(tool_server: Served) -> None:
    check_leaving(tool_server, WITH_TOOLS)


def test_generated_bodies_are_refused_and_leave_no_memory(server: Served) -> None:
    check_still_serves(server)
    before = resident_bytes(server)
    statuses = set()
    for route, body in generated(60, seed=11):
        reply = post(server.port, route, body)
        assert reply.status == 200 or 400 <= reply.status < 500, reply.content[:300]
        statuses.add(reply.status)
    assert 400 in statuses
    check_still_serves(server)
    most = before + _MEMORY_MARGIN_BYTES
    assert settles(lambda: resident_bytes(server) <= most), (before, resident_bytes(server))
