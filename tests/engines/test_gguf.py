from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gguf_writer import Typed, header
from tests.text.tokenizer_zoo import smollm2_file

from trtllm_truss import gguf
from trtllm_truss.errors import ArtifactError
from trtllm_truss.gguf import read_metadata

METADATA = {
    "general.name": "Größe 日本",
    "tokens": ["a", "", "é"],
    "empty": [],
    **{code: Typed(code, 7) for code in "BbHhIiQq"},
    "f": Typed("f", 0.5),
    "d": Typed("d", 0.25),
    "?": Typed("?", True),
    "numbers": Typed("i", [-1, 0, 1]),
    "floats": Typed("f", [1.5, -2.0]),
}


def write(folder: Path, data: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_every_type_is_read(tmp_path: Path, version: int) -> None:
    read = read_metadata(write(tmp_path, header(METADATA, version) + b"tensors"))
    expected = {
        key: value.value if isinstance(value, Typed) else value for key, value in METADATA.items()
    }
    assert read == expected
    assert list(read) == list(expected)


def test_a_real_file_is_read() -> None:
    metadata = read_metadata(smollm2_file())
    assert metadata["general.architecture"] == "llama"
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert len(tokens) == 49152


@given(length=st.integers(0, len(header(METADATA)) - 1))
def test_a_file_that_ends_early_is_refused(
    tmp_path_factory: pytest.TempPathFactory, length: int
) -> None:
    path = write(tmp_path_factory.mktemp("short"), header(METADATA)[:length])
    with pytest.raises(ArtifactError, match=r"model\.gguf"):
        read_metadata(path)


@pytest.mark.parametrize(
    "data",
    [
        header({}, magic=b"GGML"),
        header({}, version=1),
        struct.pack(">4sIQQ", b"GGUF", 3, 0, 0),
        header({}) [:16] + struct.pack("<Q", 2**63),
        header({"a": "b"})[:-9] + struct.pack("<Q", 2**63) + b"b",
        header({"a": Typed("i", [])})[:-8] + struct.pack("<Q", 2**62),
        header({"a": []})[:-8] + struct.pack("<Q", 2**62),
        header({"a": Typed("B", 1)})[:-5] + struct.pack("<IB", 99, 1),
        header({"a": "é"})[:-1] + b"e",
    ],
    ids=[
        "magic", "version", "byte-order", "keys", "string", "numbers", "strings", "type", "utf-8",
    ],
)  # fmt: skip
def test_a_corrupt_file_is_refused_at_once(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ArtifactError, match="download or convert it again"):
        read_metadata(write(tmp_path, data))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"gone\.gguf"):
        read_metadata(tmp_path / "gone.gguf")


@pytest.mark.parametrize("value", [["token"] * 100, Typed("I", [1] * 100)])
def test_a_header_out_of_bounds_is_refused(
    value: list[str] | Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, header({"a": value}))
    assert len(read_metadata(file)) == 1
    monkeypatch.setattr(gguf, "_MAX_HEADER_BYTES", 200)
    with pytest.raises(ArtifactError, match="its header has more than 200 bytes"):
        read_metadata(file)
