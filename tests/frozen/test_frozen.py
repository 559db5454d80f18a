"""The interfaces that users rely on agree with their records."""

from __future__ import annotations

import pytest

from tests.frozen.records import DATA, REMEDY, SOURCES, differences


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.server) if each == "served" else each
        for each in SOURCES
    ],
)
def test_what_users_rely_on_is_as_kept(name: str) -> None:
    found = differences(SOURCES[name]())
    assert not found, f"{found}\n{REMEDY}"


def test_a_difference_shows_as_a_diff() -> None:
    kept = (DATA / "help/server.txt").read_text()
    changed = kept.replace("serve ", "server ", 1)
    assert differences({"help/server.txt": kept}) == ""
    lines = differences({"help/server.txt": changed}).splitlines()
    assert lines[:2] == ["--- data/help/server.txt", "+++ now/help/server.txt"]
    assert [line[0] for line in lines].count("+") == 2
