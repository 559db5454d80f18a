"""Fixtures of the tests on a GPU."""

from tests.end_to_end.test_supervision import loads  # noqa: F401 - a fixture
