"""One real server for all clients: it runs in the project's environment, they in their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clients import page
from tests.support.paths import ROOT
from tests.support.truss_process import Served
from tests.support.waiting import settles

# Without these, clients ask the internet for prices, models and credentials.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["LANGSMITH_TRACING"] = "false"
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
os.environ["AWS_ACCESS_KEY_ID"] = os.environ["AWS_SECRET_ACCESS_KEY"] = "none"
os.environ["AWS_REGION"] = "us-east-1"


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The host and port of a server that answers until the session ends."""
    server = Served(python=str(ROOT / ".venv/bin/python"))
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
