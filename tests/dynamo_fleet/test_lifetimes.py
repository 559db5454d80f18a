"""Probes, ids and early ends of requests to one worker, whose frontend has no router of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from benchmarks.servers.dynamo import MODEL, Fleet
from prometheus_client.parser import text_string_to_metric_families
from tests.support.waiting import settles

LEAVING = 150
BOUND = re.compile(r"status server bound to: ([\d.:]+)")
BODY = {"model": MODEL, "prompt": "Hi", "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def fleet(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One worker, which finds the frontend by a relative path."""
    folder = tmp_path_factory.mktemp("one")
    store = os.path.relpath(folder / "store")
    fleet = Fleet(folder, router_mode="round-robin", DYN_FILE_KV=store)
    probes = {"DYN_HEALTH_CHECK_ENABLED": "true", "DYN_CANARY_WAIT_TIME": "1"}
    try:
        fleet.add_worker(config, DYN_SYSTEM_PORT="0", DYN_SYSTEM_HOST="127.0.0.1", **probes)
        fleet.wait_for(1)
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def system(fleet: Fleet) -> Iterator[httpx.Client]:
    """The worker's own routes."""
    (address,) = BOUND.findall(fleet.log_of(fleet.workers[0]))
    with httpx.Client(base_url=f"http://{address}") as client:
        yield client


def running(system: httpx.Client) -> float:
    """Return the number of requests that Dynamo's runtime and the engine have."""
    counted = ("dynamo_component_inflight_requests", "trtllm_truss_requests_running")
    return sum(
        sample.value
        for family in text_string_to_metric_families(system.get("/metrics").text)
        for sample in family.samples
        if sample.name in counted
    )


def test_an_idle_worker_passes_its_runtimes_probe(system: httpx.Client) -> None:
    assert settles(lambda: system.get("/health").status_code == 200)


def answer(fleet: Fleet, tokens: int) -> Iterator[str]:
    """Yield the finish reason of each event of a stream whose id its caller has chosen, or ""."""
    body = {**BODY, "max_tokens": tokens, "stream": True}
    headers = {"X-Dynamo-Request-Id": "11111111-1111-4111-8111-111111111111"}
    with fleet.client.stream("POST", "/v1/completions", json=body, headers=headers) as stream:
        assert stream.status_code == 200, stream.read()
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                yield choice.get("finish_reason") or ""


def test_answers_with_one_id_do_not_end_each_other(fleet: Fleet) -> None:
    """The id of a retry may be that of an answer that still runs."""
    short, long = answer(fleet, 100), answer(fleet, 200)
    began = [next(short), next(long)]
    assert [*short][-1] == [*long][-1] == "length"
    assert began == ["", ""]


def test_clients_that_leave_at_once_leave_nothing_behind(
    fleet: Fleet, system: httpx.Client
) -> None:
    request = fleet.client.build_request(
        "POST", "/v1/completions", json={**BODY, "max_tokens": 4000, "stream": True}
    )
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    sent = f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + request.content
    for _ in range(LEAVING):
        with socket.create_connection(("127.0.0.1", fleet.port)) as connection:
            connection.sendall(sent)
            connection.settimeout(0.002)
            with contextlib.suppress(TimeoutError):
                connection.recv(1)
    assert settles(lambda: running(system) == 0)
