"""A checkpoint over two hosts, under a fake of TensorRT-LLM's launcher; with `--hosts` only."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tests.support.fake_llm_api import (
    COUNTING,
    VERSIONS,
    config_for_checkpoint,
    fake_library,
    write_checkpoint,
)
from tests.support.hosts import Group, Network, group_of, missing_right
from tests.support.smollm2 import smollm2_file
from tests.support.waiting import settles


@pytest.fixture(scope="module")
def checkpoint_group(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Group]:
    if not request.config.getoption("--hosts"):
        pytest.skip("only with --hosts")
    if reason := missing_right():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("group") / "model"
    write_checkpoint(folder, smollm2_file(), step_ms=20)
    limits = {"restart_backoff_s": 0.1, "restart_limit": 50}
    environment = {**fake_library(VERSIONS[0]), **COUNTING}
    with Network(2) as network:
        config = config_for_checkpoint(
            folder, pipeline_parallelism=2, nodes=network.addresses, serving=limits
        )
        with group_of(network, config, 2, environment) as group:
            group.start()
            yield group


def test_rank_0_serves_and_the_others_work(checkpoint_group: Group) -> None:
    group = checkpoint_group
    assert group.answers_right()
    assert len(group.leader.ranks()) == 1
    (other,) = group.others
    assert not other.ranks()
    assert any("sleep infinity" in line for line in other.processes().values())


def test_the_servers_end_ends_the_job(checkpoint_group: Group) -> None:
    """The launcher goes on without the server."""
    group = checkpoint_group
    os.kill(group.leader.ranks()[0], signal.SIGKILL)
    assert settles(lambda: not group.is_healthy())
    assert settles(lambda: group.is_healthy() and group.answers_right()), group.logs()


def test_a_lost_worker_ends_the_job(checkpoint_group: Group) -> None:
    group = checkpoint_group
    (other,) = group.others
    (worker,) = (pid for pid, line in other.processes().items() if "sleep infinity" in line)
    os.kill(worker, signal.SIGKILL)
    assert settles(lambda: not group.is_healthy())
    assert settles(lambda: group.is_healthy() and group.answers_right()), group.logs()
