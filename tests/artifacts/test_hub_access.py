"""Access to the Hub: each refusal has its message."""

from __future__ import annotations

import importlib.util
import logging
import time
import traceback
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.fakes.hub.server import SIGNATURE, HubServer
from tests.support.whole_repository import fetch_repository

from trtllm_builder import publishing
from trtllm_truss.engines.manifest import Manifest
from trtllm_truss.errors import ArtifactError, BuildError

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


def test_no_token_goes_to_another_host_unencrypted(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = hub.url.replace("127.0.0.1", "127.1")  # resolves, but is no address of loopback's
    monkeypatch.setattr(constants, "ENDPOINT", there)
    template = f"{there}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    fetch("org/public")
    assert (
        "HF_ENDPOINT is http://127.1: the secret hf_access_token is sent over https" in caplog.text
    )
    assert "hf_access_token was not sent: HF_ENDPOINT is http://127.1" in refusal("org/private")
    assert {request.token for request in hub.requests} == {None}
    with pytest.raises(BuildError, match="to an https URL"):
        publishing._to_hub(Path(), Manifest(), "org/engine", TOKEN)


@pytest.mark.parametrize(
    ("name", "token", "parts"),
    [
        ("org/private", None, ["does not exist, or is private", "hf_access_token is not set"]),
        ("org/private", "", ["does not exist, or is private", "hf_access_token is empty"]),
        ("org/private", "hf_wrong", ["does not know the token"]),
        ("org/public", "hf_wrong", ["does not know the token"]),
        ("org/nothing", TOKEN, ["does not exist, or is private", "owner may not read it"]),
        ("org/nothing", None, ["does not exist, or is private", "is not set"]),
        ("org/gated", TOKEN, ["is gated", "the account of the token"]),
        ("org/gated", None, ["is gated", "hf_access_token is not set"]),
        ("org/-.-", TOKEN, ["is not a valid name on Hugging Face"]),
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


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        ({"status": 403}, "rank0.engine was refused by its storage localhost:{port} (HTTP status"),
        ({"status": 401}, "rank0.engine was refused by its storage localhost:{port} (HTTP status"),
        ({"status": 404}, "rank0.engine was refused by its storage localhost:{port} (HTTP status"),
        ({"status": 416}, "rank0.engine is shorter than the repository lists"),
        ({"status": 503}, "rank0.engine met HTTP status 503"),
        ({"cut_at": 0.5}, "rank0.engine was interrupted"),
        ({"status": 302, "headers": {"Location": "file:///etc/passwd"}}, "cannot be reached"),
        ({"status": 302, "headers": {"Location": f"http://[?X-Amz-Signature={SIGNATURE}"}}, ""),
        (
            {"status": 302, "headers": {"Location": f"http://127.0.0.1:9/?a={SIGNATURE}"}},
            "cannot be reached",
        ),
    ],
)
def test_a_signed_url_is_in_no_log(
    hub: HubServer, caplog: pytest.LogCaptureFixture, fault: dict[str, object], part: str
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.fault("/files/*", times=100, **fault)
    with pytest.raises(ArtifactError) as caught:
        fetch("org/public")
    assert part.format(port=hub.port) in caught.value.message
    assert "token" not in caught.value.message
    hub.faults.clear()
    fetch("org/public")
    told = "".join(traceback.format_exception(caught.value))
    assert SIGNATURE not in told
    assert SIGNATURE not in caplog.text
    assert hub.asked_for("/files/*")


@pytest.mark.skipif(importlib.util.find_spec("hf_xet") is None, reason="hf_xet is not installed")
def test_files_are_fetched_without_xet_if_it_refuses(
    hub: HubServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_HOME", f"{hub.url}/")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    route = f"{hub.url}/api/models/org/public/xet-read-token/main"
    known = {"X-Xet-Hash": "a" * 64, "X-Xet-Refresh-Route": route}
    hub.fault("*/resolve/*", times=100, headers=known)
    access = {
        "X-Xet-Cas-Url": f"{hub.url}/storage?X-Amz-Signature={SIGNATURE}",
        "X-Xet-Access-Token": SIGNATURE,
        "X-Xet-Token-Expiration": str(int(time.time()) + 3600),
    }
    hub.fault("*/xet-read-token/*", times=100, status=200, headers=access)
    assert (fetch("org/public") / "rank0.engine").read_bytes() == ENGINE["rank0.engine"]
    assert hub.asked_for("/storage*")
    assert "cannot fetch rank0.engine through Xet; continuing without it" in caplog.text
    assert SIGNATURE not in caplog.text
