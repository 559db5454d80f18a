"""Fixtures: a cache per test, fakes of NVIDIA's tools, and the file that no stranger may write."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.builder.conftest import tools  # noqa: F401 - fixture
from tests.support.repositories import cache  # noqa: F401 - fixture


@pytest.fixture
def sprung(tmp_path: Path) -> Path:
    """Return the file that strangers' code writes when it runs."""
    return tmp_path / "PWNED"
