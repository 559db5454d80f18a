"""Who may read what on the Hub: one sentence for each way of being refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hub_server import HubServer
from whole_repository import fetch_repository

from trtllm_truss.errors import ArtifactError

TOKEN = "hf_abcdefghijklmnop"
ENGINE = {"config.json": b'{"a": 1}', "rank0.engine": bytes(range(256)) * 40}


def fetch(name: str, *, token: str | None = TOKEN, revision: str | None = None) -> Path:
    return fetch_repository(name, revision, token=token)


def refusal(name: str, *, token: str | None = TOKEN, revision: str | None = None) -> str:
    with pytest.raises(ArtifactError) as caught:
        fetch(name, token=token, revision=revision)
    return caught.value.message


@pytest.fixture(autouse=True)
def repositories(hub: HubServer) -> None:
    hub.add("org/public", ENGINE)
    hub.add("org/private", ENGINE, private=True)
    hub.add("org/gated", ENGINE, gated=True)
    hub.add_token(TOKEN)


def test_a_public_repository_needs_no_token(hub: HubServer) -> None:
    folder = fetch("org/public", token=None)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == ENGINE
    assert {request.token for request in hub.requests} == {None}


def test_a_private_repository_with_token(hub: HubServer) -> None:
    folder = fetch("org/private")
    assert (folder / "rank0.engine").read_bytes() == ENGINE["rank0.engine"]
    assert {request.token for request in hub.asked_for("/files/*")} == {None}  # another host


@pytest.mark.parametrize(
    ("name", "token", "parts"),
    [
        ("org/private", None, ["does not exist, or is private", "hf_access_token is not set"]),
        ("org/private", "", ["does not exist, or is private", "hf_access_token is empty"]),
        ("org/private", "hf_wrong", ["does not know the token"]),
        ("org/public", "hf_wrong", ["does not know the token"]),
        ("org/nothing", TOKEN, ["does not exist, or is private", "owner may not read it"]),
        ("org/nothing", None, ["does not exist, or is private", "is not set"]),
        ("org/gated", TOKEN, ["is gated", "the account that the token belongs to"]),
        ("org/gated", None, ["is gated", "hf_access_token is not set"]),
        ("org/-.-", TOKEN, ["is not a name that Hugging Face has"]),
    ],
)
def test_refusals(name: str, token: str | None, parts: list[str]) -> None:
    message = refusal(name, token=token)
    assert message.startswith(f"engine_repository '{name}'")
    for part in parts:
        assert part in message
    assert not token or token not in message


def test_a_token_without_rights_to_a_private_repository(hub: HubServer) -> None:
    hub.add_token("hf_other", reads=frozenset({"org/other"}))
    assert "owner may not read it" in refusal("org/private", token="hf_other")
    hub.fault("/api/*", status=403)
    assert "give the token in the secret hf_access_token read access" in refusal("org/private")


def test_gated_with_access(hub: HubServer) -> None:
    hub.add_token("hf_member", access_to_gated=frozenset({"org/gated"}))
    assert (fetch("org/gated", token="hf_member") / "config.json").is_file()


def test_revisions(hub: HubServer) -> None:
    repository = hub.repositories["org/public"]
    first = repository.find("main")
    repository.commit({"config.json": b"{}"}, revision="v2")
    assert "has no revision 'v9'; correct engine_revision" in refusal("org/public", revision="v9")
    assert (fetch("org/public", revision=first) / "config.json").read_bytes() == b'{"a": 1}'
    assert (fetch("org/public", revision="v2") / "config.json").read_bytes() == b"{}"


def test_the_token_is_in_no_log_and_no_file(
    hub: HubServer, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.fault("/api/*", status=503)
    hub.fault("/files/*", cut_at=0.5)
    fetch("org/private")
    refusal("org/gated")
    assert caplog.records
    assert TOKEN not in caplog.text
    assert not any(TOKEN in request.path for request in hub.requests)
    files = [path for path in cache.rglob("*") if path.is_file()]
    assert files
    assert not any(TOKEN.encode() in path.read_bytes() for path in files)


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../../b", "a\\b", "a\nb"])
def test_paths_that_lead_out_are_refused(hub: HubServer, cache: Path, path: str) -> None:
    hub.repositories["org/public"].commit({path: b"x"})
    assert "points out of it or is no plain path" in refusal("org/public")
    assert not hub.asked_for("/org/public/resolve/*")
