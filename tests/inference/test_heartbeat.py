"""Silence counts only while a request waits for the engine."""

from __future__ import annotations

import contextlib

import pytest

from trtllm_truss.errors import EngineUnavailable, InvalidRequest
from trtllm_truss.inference.heartbeat import EngineHeartbeat


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def heartbeat(now: list[float]) -> EngineHeartbeat:
    return EngineHeartbeat(lambda: now[0])


def test_silence_is_measured_while_a_request_waits(
    heartbeat: EngineHeartbeat, now: list[float]
) -> None:
    assert heartbeat.silent_for_s == 0
    with heartbeat.waiting():
        now[0] += 5
        assert heartbeat.silent_for_s == 5
    now[0] += 5
    assert heartbeat.silent_for_s == 0  # the reader is slow, not the engine


def test_a_new_request_does_not_hide_a_hang(heartbeat: EngineHeartbeat, now: list[float]) -> None:
    with heartbeat.waiting():
        now[0] += 5
        with heartbeat.waiting():
            assert heartbeat.silent_for_s == 5
            now[0] += 1
        # The second request got a token: a sign of life.
        assert heartbeat.silent_for_s == 0


def test_callers_that_leave_one_after_another_do_not_hide_a_hang(
    heartbeat: EngineHeartbeat, now: list[float]
) -> None:
    for _ in range(3):
        with contextlib.suppress(TimeoutError), heartbeat.waiting():
            now[0] += 5
            raise TimeoutError
        now[0] += 0.5
    with heartbeat.waiting():
        assert heartbeat.silent_for_s == 16.5
    now[0] += 60  # idle
    with heartbeat.waiting():
        assert heartbeat.silent_for_s == 0


def test_a_cancelled_wait_is_not_a_sign_of_life(
    heartbeat: EngineHeartbeat, now: list[float]
) -> None:
    with heartbeat.waiting():
        now[0] += 5
        with pytest.raises(TimeoutError), heartbeat.waiting():
            raise TimeoutError
        assert heartbeat.silent_for_s == 5


def test_a_rejection_by_the_engine_is_a_sign_of_life(
    heartbeat: EngineHeartbeat, now: list[float]
) -> None:
    with heartbeat.waiting():
        now[0] += 5
        with pytest.raises(InvalidRequest), heartbeat.waiting():
            raise InvalidRequest("top_p is 3")
        assert heartbeat.silent_for_s == 0


def test_consecutive_failures_are_silence(heartbeat: EngineHeartbeat, now: list[float]) -> None:
    """Fail one request after another, without overlap and at once."""
    for _ in range(3):
        assert heartbeat.silent_for_s == 0  # two failures in a row are not a hang
        with contextlib.suppress(EngineUnavailable), heartbeat.waiting():
            raise EngineUnavailable("Stub process is not healthy.")
        heartbeat.request_failed(EngineUnavailable("gone"))
        now[0] += 10
    assert heartbeat.silent_for_s == 20
    now[0] += 1000  # without requests
    assert heartbeat.silent_for_s == 20
    with heartbeat.waiting():
        assert heartbeat.silent_for_s == 20
    assert heartbeat.silent_for_s == 0


def test_a_restarted_engine_starts_without_failures(
    heartbeat: EngineHeartbeat, now: list[float]
) -> None:
    for _ in range(3):
        now[0] += 100
        heartbeat.request_failed(EngineUnavailable("gone"))
    heartbeat.sign_of_life()
    assert heartbeat.silent_for_s == 0


def test_an_engine_response_is_a_sign_of_life(heartbeat: EngineHeartbeat, now: list[float]) -> None:
    with heartbeat.waiting():
        now[0] += 5
        heartbeat.sign_of_life()
        assert heartbeat.silent_for_s == 0
