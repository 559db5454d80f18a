"""Fixtures of the commands' tests."""

from tests.support.repositories import cache, hub  # noqa: F401 - fixtures
