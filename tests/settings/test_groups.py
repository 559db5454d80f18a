"""The group of hosts, from `nodes` and the platform's variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtllm_truss.errors import SettingsError
from trtllm_truss.settings import loading
from trtllm_truss.settings.loading import (
    Group,
    parse_settings,
    read_environment,
    read_group,
    require_key,
)

LWS = {"LWS_LEADER_ADDRESS": "x-0.x.ns", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"}
KEY = "k" * 32


def group(nodes: Any = None, **variables: str) -> Group | None:
    metadata = {"engine_repository": "org/name", "nodes": nodes}
    return read_group(parse_settings({"model_metadata": metadata}), variables)


@pytest.mark.parametrize("nodes", [None, 1])
@pytest.mark.parametrize("variables", [{}, {**LWS, "LWS_GROUP_SIZE": "1"}])
def test_one_host(nodes: int | None, variables: dict[str, str]) -> None:
    assert group(nodes, **variables) is None


def test_sources() -> None:
    assert group(["a", "10.0.0.2"]) == Group(2, "a", 8470, None, ("a", "10.0.0.2"))
    assert group(None, **LWS) == group(2, **LWS) == Group(2, "x-0.x.ns", 8470, 1)
    listed = Group(3, "a", 8470, None, ("a", "b", "c"))
    assert group(3, TRTLLM_TRUSS_HOSTS="a, b,c") == listed
    assert group(["a", "b"], **LWS) == Group(2, "a", 8470, 1, ("a", "b"))


@pytest.mark.parametrize(
    ("nodes", "variables", "message"),
    [
        (2, {}, "nodes is 2, but nothing names the hosts"),
        (3, LWS, "the platform's group has 2 hosts; set it to 2"),
        (["a", "a"], {}, "nodes names a host twice"),
        (None, {**LWS, "LWS_GROUP_SIZE": "two"}, "LWS_GROUP_SIZE is 'two'"),
        (["a"], {}, "nodes"),
        (["a", "b;reboot"], {}, "nodes"),
        (0, {}, "nodes"),
    ],
)
def test_contradictions(nodes: Any, variables: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        group(nodes, **variables)


@pytest.mark.parametrize(("key", "state"), [("", "is not set"), ("k" * 31, "has 31 characters")])
def test_a_key_is_required(key: str, state: str) -> None:
    with pytest.raises(SettingsError, match=state) as caught:
        require_key(key)
    assert not key or key not in caught.value.message


def test_the_key_comes_from_truss_the_environment_or_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loading, "_FILE", tmp_path / "hf_access_token")
    assert read_environment({}).group_key == ""
    (tmp_path / "group_key").write_text(f"{KEY}f\n")
    assert read_environment({}).group_key == f"{KEY}f"
    monkeypatch.setenv("TRUSS_SECRET_group_key", f"{KEY}e")
    assert read_environment().group_key == f"{KEY}e"
    environment = read_environment({"group_key": f"{KEY}t"})
    assert environment.group_key == f"{KEY}t"
    assert KEY not in repr(environment)
