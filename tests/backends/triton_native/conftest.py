from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.backends.triton_native.native_triton import NativeTriton
from tests.support.waiting import PATIENCE_S

from trtllm_truss.triton.model_repository import InstanceCounts

TEXT = "It is  only a 日本語 test 🤖, with two  words? Größe. "


@pytest.fixture(scope="session")
def make_native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., NativeTriton]]:
    """Start real Tritons; stop them at the end of the session."""
    started: list[NativeTriton] = []

    def make(**options: Any) -> NativeTriton:
        server = NativeTriton(tmp_path_factory.mktemp("native"), **options)
        started.append(server)
        server.process.wait_until_ready(PATIENCE_S)
        return server

    yield make
    with ThreadPoolExecutor(len(started) or 1) as pool:  # each takes two seconds to end
        list(pool.map(lambda server: server.process.stop(2), started))


@pytest.fixture(scope="session")
def native(make_native: Callable[..., NativeTriton]) -> NativeTriton:
    """A server whose engine answers `TEXT`, with several instances of every text model."""
    return make_native(text=TEXT, counts=InstanceCounts(2, 2, 3), step_ms=1)


@pytest.fixture(scope="session")
def unary(make_native: Callable[..., NativeTriton]) -> NativeTriton:
    """One server whose text models send one response per request."""
    return make_native(text=TEXT, decoupled=False, step_ms=1)
