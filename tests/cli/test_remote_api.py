"""`truss predict`, unmodified, against `trtllm-truss serve --remote-api`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.fakes.triton import FAKE_ENGINE, config_for, write_engine
from tests.support.paths import EXAMPLE
from tests.support.truss_process import Served, alive, free_port, listening_addresses
from tests.support.waiting import settles
from tests.support.warm_python import run_warm, trussrc

from trtllm_workbench.cli.main import main

TRUSS = Path(sys.executable).with_name("truss")
FOLDER = EXAMPLE.parent
GREEDY = {"prompt": "The capital of France is", "max_tokens": 24, "top_k": 1}


@pytest.fixture(scope="module")
def remote_api() -> int:
    """The port of the remote API."""
    return free_port()


@pytest.fixture(scope="module")
def server(remote_api: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = config_for(write_engine(tmp_path_factory.mktemp("engine"), step_ms=20))
    served = Served(config, FAKE_ENGINE, ["--remote-api", str(remote_api)])
    try:
        yield served.wait_until_ready()
        pids = served.processes()
        assert served.end() == 0, served.log
        assert not alive(pids)
    finally:
        if served.process.poll() is None:
            served.end()


@pytest.fixture
def environment(remote_api: int, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a new user of Truss."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    yield {
        **kept,
        "HOME": str(tmp_path),
        "USER_TRUSSRC_PATH": str(trussrc()),
        "TRUSS_NO_UPDATE_CHECK": "1",
        "NO_PROXY": "localhost",
        "BASETEN_TRUSS_AUTH_REMOTE_URL": f"http://localhost:{remote_api}",
        "BASETEN_TRUSS_AUTH_API_KEY": "anything",
    }
    trussrc().unlink(missing_ok=True)


def truss(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_warm(str(TRUSS), *arguments, cwd=FOLDER, env=environment)


@pytest.mark.parametrize(
    "model", [["--model", "smollm2-135m-cpu"], ["--model-deployment", "any"], [], ["--published"]]
)
def test_every_way_of_naming_the_model(
    server: Served, environment: dict[str, str], model: list[str]
) -> None:
    answer = truss(environment, "predict", *model, "-d", json.dumps(GREEDY))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    first, _, text = answer.stdout.partition("\n")
    assert first.startswith("Calling predict on")
    assert text == server.post(GREEDY).text


def test_it_streams(server: Served, environment: dict[str, str]) -> None:
    body = {**GREEDY, "max_tokens": 1900}
    command = [TRUSS, "predict", "--model", "m", "-d", json.dumps(body)]
    before = len(server.cancelled())
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        assert client.stdout.read(20)
        client.kill()
    assert settles(lambda: len(server.cancelled()) > before)
    (*_, generated) = server.cancelled()[before:]
    assert generated < 1000  # text arrived long before the end


def test_not_streamed_and_refused(server: Served, environment: dict[str, str]) -> None:
    whole = json.dumps({**GREEDY, "stream": False})
    answer = truss(environment, "predict", "--model", "m", "-d", whole).stdout.partition("\n")[2]
    assert json.loads(answer)["text"] == server.post(GREEDY).text
    answer = truss(environment, "predict", "--model", "m", "-d", '{"promt": "x"}').stdout
    assert "did you mean prompt?" in answer


def test_only_lookups_are_answered(
    server: Served, remote_api: int, environment: dict[str, str]
) -> None:
    answer = truss(environment, "whoami")
    assert answer.returncode == 1
    assert "not organization" in " ".join((answer.stdout + answer.stderr).split())

    address = f"http://127.0.0.1:{remote_api}"
    push = {"query": "mutation { create_model_from_truss { id } }"}
    assert "data" not in httpx.post(f"{address}/graphql/", json=push, timeout=60).json()
    for body in (b"", b"{", b"[]", b'{"query": 1}', b"[" * 60_000, b" " * 70_000):
        assert httpx.post(f"{address}/graphql/", content=body, timeout=60).status_code == 400
    assert (
        httpx.post(f"{address}/v1/models/model:predict", json=GREEDY, timeout=60).status_code == 404
    )
    assert httpx.get(f"{address}/graphql/", timeout=60).status_code == 501


def test_it_listens_on_loopback_alone(server: Served, remote_api: int) -> None:
    assert listening_addresses(server.process.pid) == [("127.0.0.1", remote_api)]


def test_ports_that_cannot_be_used(
    server: Served, remote_api: int, capsys: pytest.CaptureFixture[str]
) -> None:
    serve = ["serve", "--truss", str(FOLDER), "--port"]
    assert main([*serve, str(free_port()), "--remote-api", str(remote_api)]) == 2
    assert f"--remote-api is {remote_api}; that port cannot be used" in capsys.readouterr().err
    assert main([*serve, "8080", "--remote-api", "8080"]) == 2
    assert "both 8080" in capsys.readouterr().err
