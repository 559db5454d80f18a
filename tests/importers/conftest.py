"""Fixtures of `init`, and a Hub on loopback."""

from tests.scaffold.conftest import initialize  # noqa: F401 - a fixture
from tests.support.repositories import cache, hub  # noqa: F401 - fixtures
