"""Large files in ranges: out of order, resumed with holes, hashed, and refused when wrong."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.fakes.hub.server import HubServer, Request
from tests.fakes.s3.hostile import HostileObject, hostile_s3_server
from tests.fakes.s3.server import S3Server
from tests.support.waiting import settles
from tests.support.whole_repository import fetch_repository

from trtllm_truss.artifacts import retrying, transfer
from trtllm_truss.artifacts.cache import Cache, begun_bytes
from trtllm_truss.artifacts.hub import HubErrors, _Hub
from trtllm_truss.artifacts.listing import Digest, File, has_sha256
from trtllm_truss.artifacts.s3 import _Bucket
from trtllm_truss.errors import ArtifactError

PROGRAM = Path(__file__).with_name("fetching_process.py")
RANGE = 300_000
ENGINE = random.Random(4).randbytes(2_000_000)
STARTS = set(range(0, len(ENGINE), RANGE))
SHA256 = hashlib.sha256(ENGINE).hexdigest()
FILE = File("rank0.engine", len(ENGINE), SHA256, Digest("sha256", SHA256))


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "RANGE_BYTES", RANGE)
    monkeypatch.setattr(retrying, "_FIRST_DELAY_S", 0.01)


@pytest.fixture
def engine(hub: HubServer) -> HubServer:
    hub.add("org/engine", {"config.json": b"{}", "rank0.engine": ENGINE})
    return hub


def fetch() -> bytes:
    return (fetch_repository("org/engine") / "rank0.engine").read_bytes()


def refusal() -> str:
    with pytest.raises(ArtifactError) as caught:
        fetch()
    return caught.value.message


def unfinished(cache: Path) -> Path:
    path = cache / f"hub/models--org--engine/blobs/{SHA256}.trtllm-truss.incomplete"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def leave(path: Path, arrived: dict[int, bytes]) -> None:
    """Leave what a killed process would."""
    with path.open("wb") as unfinished:
        for number, data in arrived.items():
            unfinished.seek(number * RANGE)
            unfinished.write(data)


def test_every_range_is_asked_for_once(engine: HubServer, cache: Path) -> None:
    assert fetch() == ENGINE
    requests = engine.asked_for("/files/*")
    assert {request.start for request in requests} == STARTS
    assert len(requests) == len(STARTS)
    assert all(request.status == 206 for request in requests)
    assert not list(cache.rglob("*.incomplete"))
    (blob,) = cache.rglob(f"blobs/{SHA256}")
    assert blob.stat().st_size == len(ENGINE)


def test_four_files_and_eight_connections(hub: HubServer) -> None:
    """The first eight bodies wait for each other. A body counts until its last chunk."""
    files = {f"rank{rank}.engine": random.Random(rank).randbytes(900_000) for rank in range(6)}
    hub.add("org/engine", files)
    eight, first = threading.Barrier(8), set[int]()
    now, most = set[int](), []

    def count(request: Request) -> None:
        if request.sent >= RANGE - RANGE % (1 << 16):
            with hub.lock:
                now.discard(id(request))
        elif "/files/" in request.path and request.sent == 0:
            with hub.lock:
                now.add(id(request))
                most.append(len(now))
                is_first = len(most) <= 8
                first.update([id(request)] if is_first else [])
            if is_first:
                eight.wait(60)

    hub.before_sending = count
    folder = fetch_repository("org/engine")
    assert {path: (folder / path).read_bytes() for path in files} == files
    assert hub.sent("/files/*") == sum(map(len, files.values()))
    assert max(most) == 8
    paths = [request.path for request in hub.asked_for("/files/*") if id(request) in first]
    assert len(set(paths)) in (3, 4)
    assert len(most) == 18


def test_the_first_hole_is_where_it_goes_on(engine: HubServer, cache: Path) -> None:
    """Of the last block before a hole, a part may have arrived."""
    ranges = {n: ENGINE[n * RANGE : (n + 1) * RANGE] for n in (0, 1, 4, 6)}
    leave(unfinished(cache), {**ranges, 2: ENGINE[2 * RANGE : 2 * RANGE + 1000]})
    with unfinished(cache).open("rb") as left:
        begun = begun_bytes(left.fileno(), len(ENGINE))
    assert RANGE < begun <= 2 * RANGE + 1000
    assert fetch() == ENGINE
    starts = {request.start for request in engine.asked_for("/files/*")}
    assert starts == {*range(begun, len(ENGINE), RANGE)}
    assert engine.sent("/files/*") == len(ENGINE) - begun


@pytest.mark.parametrize("length", [1, RANGE + 7, len(ENGINE) - 1])
def test_a_beginning_is_continued(engine: HubServer, cache: Path, length: int) -> None:
    unfinished(cache).write_bytes(ENGINE[:length])
    assert fetch() == ENGINE
    assert engine.sent("/files/*") == len(ENGINE) - length


def test_a_file_system_that_tells_no_holes(
    engine: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "lseek", lambda descriptor, *_: os.fstat(descriptor).st_size)
    leave(unfinished(cache), {0: ENGINE[:RANGE], 6: ENGINE[6 * RANGE :]})
    assert fetch() == ENGINE


@pytest.mark.parametrize("left", [b"x" * RANGE, bytes(len(ENGINE)), bytes(len(ENGINE) + 64)])
def test_wrong_bytes_of_an_earlier_attempt(engine: HubServer, cache: Path, left: bytes) -> None:
    """The last one is what releases before 1.0 left: ranges with a footer."""
    unfinished(cache).write_bytes(left)
    assert fetch() == ENGINE


def test_wrong_bytes_are_refused(engine: HubServer, cache: Path) -> None:
    engine.fault("/files/*", corrupt=True)
    assert "rank0.engine does not match the repository's listing" in refusal()
    assert not unfinished(cache).exists()
    assert fetch() == ENGINE


def test_a_cut_range_goes_on_from_there(engine: HubServer) -> None:
    engine.fault("/files/*", cut_at=0.9)
    assert fetch() == ENGINE
    assert engine.sent("/files/*") == len(ENGINE)
    assert len(engine.asked_for("/files/*")) == len(STARTS) + 1


def test_a_refused_range_is_tried_again(engine: HubServer) -> None:
    engine.fault("/files/*", status=503, times=3)
    assert fetch() == ENGINE
    sent = [request.start for request in engine.asked_for("/files/*") if request.status == 206]
    assert sorted(sent) == sorted(STARTS)


def test_a_range_that_is_too_short(engine: HubServer) -> None:
    engine.fault("/files/*", cut_at=0.9, short=True)
    assert fetch() == ENGINE
    assert engine.sent("/files/*") < len(ENGINE) + RANGE


def test_ranges_that_are_too_long(engine: HubServer, cache: Path) -> None:
    engine.fault("/files/*", times=10**9, extra_bytes=1_000_000_000)
    message = refusal()
    assert "rank0.engine is longer than" in message or "with more bytes than asked" in message
    assert engine.sent("/files/*") < 1_000_000_000
    left = unfinished(cache)
    assert not left.exists() or left.stat().st_size < len(ENGINE) + 1000
    engine.faults.clear()
    assert fetch() == ENGINE


@pytest.mark.parametrize(
    ("content_range", "problem"),
    [
        ("bytes 1-2/2000000", "with other bytes than"),
        ("bytes 0-1999999/2000000", "with other bytes than"),
        ("bytes */2000000", "with other bytes than"),
        ("", "with other bytes than"),
        ("bytes 99999999999999999999-0/1", "with other bytes than"),
    ],
)
def test_a_wrong_content_range(
    engine: HubServer, cache: Path, content_range: str, problem: str
) -> None:
    engine.fault("/files/*", times=10**9, headers={"Content-Range": content_range})
    assert problem in refusal()
    assert unfinished(cache).stat().st_size == 0
    engine.faults.clear()
    assert fetch() == ENGINE


@pytest.mark.parametrize(
    ("listed", "part_of"),
    [(len(ENGINE) - 1, "is longer than the"), (len(ENGINE) + 1, "is shorter than")],
)
def test_a_file_of_another_length(engine: HubServer, listed: int, part_of: str) -> None:
    def edit(info: dict[str, list[dict[str, dict[str, object]]]]) -> object:
        info["siblings"][1]["lfs"]["size"] = listed
        return info

    engine.fault("/api/*", edit=edit)
    assert part_of in refusal()
    engine.forget()
    assert fetch() == ENGINE
    assert engine.sent("/files/*") == len(ENGINE), "nothing was kept"


def test_a_server_that_forgets_ranges(engine: HubServer) -> None:
    def forget(request: Request) -> None:
        engine.knows_no_ranges = engine.knows_no_ranges or request.start > 0

    engine.before_sending = forget
    assert fetch() == ENGINE


def test_another_etag_between_ranges(engine: HubServer, cache: Path) -> None:
    """Without a hash in the listing, only the ETag shows that a file has changed."""

    def edit(info: dict[str, list[dict[str, object]]]) -> object:
        known = {"rfilename": "rank0.engine", "size": len(ENGINE)}
        return {**info, "siblings": [info["siblings"][0], known]}

    engine.fault("/api/*", times=10**9, edit=edit)
    engine.fault("/files/*", headers={"ETag": '"another"'})
    assert "rank0.engine changed during the download, and was removed" in refusal()
    assert not [path for path in cache.rglob("*.incomplete") if path.stat().st_size > 2]
    assert fetch() == ENGINE


@pytest.mark.parametrize("arrived", [{}, {0: ENGINE[:1000]}, {3: ENGINE[3 * RANGE : 4 * RANGE]}])
def test_a_server_that_knows_no_ranges(
    engine: HubServer, cache: Path, arrived: dict[int, bytes]
) -> None:
    leave(unfinished(cache), arrived)
    engine.knows_no_ranges = True
    engine.fault("/files/*", cut_at=1.0)
    assert fetch() == ENGINE


def test_equal_files(hub: HubServer) -> None:
    files = {"a.engine": ENGINE, "b/a.engine": ENGINE}
    hub.add("org/engine", files)
    folder = fetch_repository("org/engine")
    assert {path: (folder / path).read_bytes() for path in files} == files
    assert hub.sent("/files/*") == len(ENGINE)


def test_a_link_in_place_of_the_part(engine: HubServer, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"kept")
    unfinished(cache).symlink_to(tmp_path / "victim")
    assert "cannot be written" in refusal()
    assert (tmp_path / "victim").read_bytes() == b"kept"


def test_known_contents_are_not_read_again(
    engine: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = engine.repositories["org/engine"].revisions["main"]
    folder = fetch_repository("org/engine", commit)

    def read(*_: object) -> bool:
        raise AssertionError("known contents were read")

    monkeypatch.setattr(Digest, "matches", read)
    assert has_sha256(folder / "rank0.engine", SHA256)
    engine.forget()
    assert fetch_repository("org/engine", commit) == folder
    assert not engine.requests, "a full commit was listed again"
    engine.repositories["org/engine"].commit({"notes.md": b"new commit"})
    engine.forget()
    assert fetch() == ENGINE
    assert not engine.asked_for("/files/*")


def test_a_killed_process_leaves_a_hole(engine: HubServer, cache: Path) -> None:
    """The third range waits until all others have arrived; then the process is killed."""
    killed = threading.Event()
    engine.before_sending = lambda request: (
        request.start == 2 * RANGE
        and "/files/" in request.path
        and request.sent > 0
        and killed.wait(60)
    )
    process = subprocess.Popen(
        [sys.executable, PROGRAM, "org/engine", "rank0.engine"],
        env={**os.environ, **engine.environment, "HF_HOME": str(cache), "RANGE_BYTES": str(RANGE)},
        stdout=subprocess.DEVNULL,
    )
    with process:
        left = unfinished(cache)
        assert settles(lambda: left.exists() and left.stat().st_size == len(ENGINE))
        assert settles(lambda: Cache(left.parent.parent).begun_bytes(FILE) > RANGE)
        process.kill()
    killed.set()
    engine.before_sending = lambda request: None
    begun = Cache(left.parent.parent).begun_bytes(FILE)
    engine.forget()
    assert fetch() == ENGINE
    assert engine.sent("/files/*") == len(ENGINE) - begun


def test_a_whole_file_is_recorded_before_the_others(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_FILES_AT_ONCE", 1)
    ranks = {f"rank{rank}.engine": bytes([rank]) * 400_000 for rank in range(4)}
    hub.add("org/engine", {**ranks, "last.engine": bytes(350_000)})
    hub.fault("*/resolve/*/last.engine", status=404, times=2)
    with pytest.raises(ArtifactError):
        fetch_repository("org/engine")
    hub.forget()
    monkeypatch.setattr(Digest, "matches", lambda *_: pytest.fail("known contents were read"))
    folder = fetch_repository("org/engine")
    assert {path: (folder / path).read_bytes() for path in ranks} == ranks
    assert not hub.asked_for("/files/*rank*")


def test_storage_is_asked_without_the_hub_until_it_refuses(engine: HubServer) -> None:
    hub = opened(engine)

    def read(start: int, end: int) -> bytes:
        return read_range(hub, engine, FILE, start, end)

    assert read(0, 10) == ENGINE[:10]
    assert read(10, 20) == ENGINE[10:20]
    assert len(engine.asked_for("*/resolve/*", "HEAD")) == 1
    engine.fault("/files/*", status=403)
    assert read(20, 30) == ENGINE[20:30]
    assert read(30, 40) == ENGINE[30:40]
    assert len(engine.asked_for("*/resolve/*", "HEAD")) == 2
    assert len(engine.asked_for("*/resolve/*")) == 1
    assert [request.token for request in engine.asked_for("/files/*")] == [None] * 5
    hub.close()


def test_the_hub_sends_no_large_body(engine: HubServer) -> None:
    """A HEAD tells where the file is."""
    assert fetch() == ENGINE
    assert len(engine.asked_for("*/resolve/*/rank0.engine", "HEAD")) == 1
    assert not engine.asked_for("*/resolve/*/rank0.engine")
    assert engine.sent("/files/*") == len(ENGINE)


def test_the_hub_itself_gets_the_token_again(engine: HubServer) -> None:
    data = bytes(range(100))
    engine.add("org/engine", {"notes.md": data}, private=True)
    hub = opened(engine)
    file = File.unhashed("", "notes.md", len(data))
    parts = [read_range(hub, engine, file, start, start + 50) for start in (0, 50)]
    assert b"".join(parts) == data
    assert [request.token for request in engine.asked_for("*/resolve/*")] == ["hf_token"] * 2
    hub.close()


def opened(engine: HubServer) -> _Hub:
    token = engine.add_token("hf_token", reads=frozenset({"*"}))
    cache = Cache(Path(constants.HF_HUB_CACHE) / "models--org--engine")
    return _Hub("org/engine", "main", HubErrors("name", None, token), token, cache)


def read_range(hub: _Hub, engine: HubServer, file: File, start: int, end: int) -> bytes:
    commit = engine.repositories["org/engine"].revisions["main"]
    with hub.open(commit, file, start, end) as (is_part, chunks):
        assert is_part
        return b"".join(bytes(chunk) for chunk in chunks)


def test_on_s3(s3: S3Server, cache: Path) -> None:
    s3.upload("engines", "ranges", {"rank0.engine": ENGINE})
    blob = (fetch_repository("s3://engines/ranges") / "rank0.engine").resolve()
    assert blob.read_bytes() == ENGINE
    left = blob.with_name(f"{blob.name}.trtllm-truss.incomplete")
    leave(left, {0: ENGINE[:RANGE], 2: ENGINE[2 * RANGE : 3 * RANGE]})
    blob.unlink()
    assert (fetch_repository("s3://engines/ranges") / "rank0.engine").read_bytes() == ENGINE


def test_an_object_that_changes_between_ranges(s3: S3Server) -> None:
    s3.upload("engines", "changes", {"rank0.engine": ENGINE})
    bucket = _Bucket("name", "engines", "changes")
    listing = bucket.listing()
    (file,) = listing.files
    with bucket.open(listing.commit, file, 0, RANGE) as (_, chunks):
        assert b"".join(bytes(chunk) for chunk in chunks) == ENGINE[:RANGE]
    s3.upload("engines", "changes", {"rank0.engine": ENGINE[::-1]})
    with (
        pytest.raises(ArtifactError, match="changed during the download; start again"),
        bucket.open(listing.commit, file, RANGE, 2 * RANGE),
    ):
        pass


@pytest.mark.parametrize(
    "content_range", ["bytes 5-9/2000000", "bytes 0-1999999/2000000", "bytes x", ""]
)
def test_a_wrong_content_range_of_s3(
    cache: Path, monkeypatch: pytest.MonkeyPatch, content_range: str
) -> None:
    with hostile_s3_server() as evil:
        for name, value in evil.environment.items():
            monkeypatch.setenv(name, value)
        headers = {"Content-Range": content_range}
        evil.objects["model/rank0.engine"] = HostileObject(ENGINE, headers=headers)
        with pytest.raises(ArtifactError, match="with other bytes than"):
            fetch_repository("s3://engines/model")
        evil.objects["model/rank0.engine"] = HostileObject(ENGINE)
        folder = fetch_repository("s3://engines/model")
        assert (folder / "rank0.engine").read_bytes() == ENGINE
