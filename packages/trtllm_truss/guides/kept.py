"""Memory of the compiled guides that an engine keeps."""

from __future__ import annotations

from trtllm_truss.requests import Guide

LEAST_BYTES = 1 << 16
"""Counted for a guide at least: the memory of small ones is lost in a process's pages."""


class KeptGuides:
    """Compiled guides of an engine, by digest, up to a budget.

    Args:
        budget_bytes: for all guides together.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._digests: set[bytes] = set()
        self.kept_bytes = 0

    def __contains__(self, guide: Guide) -> bool:
        return guide.digest() in self._digests

    def has_room(self, compiled_bytes: int = 0) -> bool:
        """Return True if a guide of this size, or the smallest, fits into the budget."""
        return self.kept_bytes + max(compiled_bytes, LEAST_BYTES) <= self._budget_bytes

    def add(self, guide: Guide, compiled_bytes: int) -> None:
        """Count a guide once, even beyond the budget."""
        digest = guide.digest()
        if digest not in self._digests:
            self._digests.add(digest)
            self.kept_bytes += max(compiled_bytes, LEAST_BYTES)

    def clear(self) -> None:
        self._digests.clear()
        self.kept_bytes = 0
