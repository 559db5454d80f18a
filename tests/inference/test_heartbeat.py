"""When silence counts: only while somebody waits for the engine."""

from __future__ import annotations

import contextlib

import pytest

from trtllm_truss.errors import EngineUnavailable, InvalidRequest
from trtllm_truss.inference.decode_stream import EngineHeartbeat


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def activity(now: list[float]) -> EngineHeartbeat:
    return EngineHeartbeat(lambda: now[0])


def test_silence_is_measured_while_a_request_waits(
    activity: EngineHeartbeat, now: list[float]
) -> None:
    assert activity.silent_for_s == 0
    with activity.waiting():
        now[0] += 5
        assert activity.silent_for_s == 5
    now[0] += 5
    assert activity.silent_for_s == 0  # the reader is slow, not the engine


def test_a_new_request_does_not_hide_a_hang(activity: EngineHeartbeat, now: list[float]) -> None:
    with activity.waiting():
        now[0] += 5
        with activity.waiting():
            assert activity.silent_for_s == 5
            now[0] += 1
        # The second one got something: a sign of life.
        assert activity.silent_for_s == 0


def test_who_gives_up_waiting_is_no_sign_of_life(
    activity: EngineHeartbeat, now: list[float]
) -> None:
    with activity.waiting():
        now[0] += 5
        with pytest.raises(TimeoutError), activity.waiting():
            raise TimeoutError
        assert activity.silent_for_s == 5


def test_what_the_engine_refuses_is_a_sign_of_life(
    activity: EngineHeartbeat, now: list[float]
) -> None:
    with activity.waiting():
        now[0] += 5
        with pytest.raises(InvalidRequest), activity.waiting():
            raise InvalidRequest("top_p is 3")
        assert activity.silent_for_s == 0


def test_an_engine_that_only_fails_is_silent(activity: EngineHeartbeat, now: list[float]) -> None:
    """One request after another, each gone before the next comes, perhaps at once."""
    for _ in range(3):
        assert activity.silent_for_s == 0  # two failures in a row are no hang yet
        with contextlib.suppress(EngineUnavailable), activity.waiting():
            raise EngineUnavailable("Stub process is not healthy.")
        activity.request_failed()
        now[0] += 10
    assert activity.silent_for_s == 20
    now[0] += 1000  # nobody asks
    assert activity.silent_for_s == 20
    with activity.waiting():
        assert activity.silent_for_s == 20
    assert activity.silent_for_s == 0


def test_a_new_engine_is_not_blamed_for_the_old_one(
    activity: EngineHeartbeat, now: list[float]
) -> None:
    for _ in range(3):
        now[0] += 100
        activity.request_failed()
    activity.sign_of_life()
    assert activity.silent_for_s == 0


def test_what_the_engine_says_is_a_sign_of_life(
    activity: EngineHeartbeat, now: list[float]
) -> None:
    with activity.waiting():
        now[0] += 5
        activity.sign_of_life()
        assert activity.silent_for_s == 0
