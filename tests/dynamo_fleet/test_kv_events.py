"""Dynamo's router with the KV events of two workers, whose checkpoints a stand-in of TensorRT-LLM's
library serves.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from benchmarks.servers.dynamo import MODEL, Fleet
from prometheus_client.parser import text_string_to_metric_families
from tests.dynamo_fleet.conftest import config_with
from tests.fakes.tensorrt_llm import (
    COUNTING,
    VERSIONS,
    config_for_checkpoint,
    fake_library,
    write_checkpoint,
)
from tests.support.smollm2 import smollm2_file
from tests.support.waiting import settles

BLOCK_TOKENS, CACHE_BLOCKS = 32, 40
WHOLE_BLOCKS = 3
PROMPT_TOKENS = WHOLE_BLOCKS * BLOCK_TOKENS + 4
CHOICE = re.compile(r"Best: worker_\d+ dp_rank=0 with (\d+)/\d+ blocks overlap")
APPLIED = "dynamo_component_kv_cache_events_applied"
numbers = itertools.count(1)


class Turn(NamedTuple):
    """An answer: the worker that gave it, and the blocks that the router expected there."""

    worker: subprocess.Popen[bytes]
    overlap: int


@pytest.fixture(scope="module", params=VERSIONS)
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("kv")
    checkpoint = write_checkpoint(folder / "checkpoint", smollm2_file())
    cache = {"max_tokens": CACHE_BLOCKS * BLOCK_TOKENS}
    runtime = {"llm_args": {"kv_cache_config": cache}}
    config = config_for_checkpoint(checkpoint, runtime=runtime)
    variables = {"DYN_ROUTER_USE_KV_EVENTS": "true", "DYN_LOG": "info,dynamo_llm::kv_router=debug"}
    fleet = Fleet(folder, **variables)
    try:
        for _ in range(2):
            fleet.add_worker(config, "--kv-events", **fake_library(request.param), **COUNTING)
        fleet.wait_for(2)
        yield fleet
    finally:
        fleet.close()


def prompt() -> list[int]:
    """Return a prompt with a unique prefix."""
    number = next(numbers)
    return [1000 + number, *range(100 + number, 100 + number + PROMPT_TOKENS - 1)]


def ask(fleet: Fleet, tokens: list[int]) -> Turn:
    """Ask for a few tokens, and wait until the router knows the blocks of a new prompt."""
    before = applied(fleet)["stored", "ok"]
    log = fleet.log_of(fleet.frontend)
    body = {"model": MODEL, "prompt": tokens, "max_tokens": 3, "temperature": 0}
    answer = fleet.client.post("/v1/completions", json={**body, "ignore_eos": True})
    assert answer.status_code == 200, answer.text
    overlap = max(map(int, CHOICE.findall(fleet.log_of(fleet.frontend)[len(log) :])))
    if overlap * BLOCK_TOKENS <= len(tokens) - BLOCK_TOKENS:
        assert settles(lambda: applied(fleet)["stored", "ok"] > before)
    call_id = answer.json()["id"].removeprefix("cmpl-")
    assert settles(lambda: any(has_answered(fleet, each, call_id) for each in fleet.alive))
    return Turn(next(each for each in fleet.alive if has_answered(fleet, each, call_id)), overlap)


def has_answered(fleet: Fleet, worker: subprocess.Popen[bytes], call_id: str) -> bool:
    """Return True for the last one of the workers that have received a request."""
    lines = fleet.log_of(worker).splitlines()
    return any(call_id in line and "status=finished" in line for line in lines)


def applied(fleet: Fleet) -> Counter[tuple[str, str]]:
    """Return the numbers of events in the router's index, by kind and status."""
    found: Counter[tuple[str, str]] = Counter()
    for family in text_string_to_metric_families(fleet.client.get("/metrics").text):
        for sample in family.samples:
            if sample.name.startswith(APPLIED):
                kind, status = sample.labels["event_type"], sample.labels["status"]
                found[kind, status] += int(sample.value)
    return found


def test_a_second_turn_goes_to_its_blocks(fleet: Fleet) -> None:
    for _ in range(4):
        conversations = [prompt() for _ in range(3)]
        first = [ask(fleet, tokens) for tokens in conversations]
        assert [turn.overlap for turn in first] == [0, 0, 0]
        second = [ask(fleet, [*tokens, *range(40)]) for tokens in conversations]
        assert second == [Turn(turn.worker, WHOLE_BLOCKS) for turn in first]


def test_an_evicted_beginning_is_forgotten(fleet: Fleet) -> None:
    tokens = prompt()
    holder = ask(fleet, tokens).worker
    others = CACHE_BLOCKS // WHOLE_BLOCKS
    while others:
        others -= ask(fleet, prompt()).worker is holder
    assert applied(fleet)["removed", "ok"]
    assert ask(fleet, tokens).overlap == 0


def test_a_restarted_triton_has_no_blocks(fleet: Fleet) -> None:
    tokens = prompt()
    holder = ask(fleet, tokens).worker
    before = applied(fleet)["removed", "ok"]
    os.kill(fleet.triton_of(holder), signal.SIGKILL)
    assert settles(lambda: applied(fleet)["removed", "ok"] > before)
    assert ask(fleet, tokens).overlap == 0
    later: list[int] = []

    def answers_again() -> bool:
        later[:] = prompt()
        return ask(fleet, later).worker is holder

    assert settles(answers_again)
    assert ask(fleet, [*later, *range(40)]) == Turn(holder, WHOLE_BLOCKS)


def test_the_router_understood_every_event(fleet: Fleet) -> None:
    assert {status for (_, status), count in applied(fleet).items() if count} == {"ok"}


def test_an_engine_without_events_says_so(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    try:
        worker = fleet.add_worker(config_with(tmp_path), "--kv-events")
        assert worker.wait(60) == 2
        log = fleet.log_of(worker)
        assert "error: a CPU engine reports no KV events. Leave out --kv-events" in log
        assert "Traceback" not in log
    finally:
        fleet.close()
