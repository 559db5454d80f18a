"""Bytes from the Hub: resumed, verified, counted, kept."""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
from huggingface_hub import constants, hf_hub_download, snapshot_download
from tests.fakes.hub.server import HubServer
from tests.support.waiting import PATIENCE_S
from tests.support.whole_repository import fetch_repository

from trtllm_truss.artifacts.open_repository import open_repository
from trtllm_truss.artifacts.progress import Progress
from trtllm_truss.errors import ArtifactError

ENGINE = random.Random(1).randbytes(2_000_000)
FILES = {"config.json": b"{}", "rank0.engine": ENGINE}


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def fetch(revision: str | None = None) -> Path:
    return fetch_repository("org/engine", revision)


def refusal() -> str:
    with pytest.raises(ArtifactError) as caught:
        fetch()
    return caught.value.message


@pytest.fixture(autouse=True)
def repository(hub: HubServer) -> None:
    hub.add("org/engine", FILES)


def test_a_cut_connection_is_resumed(hub: HubServer) -> None:
    hub.fault("/files/*/rank0.engine", cut_at=0.6)
    assert (fetch() / "rank0.engine").read_bytes() == ENGINE
    requests = hub.asked_for("/files/*/rank0.engine")
    assert [(request.start, request.sent) for request in requests] == [
        (0, 1_200_000),
        (1_200_000, 800_000),
    ]


def test_a_killed_download_is_resumed(hub: HubServer, cache: Path) -> None:
    hub.fault("/files/*", cut_at=0.6, times=100)
    assert "rank0.engine was interrupted" in refusal()
    hub.faults.clear()
    before = hub.sent("/files/*")
    assert (fetch() / "rank0.engine").read_bytes() == ENGINE
    assert hub.sent("/files/*") - before == 800_000


def test_a_file_that_is_too_short(hub: HubServer) -> None:
    hub.fault("/files/*", cut_at=0.5, short=True, times=100)
    assert "rank0.engine was cut short at 1000000 of 2000000 bytes" in refusal()


def test_a_server_that_knows_no_ranges(hub: HubServer, cache: Path) -> None:
    part = cache / "hub/models--org--engine/blobs" / f"{digest(hub)}.trtllm-truss.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(ENGINE[:1000] + b"x" * 1000)
    assert (fetch() / "rank0.engine").read_bytes() == ENGINE  # the second time from the start
    assert [request.start for request in hub.asked_for("/files/*")] == [2000, 0]


def digest(hub: HubServer) -> str:
    repository = hub.repositories["org/engine"]
    return repository.commits[repository.revisions["main"]]["rank0.engine"].sha256


@pytest.mark.parametrize("file", ["rank0.engine", "config.json"])
def test_wrong_bytes_are_refused_and_removed(hub: HubServer, cache: Path, file: str) -> None:
    hub.fault(f"*/{file}", corrupt=True, times=9)
    hub.fault(f"*/resolve/*/{file}", corrupt=True, times=9)
    assert f"{file} does not match the repository's listing" in refusal()
    store = cache / "hub/models--org--engine"
    left = [path for path in store.rglob("*") if path.is_file() and path.suffix != ".json"]
    assert not [path for path in left if path.stat().st_size == len(FILES[file])]
    hub.faults.clear()
    assert (fetch() / file).read_bytes() == FILES[file]


def test_rate_limit_and_failures_pass(hub: HubServer, caplog: pytest.LogCaptureFixture) -> None:
    hub.fault("/api/*", status=429, headers={"Retry-After": "1"})
    hub.fault("/api/*", status=503)
    hub.fault("*/resolve/*", status=502, times=2)
    assert (fetch() / "config.json").is_file()
    assert "met the Hub's rate limit (429); retrying in 1.0 s" in caplog.text


def test_long_rate_limits_are_errors(hub: HubServer) -> None:
    hub.fault("/api/*", status=429, headers={"Retry-After": "4000"})
    message = refusal()
    assert "met the Hub's rate limit (429)" in message
    assert "set the secret hf_access_token for a higher limit" in message


@pytest.mark.parametrize("asked", ["\xb2", "-1", "1.5", "nan", ""])
def test_an_invalid_retry_after(hub: HubServer, asked: str) -> None:
    hub.fault("/api/*", status=503, headers={"Retry-After": asked})
    assert (fetch() / "config.json").is_file()


def test_failures_that_last(hub: HubServer) -> None:
    hub.fault("/api/*", status=500, times=100)
    assert "met HTTP status 500; try again later" in refusal()


def test_the_second_start_downloads_nothing(hub: HubServer) -> None:
    first = fetch()
    hub.forget()
    assert fetch() == first
    assert [request.path for request in hub.requests] == ["/api/models/org/engine/revision/main"]


def test_a_commit_is_listed_once(hub: HubServer) -> None:
    commit = hub.repositories["org/engine"].revisions["main"]
    first = fetch(commit)
    hub.forget()
    assert fetch(commit) == first
    assert hub.requests == []


def test_offline(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch()
    hub.close()
    assert fetch() == first
    with pytest.raises(ArtifactError, match=r"cannot be reached .*check this machine's network"):
        fetch_repository("org/other")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch() == first
    with pytest.raises(ArtifactError, match="HF_HUB_OFFLINE forbids"):
        fetch_repository("org/other")


def test_files_of_huggingface_hub_are_used(hub: HubServer) -> None:
    for name in FILES:
        hf_hub_download("org/engine", name)
    link = Path(hf_hub_download("org/engine", "rank0.engine"))
    made = link.lstat()
    hub.forget()
    assert (fetch() / "rank0.engine").read_bytes() == ENGINE
    assert hub.sent("/files/*") == 0
    assert os.path.samestat(link.lstat(), made), "a link that is right is not made anew"
    hub.close()
    assert (fetch() / "rank0.engine").read_bytes() == ENGINE


def test_a_cache_of_huggingface_hub_is_enough_offline(hub: HubServer) -> None:
    for name in FILES:
        hf_hub_download("org/engine", name)
    hub.close()
    assert (fetch() / "rank0.engine").read_bytes() == ENGINE


def test_huggingface_hub_reads_what_was_fetched(hub: HubServer) -> None:
    folder = fetch()
    hub.forget()
    assert Path(hf_hub_download("org/engine", "rank0.engine")) == folder / "rank0.engine"
    assert hub.sent("/files/*") == 0


def test_a_download_of_huggingface_hub_at_the_same_time(hub: HubServer, cache: Path) -> None:
    """Releases below 2.0 append to `<id>.incomplete`, also after our check."""
    theirs = cache / "hub/models--org--engine/blobs" / f"{digest(hub)}.incomplete"
    theirs.parent.mkdir(parents=True)
    with theirs.open("ab", buffering=0) as stream:
        stream.write(ENGINE[:1000])
        folder = fetch()
        stream.write(ENGINE[1000:])
        assert (folder / "rank0.engine").read_bytes() == ENGINE
        assert os.path.samestat(os.fstat(stream.fileno()), theirs.stat())
    assert theirs.read_bytes() == ENGINE


def test_a_damaged_blob_is_fetched_again(hub: HubServer, cache: Path) -> None:
    blob = (fetch() / "rank0.engine").resolve()
    blob.write_bytes(b"")
    assert (fetch() / "rank0.engine").read_bytes() == ENGINE


def test_only_requested_files_are_fetched(hub: HubServer) -> None:
    hub.repositories["org/engine"].commit({"model.bin": b"x" * 1000, "notes.md": b"y"})
    source = open_repository("org/engine", None, setting="engine_repository", token=None)
    assert source.read("config.json") == b"{}"
    folder = source.fetch(["config.json", "rank0.engine"])
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "rank0.engine"]


def test_a_disk_that_is_too_small(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(9, 9, 1_000_000))
    message = refusal()
    assert "needs 0.00 GB more and 0.00 GB are free" in message
    assert "point HF_HOME at a larger disk" in message
    assert hub.sent("/files/*") == 0


def test_small_files_take_whole_blocks_of_the_disk(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["org/engine"].commit({f"{n}.json": str(n).encode() for n in range(400)})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(9, 9, len(ENGINE) + 1_000_000))
    assert "free some space" in refusal()


def test_space_is_freed_on_a_full_disk(hub: HubServer, tmp_path: Path, cache: Path) -> None:
    """A real disk of 8 MB, which is full when 1.2 of the 2 MB are there."""
    full = threading.Event()
    held = 1_200_000
    hub.before_sending = lambda request: (
        request.start + request.sent < held or full.wait(PATIENCE_S)  # also when it is resumed
    )
    program = Path(__file__).with_name("full_disk_process.py")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=8m none {disk}"
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, mount]).returncode != 0:
        pytest.skip("this machine lets nobody mount a disk")
    with subprocess.Popen(
        [*namespace, f"{mount} && exec {sys.executable} {program} {disk} {held}"],
        env={**os.environ, **hub.environment, "HF_HOME": str(disk)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        full.set()
        output, errors = process.stdout.read(), process.stderr.read()  # what is buffered too
    assert first == "full\n", errors
    assert process.returncode == 0, errors
    message, free, incomplete = output.splitlines()
    assert "the download found no room left on the disk of" in message
    assert int(free) >= 500_000
    assert int(incomplete) == 0


def test_a_cache_that_cannot_be_written(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    assert "cannot be written" in refusal()


def test_starts_at_once_share_one_download(hub: HubServer) -> None:
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(fetch())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 6
    assert len(set(folders)) == 1
    assert hub.sent("/files/*") == len(ENGINE)


def test_without_marks_contents_are_hashed_again(hub: HubServer, cache: Path) -> None:
    fetch()
    for mark in (cache / "trtllm-truss/verified").iterdir():
        mark.unlink()
    before = hub.sent("/files/*")
    blob = (fetch() / "rank0.engine").resolve()
    assert hub.sent("/files/*") == before
    for mark in (cache / "trtllm-truss/verified").iterdir():
        mark.unlink()
    blob.write_bytes(ENGINE[::-1])
    assert (fetch() / "rank0.engine").read_bytes() == ENGINE


def test_the_tree_and_the_refs_are_those_of_huggingface_hub(hub: HubServer) -> None:
    """Since 2.x it lists a commit from there, without a request."""
    folder = fetch()
    hub.forget()
    assert Path(snapshot_download("org/engine", revision=folder.name)) == folder
    assert Path(snapshot_download("org/engine", local_files_only=True)) == folder
    assert not hub.asked_for("/api/*")
    hub.close()
    assert (fetch(folder.name) / "rank0.engine").read_bytes() == ENGINE


def test_progress_logs_rate_and_time_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtllm_truss.artifacts.progress._EVERY_S", 0.01)
    caplog.set_level(logging.INFO)
    told = threading.Event()
    handler = logging.Handler()
    said = "engine: 2.0 GB of 4.0 GB, "
    handler.emit = lambda record: told.set() if said in record.getMessage() else None  # type: ignore[method-assign]
    logger = logging.getLogger("trtllm_truss.artifacts.progress")
    logger.addHandler(handler)
    try:
        with Progress("engine", 4_000_000_000, 1_000_000_000) as progress:
            progress.add(1_000_000_000)
            assert told.wait(PATIENCE_S)
    finally:
        logger.removeHandler(handler)
    assert "engine: fetching 4.0 GB, 1.0 GB of them here already" in caplog.text
    assert said in caplog.text
    assert "/s, time left: " in caplog.text
    assert "engine: fetched in " in caplog.text
