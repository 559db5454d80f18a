"""Fixtures of selftest's tests."""

from __future__ import annotations

import pytest
from tests.builder.conftest import tools  # noqa: F401 - a fixture
from tests.support.truss_process import free_port


@pytest.fixture(autouse=True)
def _ports_that_nobody_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose ports outside of the kernel's range, from which servers of other tests take theirs."""
    for name in ("runner", "spawning", "subjects"):
        monkeypatch.setattr(
            f"trtllm_workbench.selftest.{name}.unused_ports",
            lambda count: [free_port() for _ in range(count)],
        )
