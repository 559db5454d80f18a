"""Uploads of the real client to the tests' Hub, for tests of publishing."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, HfApi, constants
from huggingface_hub.errors import HfHubHTTPError
from tests.fakes.hub.server import HubServer
from tests.support.whole_repository import fetch_repository

FILES = {
    "README.md": b"---\nlicense: mit\n---\n# x",
    "config.json": b"{}",
    "rank0.engine": b"e" * 9,
}


@pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # from huggingface_hub
def test_one_private_commit(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    hub.add_token("hf_writer", "writer")
    api = HfApi(endpoint=hub.url, token="hf_writer")
    name = api.create_repo("writer/engine", private=True).repo_id
    assert name == "writer/engine"
    api.create_repo(name, private=True, exist_ok=True)
    operations = [CommitOperationAdd(path, data) for path, data in FILES.items()]
    commit = api.create_commit(name, operations, commit_message="An engine")
    repository = hub.repositories[name]
    assert repository.private
    assert repository.files == FILES
    assert repository.messages == ["An engine"]
    assert repository.find("main") == commit.oid
    assert set(hub.uploads.values()) == {FILES["rank0.engine"]}  # the others are in the commit
    folder = fetch_repository(name, token="hf_writer")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    for path in FILES:
        (tmp_path / path).write_bytes(FILES[path])
    api.upload_folder(repo_id=name, folder_path=tmp_path)
    assert len(hub.uploads) == 1, "existing files are not uploaded again"


def test_no_token_no_repository(hub: HubServer) -> None:
    with pytest.raises(HfHubHTTPError):
        HfApi(endpoint=hub.url, token=False).create_repo("writer/engine")
