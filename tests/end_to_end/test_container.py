"""The command of Truss's image, as its user and as process 1, without Docker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.containers import (
    USER,
    Container,
    documented_request,
    require_namespaces,
    write_context,
)
from tests.support.paths import EXAMPLE
from tests.support.waiting import settles

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def build_context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_namespaces()
    return write_context(tmp_path_factory.mktemp("context") / "context", EXAMPLE.parent)


@pytest.fixture
def start(build_context: Path, tmp_path: Path) -> Iterator[Callable[[], Container]]:
    """Start Truss's server by the command of its images."""
    started: list[Container] = []

    def begin() -> Container:
        command, programs = "/usr/bin/python3 /app/main.py", {"PATH": "/venv/bin:/usr/bin:/bin"}
        started.append(Container(tmp_path, build_context, command, programs))
        return started[0]

    yield begin
    for container in started:
        container.process.kill()  # and with it its namespaces
        container.process.wait()


def test_the_commands_of_the_page_reach_a_streamed_answer(
    start: Callable[[], Container],
) -> None:
    container = start()
    assert settles(lambda: "[1/4]" in container.log), container.log
    status = Path(f"/proc/{container.pid}/status").read_text()
    assert re.search(r"^NSpid:.*\t1$", status, re.MULTILINE)
    assert re.search(rf"^Uid:\t{USER}\t{USER}", status, re.MULTILINE)
    mounts = Path(f"/proc/{container.pid}/mountinfo").read_text()
    assert re.search(r"^\d+ \d+ \S+ / / ro\b", mounts, re.MULTILINE), mounts
    answer = container.run(*documented_request())
    assert len(answer.split()) > 20, container.log
    get = ("curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}")
    for route in ("", "v1/models/model", "v1/models/model/loaded", "metrics/"):
        assert container.run(*get, f"localhost:8080/{route}") == "200", route
    assert container.run(*get, "localhost:8080/%1b%5b2J%0aready") == "404"
    assert settles(lambda: "GET /␛[2J␊ready HTTP" in container.log), container.log
    assert "\x1b" not in container.log
    container.end()
    assert "Finished server process [1]" in container.log


def test_a_signal_during_the_load_ends_process_1(start: Callable[[], Container]) -> None:
    container = start()
    assert settles(lambda: "[4/4] triton …" in container.log), container.log
    container.end()
    assert "ready after" not in container.log
