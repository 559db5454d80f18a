"""When silence counts: only while somebody waits for the engine."""

from __future__ import annotations

import contextlib

import pytest

from trtllm_truss.errors import EngineUnavailable, InvalidRequest
from trtllm_truss.serving.activity import Activity


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def activity(now: list[float]) -> Activity:
    return Activity(lambda: now[0])


def test_silence_is_measured_while_a_request_waits(activity: Activity, now: list[float]) -> None:
    assert activity.silent_for_s == 0
    with activity.waiting():
        now[0] += 5
        assert activity.silent_for_s == 5
    now[0] += 5
    assert activity.silent_for_s == 0  # the reader is slow, not the engine


def test_a_new_request_does_not_hide_a_hang(activity: Activity, now: list[float]) -> None:
    with activity.waiting():
        now[0] += 5
        with activity.waiting():
            assert activity.silent_for_s == 5
            now[0] += 1
        # The second one got something: a sign of life.
        assert activity.silent_for_s == 0


def test_who_gives_up_waiting_is_no_sign_of_life(activity: Activity, now: list[float]) -> None:
    with activity.waiting():
        now[0] += 5
        with pytest.raises(TimeoutError), activity.waiting():
            raise TimeoutError
        assert activity.silent_for_s == 5


def test_what_the_engine_refuses_is_a_sign_of_life(activity: Activity, now: list[float]) -> None:
    with activity.waiting():
        now[0] += 5
        with pytest.raises(InvalidRequest), activity.waiting():
            raise InvalidRequest("top_p is 3")
        assert activity.silent_for_s == 0


def wait_in_vain(activity: Activity, now: list[float], seconds: float) -> None:
    with contextlib.suppress(EngineUnavailable), activity.waiting():
        now[0] += seconds
        raise EngineUnavailable("Stub process is not healthy.")


def test_an_engine_that_only_fails_is_silent(activity: Activity, now: list[float]) -> None:
    """One request after another, each gone before the next comes."""
    for _ in range(3):
        wait_in_vain(activity, now, 2)
        now[0] += 600
    with activity.waiting():
        assert activity.silent_for_s == 6  # nobody waited in between
        now[0] += 1
        assert activity.silent_for_s == 7
    with activity.waiting():
        assert activity.silent_for_s == 0


def test_a_new_engine_is_not_blamed_for_the_old_one(activity: Activity, now: list[float]) -> None:
    wait_in_vain(activity, now, 100)
    activity.sign_of_life()
    with activity.waiting():
        assert activity.silent_for_s == 0
