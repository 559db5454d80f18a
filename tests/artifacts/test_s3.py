"""Repositories in S3, from a real S3-compatible server."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes.s3.server import S3Server
from tests.support.whole_repository import fetch_repository

from trtllm_truss.artifacts.open_repository import open_repository
from trtllm_truss.artifacts.s3 import open_on_s3
from trtllm_truss.errors import ArtifactError, SettingsError

ENGINE = random.Random(2).randbytes(500_000)
FILES = {"config.json": b"{}", "rank0.engine": ENGINE, "1/deeper.txt": b"x"}


def fetch(url: str) -> Path:
    return fetch_repository(url)


def refusal(url: str) -> str:
    with pytest.raises(ArtifactError) as caught:
        fetch(url)
    return caught.value.message


def blob(folder: Path) -> Path:
    return (folder / "rank0.engine").resolve()


def test_fetched_once(s3: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    s3.upload("engines", "llama/v1", FILES)
    s3.upload("engines", "llama/v10", {"config.json": b"another prefix"})
    caplog.set_level("INFO")
    folder = fetch("s3://engines/llama/v1/")
    got = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}
    assert got == FILES
    assert "fetching 500.0 kB" in caplog.text
    caplog.clear()
    assert fetch("s3://engines/llama/v1") == folder
    assert "fetching" not in caplog.text


def test_resumed(s3: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    s3.upload("engines", "resumed", FILES)
    whole = blob(fetch("s3://engines/resumed"))
    whole.with_name(f"{whole.name}.trtllm-truss.incomplete").write_bytes(ENGINE[:300_000])
    whole.unlink()
    caplog.set_level("INFO")
    assert (fetch("s3://engines/resumed") / "rank0.engine").read_bytes() == ENGINE
    assert "fetching 500.0 kB, 300.0 kB of them here already" in caplog.text


@pytest.mark.parametrize("options", [{}, {"ChecksumAlgorithm": "SHA256"}])
def test_wrong_bytes_are_refused(s3: S3Server, options: dict[str, str]) -> None:
    prefix = f"wrong{len(options)}"
    s3.upload("engines", prefix, FILES, **options)
    source = open_on_s3(f"s3://engines/{prefix}", setting="engine_repository")
    (file,) = source.listing().select(["rank0.engine"])
    assert file.digest is not None
    assert file.digest.algorithm == ("sha256" if options else "md5")
    whole = blob(source.fetch(["rank0.engine"]))
    whole.with_name(f"{whole.name}.trtllm-truss.incomplete").write_bytes(b"x" * len(ENGINE))
    whole.unlink()
    assert (fetch(f"s3://engines/{prefix}") / "rank0.engine").read_bytes() == ENGINE


def test_an_encrypted_object_has_no_md5(s3: S3Server) -> None:
    s3.upload("engines", "encrypted", FILES, ServerSideEncryption="aws:kms")
    assert (fetch("s3://engines/encrypted") / "rank0.engine").read_bytes() == ENGINE


def test_an_object_in_several_parts(s3: S3Server) -> None:
    data = random.Random(3).randbytes(6_000_000)
    s3.upload("engines", "parts", {"config.json": b"{}"})
    key = {"Bucket": "engines", "Key": "parts/rank0.engine"}
    upload = s3.client.create_multipart_upload(**key)["UploadId"]
    parts = []
    for number, part in enumerate((data[:5_242_880], data[5_242_880:]), 1):
        answer = s3.client.upload_part(**key, UploadId=upload, PartNumber=number, Body=part)
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
    s3.client.complete_multipart_upload(**key, UploadId=upload, MultipartUpload={"Parts": parts})
    assert (fetch("s3://engines/parts") / "rank0.engine").read_bytes() == data


def test_a_change_while_it_is_fetched(s3: S3Server) -> None:
    s3.upload("engines", "changing", FILES)
    source = open_repository("s3://engines/changing", None, setting="engine_repository", token=None)
    source.listing()
    s3.upload("engines", "changing", {"rank0.engine": b"new"})
    with pytest.raises(ArtifactError, match="changed during the download; start again"):
        source.fetch(["rank0.engine"])
    assert (fetch("s3://engines/changing") / "rank0.engine").read_bytes() == b"new"


def test_offline(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.upload("engines", "offline", FILES)
    folder = fetch("s3://engines/offline")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    assert fetch("s3://engines/offline") == folder
    assert "check this machine's network and AWS_ENDPOINT_URL_S3" in refusal("s3://engines/other")


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("s3://engines-that-are-not/x", "names a bucket that does not exist"),
        ("s3://engines/nothing/here", "has no objects; check the prefix"),
        ("s3://Not_A_Bucket!/x", "is an invalid bucket name"),
        ("s3://", "has no bucket"),
    ],
)
def test_refusals(s3: S3Server, url: str, part: str) -> None:
    s3.upload("engines", "some", {"config.json": b"{}"})
    assert part in refusal(url)


def test_no_credentials(s3: S3Server, cache: Path) -> None:
    program = Path(__file__).with_name("fetching_process.py")
    none = {"HOME": str(cache), "HF_HOME": str(cache), "AWS_EC2_METADATA_DISABLED": "true"}
    keep = {name: os.environ[name] for name in ("PATH", "AWS_ENDPOINT_URL_S3")}
    result = subprocess.run(
        [sys.executable, program, "s3://engines/x", "config.json"],
        env={**keep, **none},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "needs credentials; set AWS_ACCESS_KEY_ID" in result.stderr


def test_s3_has_no_revisions() -> None:
    with pytest.raises(SettingsError, match="engine_revision is 'v1', but only"):
        fetch_repository("s3://a/b", "v1")


def test_the_beginning_of_an_object(s3: S3Server) -> None:
    s3.upload("engines", "head", FILES)
    source = open_on_s3("s3://engines/head", setting="lora_adapters.sql")
    assert source.read_head("rank0.engine", 1000) == ENGINE[:1000]
    assert source.read_head("config.json", 1000) == b"{}"
    assert not source.present(["rank0.engine"])
    source.fetch(["rank0.engine"])
    assert source.read_head("rank0.engine", 1000) == ENGINE[:1000]
