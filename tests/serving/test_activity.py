"""When silence counts: only while somebody waits for the engine."""

from __future__ import annotations

import time

import pytest

from trtllm_truss.serving.activity import Activity


def test_silence_is_measured_while_a_request_waits() -> None:
    activity = Activity()
    assert activity.silent_for_s == 0
    with activity.waiting():
        time.sleep(0.05)
        assert activity.silent_for_s >= 0.05
    time.sleep(0.05)
    assert activity.silent_for_s == 0  # the reader is slow, not the engine


def test_a_new_request_does_not_hide_a_hang() -> None:
    activity = Activity()
    with activity.waiting():
        time.sleep(0.05)
        with activity.waiting():
            silent_for_s = activity.silent_for_s
            assert silent_for_s >= 0.05
        # The second one got something: a sign of life.
        assert activity.silent_for_s < silent_for_s


def test_who_gives_up_waiting_is_no_sign_of_life() -> None:
    activity = Activity()
    with activity.waiting():
        time.sleep(0.05)
        with pytest.raises(TimeoutError), activity.waiting():
            raise TimeoutError
        assert activity.silent_for_s >= 0.05
