"""Peers that a leader has refused: what is known of them, and few lines of log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

ADDRESSES = 32
QUIET_S = 60.0
_OTHERS = "more addresses"


@dataclass
class _Refused:
    """A peer, or all for which the table has no room.

    Attributes:
        why: the latest reason; empty once a peer there has been accepted.
        logged_at_s: of the last line, by the clock.
        silent: refusals since then.
    """

    why: str
    logged_at_s: float
    silent: int = 0


class Refusals:
    """One log line per address and minute, since anyone can ask, and for few addresses.

    All methods may be called from any thread.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: dict[str, _Refused] = {}  # the longest known address first

    def note(self, address: str, why: str) -> None:
        """Count a refusal; log it unless this address has had a line in the last minute."""
        now_s = self._clock()
        with self._lock:
            place = address if self._has_room(address, now_s) else _OTHERS
            known = self._refused.get(place)
            if known is not None and now_s - known.logged_at_s < QUIET_S:
                known.why, known.silent = why, known.silent + 1
                return
            silent = known.silent if known is not None else 0
            self._refused[place] = _Refused(why, now_s)
        more = f" ({silent} more since the last such line)" if silent else ""
        logger.error("refused %s: %s%s", place, why, more)

    def forget(self, address: str) -> None:
        """Drop the reason of an address; its minute goes on."""
        with self._lock:
            if known := self._refused.get(address):
                known.why = ""

    def reasons(self) -> list[str]:
        """Return each address with its latest reason."""
        with self._lock:
            known = [*self._refused.items()]
        return [f"{address}: {each.why}" for address, each in known if each.why]

    def _has_room(self, address: str, now_s: float) -> bool:
        """Return whether an address has a row of its own; drop a row whose minute is over."""
        if address in self._refused or len(self._refused) < ADDRESSES:
            return True
        for other, each in self._refused.items():
            if other != _OTHERS and now_s - each.logged_at_s >= QUIET_S:
                del self._refused[other]
                return True
        return False
