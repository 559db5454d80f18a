"""The servers of all clients: they run in the project's environment, the clients in their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.clients import page
from tests.fakes.triton import FAKE_ENGINE
from tests.support.paths import ROOT
from tests.support.truss_process import Served
from tests.support.waiting import settles

# Without these, clients ask the internet for prices, models and credentials.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["LANGSMITH_TRACING"] = "false"
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
os.environ["AWS_ACCESS_KEY_ID"] = os.environ["AWS_SECRET_ACCESS_KEY"] = "none"
os.environ["AWS_REGION"] = "us-east-1"


PYTHON = str(ROOT / ".venv/bin/python")


@contextmanager
def serving(config: Path | None = None, environment: dict[str, str] | None = None) -> Iterator[str]:
    """Serve; yield host and port."""
    server = Served(config, environment, python=PYTHON)
    try:
        server.wait_until_ready()
        yield f"localhost:{server.port}"
        assert server.end() == 0, server.log
        assert settles(lambda: not server.leftovers()), server.leftovers()
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The host and port of a server that answers until the session ends."""
    with serving() as address:
        yield address


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host and port of a server whose model follows `scripted`'s script."""
    command = [PYTHON, "-m", "tests.clients.scripted", str(tmp_path_factory.mktemp("scripted"))]
    written = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    with serving(Path(written.stdout.strip()), FAKE_ENGINE) as address:
        yield address


@pytest.fixture(scope="session")
def base_url(address: str) -> str:
    return f"http://{address}/v1"


@pytest.fixture
def example(address: str, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the Python example under a heading of docs/clients.md and return its variables."""
    return lambda title: page.run_python(title, address, tmp_path)


@pytest.fixture
def node_example(address: str, tmp_path: Path) -> Callable[[str, str], Any]:
    """Run a JavaScript example and return the JSON value of an expression after it."""
    return lambda title, result: page.run_node(title, result, address, tmp_path)
