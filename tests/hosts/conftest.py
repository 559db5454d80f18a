"""Groups of hosts; tests are skipped by name where namespaces cannot be made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.fake_tensorrtllm import config_for, write_engine
from tests.support.hosts import Group, Network, group_of, missing_right

SHAPES = [(2, 1), (2, 2), (3, 1), (3, 2)]
"""Hosts, and ranks on each."""
STEP_MS = 20


def name(shape: tuple[int, int]) -> str:
    return f"{shape[0]}x{shape[1]}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run with one shape and one round by default, with all of them for `--hosts N`."""
    rounds = metafunc.config.getoption("--hosts")
    if "group" in metafunc.fixturenames:
        metafunc.parametrize("group", SHAPES if rounds else SHAPES[:1], indirect=True, ids=name)
    if "rounds" in metafunc.fixturenames:
        metafunc.parametrize("rounds", [rounds or 1])


@pytest.fixture(scope="module")
def group(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Group]:
    """A running group, which the tests harm; its first host serves."""
    if reason := missing_right():
        pytest.skip(reason)
    hosts, each = request.param
    folder = tmp_path_factory.mktemp("group")
    engine = write_engine(folder / "engine", tp=hosts * each, step_ms=STEP_MS)
    limits = {"restart_backoff_s": 0.1, "restart_limit": 50}
    with Network(hosts) as network:
        ranks = hosts * each
        config = config_for(engine, ranks, nodes=network.addresses, serving=limits)
        with group_of(network, config, ranks) as running:
            running.start()
            yield running
