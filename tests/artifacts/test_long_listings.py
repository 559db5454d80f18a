"""Listings have limits, in files and in bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.hub.server import HubServer
from tests.fakes.s3.server import S3Server

from trtllm_truss.artifacts import hub as hub_module
from trtllm_truss.artifacts import listing
from trtllm_truss.artifacts import open_repository as opening
from trtllm_truss.artifacts.open_repository import open_repository
from trtllm_truss.errors import ArtifactError

FILES = {f"file{number}": b"" for number in range(4)}


def listed(repository: str) -> int:
    source = open_repository(repository, None, setting="engine_repository", token=None)
    return len(source.listing().files)


@pytest.mark.parametrize("place", ["hub", "s3", "folder"])
def test_files(
    place: str, tmp_path: Path, hub: HubServer, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/long", FILES)
    s3.upload("long", "listing", FILES)
    for name in FILES:
        (tmp_path / "long").mkdir(exist_ok=True)
        (tmp_path / "long" / name).touch()
    name = {"hub": "org/long", "s3": "s3://long/listing", "folder": f"{tmp_path}/long"}[place]
    assert listed(name) == 4
    for module in (listing, opening):
        monkeypatch.setattr(module, "MAX_FILES", 3)
    with pytest.raises(ArtifactError, match="lists more than 3 files") as caught:
        listed(name)
    assert caught.value.message.startswith(f"engine_repository '{name}'")


def test_bytes(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/long", FILES)
    monkeypatch.setattr(hub_module, "_MAX_LISTING_BYTES", 200)
    with pytest.raises(ArtifactError, match="the listing has more than 200 bytes"):
        listed("org/long")
    requests = [request.path for request in hub.requests]
    assert requests == ["/api/models/org/long/revision/main"]
