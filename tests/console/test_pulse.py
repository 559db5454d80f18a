"""The vital signs, from records of the log and pages of metrics."""

from __future__ import annotations

import json
import time

from tests.console.test_scrape import real_page

from trtllm_truss.observability.status import Phase, ServiceStatus
from trtllm_workbench.console.pulse import Pulse

REQUEST = {
    "message": "request engine_request_id=a protocol=predict",
    "engine_request_id": "a",
    "protocol": "predict",
    "status": "finished",
    "reason": "stop",
    "prompt_tokens": 5,
    "generation_tokens": 9,
    "total_ms": 120.5,
    "prompt": "s3cr3t",
    "request_id": "s3cr3t",
}


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


AT_S = time.mktime((2026, 1, 2, 10, 0, 0, 0, 0, -1))


def new_status() -> ServiceStatus:
    return ServiceStatus(time_s=lambda: AT_S)


def new_pulse(clock: Clock | None = None, status: ServiceStatus | None = None) -> Pulse:
    reported = status or new_status()
    return Pulse(lambda: reported.current, clock or Clock(), lambda: AT_S)


def page(tokens: int, up: int = 1) -> str:
    return f"trtllm_truss_generation_tokens_total {tokens}\ntrtllm_truss_engine_up {up}\n"


def test_the_phases_of_a_start() -> None:
    status = new_status()
    pulse = new_pulse(status=status)
    for phase in (
        Phase(3, 4, "triton model repository", "/tmp/x/repository", 0.249),
        Phase(1, 4, "engine"),
        Phase(2, 4, "tokenizer"),
        Phase(1, 4, "engine", "cpu, context of 8192 tokens", 0.104),
    ):
        status.phase(phase)
    for message in (
        "Handled request: GET /v1/models/model/schema HTTP/1.1 503",
        "[2/4] tokenizer …",
        "3.1 of 16.0 GB",
        "Handled request: GET /v1/models/model/schema HTTP/1.1 503",
    ):
        pulse.on_record({"message": message})
    shown = pulse.snapshot()
    assert (shown["state"], shown["last_line"], shown["up_s"]) == (
        "starting",
        "3.1 of 16.0 GB",
        None,
    )
    assert [(each["name"], each["detail"], each["took_s"]) for each in shown["phases"]] == [
        ("engine", "cpu, context of 8192 tokens", 0.1),
        ("tokenizer", "", None),
        ("triton model repository", "", 0.2),
    ]
    assert not pulse.wants_metrics
    pulse.ready()
    assert pulse.wants_metrics
    pulse.on_record({"message": "a prompt, perhaps"})
    assert pulse.snapshot()["last_line"] == ""


def test_only_known_fields_of_a_request_are_kept() -> None:
    status = new_status()
    pulse = new_pulse(status=status)
    pulse.ready()
    for record in ({}, {"message": None}, {"message": "request of a user: s3cr3t"}):
        pulse.on_record(record)
    pulse.on_record({**REQUEST, "message": "s3cr3t, however the line is worded"})
    status.engine_exited("s3cr3t")
    status.restart_failed("s3cr3t")
    shown = pulse.snapshot()
    (request,) = shown["requests"]
    assert request["time"] == "10:00:00"
    assert request["generation_tokens"] == 9
    assert "s3cr3t" not in json.dumps(shown)


def test_lists_are_bounded() -> None:
    clock, status = Clock(), new_status()
    pulse = new_pulse(clock, status)
    pulse.ready()
    for number in range(500):
        clock.now_s += 1
        pulse.on_record({**REQUEST, "total_ms": number})
        status.restarted()
        pulse.on_metrics(page(number))
    shown = pulse.snapshot()
    assert [each["total_ms"] for each in shown["requests"]] == list(range(499, 487, -1))
    assert len(shown["events"]) == 6
    assert len(json.dumps(shown)) < 6000
    assert len(pulse._scrapes) <= 62


def test_the_state_follows_the_engine() -> None:
    status = new_status()
    pulse = new_pulse(status=status)
    status.ready()
    pulse.ready()
    pulse.on_metrics(page(0))
    assert pulse.snapshot()["state"] == "ready"
    status.engine_exited("it was killed.")
    assert pulse.snapshot()["state"] == "restarting"  # before the next scrape
    status.restart(1, 5)
    pulse.on_metrics(page(0, up=0))
    assert pulse.snapshot()["state"] == "restarting"
    status.restarted()
    assert pulse.snapshot()["state"] == "ready"
    assert [(each["time"], each["text"]) for each in pulse.snapshot()["events"]] == [
        ("10:00:00", "the engine answers again"),
        ("10:00:00", "restart 1 of 5"),
        ("10:00:00", "the engine exited"),
    ]
    pulse.on_metrics(None)
    assert pulse.snapshot()["state"] == "unreachable"
    pulse.on_metrics(page(0))
    assert pulse.snapshot()["state"] == "ready"
    pulse.stopping()
    assert pulse.snapshot()["state"] == "stopping"


def test_a_server_that_does_not_report_its_status() -> None:
    """A Truss may bundle an older version of the package."""
    pulse = Pulse()
    pulse.ready()
    pulse.on_metrics(page(0))
    assert (pulse.snapshot()["state"], pulse.snapshot()["phases"]) == ("ready", [])
    pulse.on_metrics(page(0, up=0))
    assert pulse.snapshot()["state"] == "restarting"


def test_rates_and_percentiles_cover_the_recent_past() -> None:
    clock = Clock()
    pulse = new_pulse(clock)
    pulse.ready()
    assert "tokens_per_s" not in pulse.snapshot()
    pulse.on_metrics(page(1000))
    assert pulse.snapshot()["tokens_per_s"] is None
    for _ in range(90):
        clock.now_s += 1
        pulse.on_metrics(page(1000))
    assert pulse.snapshot()["tokens_per_s"] == 0
    for tokens in (1100, 1200, 1300, 1400, 1500):
        clock.now_s += 1
        pulse.on_metrics(page(tokens))
    assert pulse.snapshot()["tokens_per_s"] == 100
    assert pulse.snapshot()["gap_ms"] is None
    clock.now_s += 1
    pulse.on_metrics(real_page((4, 16)))
    shown = pulse.snapshot()
    assert shown["gap_ms"]["p50"] == 17.5
    assert (shown["running"], shown["waiting"], shown["restarts"]) == (2, 3, 1)
    assert (shown["kv_share"], shown["kv_is_reserved"]) == (0.25, True)
    assert shown["tokens_per_s"] == 0  # a counter that fell: the server is another one
    clock.now_s += 600  # the page was closed meanwhile
    pulse.on_metrics(page(3))
    assert pulse.snapshot()["tokens_per_s"] is None
