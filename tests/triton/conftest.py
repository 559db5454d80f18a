from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.triton_server import FakeEngineServer, StartTriton, triton_servers


@pytest.fixture
def make_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartTriton]:
    """Start real Tritons with the fake engine; stop them after the test."""
    with triton_servers(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeEngineServer]:
    """A shared server; tests must leave it running."""
    with triton_servers(tmp_path_factory, stop_s=3) as start:
        yield start(log_requests=1)
