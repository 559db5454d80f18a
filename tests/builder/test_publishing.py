"""Publishing to S3, and the download by another replica."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.builder.llama_checkpoint import write_tiny_checkpoint
from tests.builder.run.test_ensure_engine import block, ensured
from tests.fakes.s3.server import S3Server

from trtllm_builder.jobs import builds_folder
from trtllm_builder.publishing import publish
from trtllm_truss.errors import BuildError


def test_a_replica_downloads_from_s3(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_checkpoint(tmp_path)
    s3.client.create_bucket(Bucket="engines")
    wanted = block(tmp_path, publish_to="s3://engines/tiny/int8")
    built = ensured(wanted)
    listed = s3.client.list_objects_v2(Bucket="engines", Prefix="tiny/int8/")["Contents"]
    assert {entry["Key"].removeprefix("tiny/int8/") for entry in listed} == {
        "README.md",
        "model.gguf",
        "tokenizer.json",
        "engine.manifest.json",
        "generation_config.json",
    }
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", str(tmp_path / f"replica-{name}"))
    fetched = ensured(wanted)
    assert not fetched.is_relative_to(builds_folder())
    assert (fetched / "model.gguf").read_bytes() == (built / "model.gguf").read_bytes()


@pytest.mark.parametrize("destination", ["s3://no-such-bucket/x", "/a/folder"])
def test_an_unusable_destination_is_named(tmp_path: Path, s3: S3Server, destination: str) -> None:
    write_tiny_checkpoint(tmp_path)
    built = ensured(block(tmp_path))
    with pytest.raises(BuildError, match=r"build\.publish_to"):
        publish(built, destination, None)
