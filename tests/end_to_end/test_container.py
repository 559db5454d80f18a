"""The command of the image, as its user and as process 1, without Docker.

It takes a start for each test; `make engines` runs them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from tests.support.paths import EXAMPLE, PROGRAMS, ROOT
from tests.support.waiting import PATIENCE_S, settles

from trtllm_workbench.scaffold.documents import SLIM, own_server_section

TRUSS = Path(sys.executable).with_name("truss")
USER = 60000
NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--net", "--kill-child"]


class Container:
    """A server in namespaces of its own.

    Attributes:
        log: everything that it prints.
    """

    def __init__(self, folder: Path, context: Path, command: str) -> None:
        root = folder / "root"
        root.mkdir()
        script = str(PROGRAMS / "container.sh")
        self._output = folder / "log"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*NAMESPACES, "bash", script, root, context, sys.prefix, sys.base_prefix, command],
                stdout=output,
                stderr=output,
            )

    @property
    def log(self) -> str:
        return self._output.read_text()

    @property
    def pid(self) -> int:
        """The server's process id outside."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        (pid,) = children.read_text().split()
        return int(pid)

    def run(self, *command: str) -> str:
        inside = ["nsenter", "--net", "--target", str(self.pid), *command]
        return subprocess.run(inside, capture_output=True, text=True, timeout=PATIENCE_S).stdout

    def end(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        self.process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def build(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path], Path]:
    """Write a Truss's build context, as its `docker build` gets it."""
    if request.config.getoption("--engines") != "all":
        pytest.skip("runs with --engines all")
    trial = [*NAMESPACES, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if os.geteuid() != 0 or subprocess.run(trial, capture_output=True).returncode:
        pytest.skip("needs the right to create namespaces")

    def write(truss: Path) -> Path:
        folder = tmp_path_factory.mktemp("context") / "context"
        environment = {"TRUSS_NO_UPDATE_CHECK": "1", "BT_USE_NON_ROOT_USER": "1", SLIM: "true"}
        subprocess.run(
            [TRUSS, "image", "build-context", "--non-interactive", folder, truss],
            env={**os.environ, **environment},
            check=True,
            capture_output=True,
        )
        return folder

    return write


@pytest.fixture(scope="module")
def build_context(build: Callable[[Path], Path]) -> Path:
    return build(EXAMPLE.parent)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[Path, str], Container]]:
    started: list[Container] = []

    def begin(context: Path, command: str) -> Container:
        started.append(Container(tmp_path, context, command))
        return started[0]

    yield begin
    for container in started:
        container.process.kill()  # and with it its namespaces
        container.process.wait()


@pytest.fixture
def start(build_context: Path, run: Callable[[Path, str], Container]) -> Callable[[], Container]:
    """Start Truss's server by the command of its images."""
    return lambda: run(build_context, "/usr/bin/python3 /app/main.py")


def documented_request() -> list[str]:
    """Return the last of the five commands of docs/docker.md."""
    page = (ROOT / "docs/docker.md").read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^\$ (curl --retry .*)$", page, re.MULTILINE)
    return shlex.split(command)


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


def test_our_own_server_runs_where_another_python_is_first(
    build: Callable[[Path], Path], run: Callable[[Path, str], Container], tmp_path: Path
) -> None:
    truss = tmp_path / "truss"
    shutil.copytree(EXAMPLE.parent, truss)
    config = yaml.safe_load(EXAMPLE.read_text())
    config["external_package_dirs"] = [str(ROOT / "packages")]
    config["docker_server"] = own_server_section("/usr/bin/python3")
    (truss / "config.yaml").write_text(yaml.safe_dump(config))
    context = build(truss)
    (command,) = re.findall(r'^CMD \["(.*)"\]$', (context / "Dockerfile").read_text(), re.MULTILINE)
    container = run(context, command)
    assert settles(lambda: "[1/4]" in container.log), container.log
    request = [word.replace("8080", "8081") for word in documented_request()]
    assert len(container.run(*request).split()) > 20, container.log
    container.end()


def test_a_signal_during_the_load_ends_process_1(start: Callable[[], Container]) -> None:
    container = start()
    assert settles(lambda: "[4/4] triton …" in container.log), container.log
    container.end()
    assert "ready after" not in container.log
