"""Servers for the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from truss_process import Served


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    """One CPU server for all tests that leave it as they found it."""
    served = Served()
    try:
        yield served.wait_until_ready()
        assert served.end() == 0, served.log
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


@pytest.fixture
def own_server() -> Iterator[Served]:
    """A CPU server of the test's own, to be ended in any way."""
    served = Served()
    try:
        yield served.wait_until_ready()
    finally:
        if served.process.poll() is None:
            served.end()
