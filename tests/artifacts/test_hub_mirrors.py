"""Mirrors that list fewer fields than the Hub."""

from __future__ import annotations

from typing import Any

import pytest
from tests.artifacts.test_equal_files import contents
from tests.fakes.hub.server import HubServer
from tests.support.whole_repository import fetch_repository

from trtllm_truss.errors import ArtifactError

FILES = {"config.json": b"{}", "copy.json": b"{}", "empty": b"", "rank0.engine": b"e" * 5000}
ALWAYS = 10**9


def lacking(*names: str) -> Any:
    def edit(info: dict[str, Any]) -> dict[str, Any]:
        siblings = [{k: v for k, v in file.items() if k not in names} for file in info["siblings"]]
        return {**info, "siblings": siblings}

    return edit


@pytest.mark.parametrize("lacks", [("blobId",), ("lfs",), ("blobId", "lfs")])
def test_without_ids(hub: HubServer, lacks: tuple[str, ...]) -> None:
    files = FILES if "blobId" in lacks else {k: v for k, v in FILES.items() if k[0] != "r"}
    repository = hub.add("org/model", files)
    hub.fault("/api/*", times=ALWAYS, edit=lacking(*lacks))
    folder = fetch_repository("org/model")
    assert contents(folder) == files
    hub.forget()
    assert fetch_repository("org/model") == folder
    assert not hub.asked_for("*/resolve/*")
    repository.commit({"config.json": b"[]"})
    assert contents(fetch_repository("org/model")) == {**files, "config.json": b"[]"}
    hub.close()
    assert (fetch_repository("org/model") / "config.json").read_bytes() == b"[]"


def test_without_ids_a_download_is_resumed(hub: HubServer) -> None:
    hub.add("org/model", FILES)
    hub.fault("/api/*", times=ALWAYS, edit=lacking("blobId", "lfs"))
    hub.fault("/files/*/rank0.engine", cut_at=0.6)
    assert contents(fetch_repository("org/model")) == FILES
    assert [request.start for request in hub.asked_for("/files/*")] == [0, 3000]


def test_without_sizes(hub: HubServer) -> None:
    hub.add("org/model", FILES)
    hub.fault("/api/*", times=ALWAYS, edit=lacking("size", "blobId", "lfs"))
    with pytest.raises(ArtifactError) as caught:
        fetch_repository("org/model")
    assert caught.value.message == (
        "engine_repository 'org/model': 'config.json' is listed without its size; set HF_ENDPOINT "
        "to a mirror that answers `?blobs=true` with sizes, or use a folder or S3."
    )
    assert not hub.asked_for("*/resolve/*")
