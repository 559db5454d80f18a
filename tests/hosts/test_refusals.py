"""Refused peers: one line per address and minute, few addresses."""

from __future__ import annotations

import logging

import pytest

from trtllm_truss.hosts.leader import ADDRESSES, QUIET_S, Refusals


class Refused:
    """The refusals of a leader, at a time that the test sets."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self.now_s = 0.0
        self.refusals = Refusals(lambda: self.now_s)

    def lines(self) -> list[str]:
        """Return the lines since the last call."""
        lines = self._caplog.messages
        self._caplog.clear()
        return lines


@pytest.fixture
def refused(caplog: pytest.LogCaptureFixture) -> Refused:
    return Refused(caplog)


def test_one_line_per_address_and_minute(refused: Refused) -> None:
    for number in range(1000):
        refused.refusals.note("10.0.0.2", f"reason {number % 2}.")
    refused.refusals.note("10.0.0.3", "other.")
    assert refused.lines() == ["refused 10.0.0.2: reason 0.", "refused 10.0.0.3: other."]
    assert refused.refusals.reasons() == ["10.0.0.2: reason 1.", "10.0.0.3: other."]
    refused.now_s = QUIET_S
    refused.refusals.note("10.0.0.2", "again.")
    assert refused.lines() == ["refused 10.0.0.2: again. (999 more since the last such line)"]
    refused.now_s *= 2
    refused.refusals.note("10.0.0.2", "once.")
    assert refused.lines() == ["refused 10.0.0.2: once."]


def test_many_addresses_share_a_line(refused: Refused) -> None:
    for number in range(10 * ADDRESSES):
        refused.refusals.note(f"10.0.{number // 256}.{number % 256}", "no.")
    *first, others = refused.lines()
    assert len(first) == ADDRESSES
    assert others == "refused more addresses: no."
    assert len(refused.refusals.reasons()) == ADDRESSES + 1
    refused.now_s = QUIET_S
    for number in range(10 * ADDRESSES):
        refused.refusals.note(f"10.1.{number // 256}.{number % 256}", "no.")
    lines = refused.lines()
    assert len(lines) == ADDRESSES + 1, "new addresses take the places of old ones"
    assert (
        lines[-1]
        == f"refused more addresses: no. ({9 * ADDRESSES - 1} more since the last such line)"
    )
    assert len(refused.refusals.reasons()) == ADDRESSES + 1


def test_an_accepted_address_has_no_reason_and_no_new_minute(refused: Refused) -> None:
    refused.refusals.note("10.0.0.2", "no.")
    refused.refusals.forget("10.0.0.2")
    refused.refusals.forget("10.0.0.3")
    assert refused.refusals.reasons() == []
    refused.refusals.note("10.0.0.2", "later.")
    assert refused.lines() == ["refused 10.0.0.2: no."]
    assert refused.refusals.reasons() == ["10.0.0.2: later."]
