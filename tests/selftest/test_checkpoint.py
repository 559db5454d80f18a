"""The tiny checkpoint up to the edge of TensorRT-LLM: inspected, planned, tokenized."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from trtllm_truss.configuration import load_configuration
from trtllm_truss.engines.diagnostics import Severity
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.kinds import check_compatibility, inspect_engine, with_settings
from trtllm_truss.text.tokenizer import load_tokenizer
from trtllm_workbench.selftest.served_model import Skipped
from trtllm_workbench.selftest.subjects import (
    Kind,
    tiny_subject,
    write_checkpoint,
    write_converted_checkpoint,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint")


def test_the_tokenizer_has_whole_characters_and_bytes(checkpoint: Path) -> None:
    tokenizer = load_tokenizer(checkpoint)
    for text in ("Once upon a time", "naïve 漢字 😀", "ж 👍🏽 — žluť"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    pieces = [tokenizer.decode([number]) for number in range(3 + 256, tokenizer.vocab_size)]
    assert len(pieces) > 700
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert tokenizer.eos_ids == (2,)


def test_bytes_have_no_weight_in_the_output_layer(checkpoint: Path) -> None:
    data = (checkpoint / "model.safetensors").read_bytes()
    output = data[-1024 * 512 * 2 :]
    silent = 259 * 512 * 2
    assert output[:silent] == bytes(silent)
    assert output[silent : silent + 1024].count(0) < 100


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_llm_api_takes_it(checkpoint: Path, ranks: int) -> None:
    config = tiny_subject(
        "checkpoint", ranks, checkpoint.parent, HostInfo(runtime_version="1.2.1")
    ).make()
    settings = load_configuration(config, "1.2.1").settings
    assert settings.engine_repository == str(checkpoint)
    assert not settings.serving.keep_kernels
    engine = with_settings(inspect_engine(checkpoint), settings, "1.2.1")
    assert engine.backend == "llm_api"
    assert (engine.max_batch_size, engine.max_sequence_tokens) == (8, 2048)
    findings = check_compatibility(settings, engine, HostInfo(runtime_version="1.2.1"))
    assert [found for found in findings if found.severity is Severity.ERROR] == []


@pytest.mark.parametrize(("ranks", "version"), [(1, "0.12.0"), (2, "1.0.0"), (4, "1.2.1")])
def test_trtllm_build_makes_an_engine(
    tmp_path: Path, tools: Path, ranks: int, version: str
) -> None:
    """Build with a fake of the tool, which reads the checkpoint as the real one does."""
    config = tiny_subject("engine", ranks, tmp_path, HostInfo(runtime_version=version)).make()
    settings = load_configuration(config, version).settings
    assert settings.runtime.guided_decoding_backend == (None if version < "0.19" else "xgrammar")
    engine = inspect_engine(Path(settings.engine_repository or ""))
    assert (engine.backend, engine.world_size) == ("tensorrtllm", ranks)
    assert load_tokenizer(engine.folder).eos_ids == (2,)
    (call,) = (tools / "calls").read_text().splitlines()
    assert call.startswith("build ")
    assert "--max_batch_size" in call


def read_header(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    end = max(tensor["data_offsets"][1] for tensor in header.values())
    assert len(data) == 8 + length + end
    return header


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_converted_checkpoint_is_split_over_the_ranks(tmp_path: Path, ranks: int) -> None:
    """Names and shapes are those of NVIDIA's documentation of the format."""
    write_converted_checkpoint(tmp_path, ranks)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["mapping"] == {"world_size": ranks, "tp_size": ranks, "pp_size": 1}
    for rank in range(ranks):
        header = read_header(tmp_path / f"rank{rank}.safetensors")
        shapes = {name: tensor["shape"] for name, tensor in header.items()}
        assert shapes["transformer.vocab_embedding.weight"] == [1024, 512]
        assert shapes["lm_head.weight"] == [1024 // ranks, 512]
        assert shapes["transformer.layers.1.attention.qkv.weight"] == [3 * 512 // ranks, 512]
        assert shapes["transformer.layers.1.attention.dense.weight"] == [512, 512 // ranks]
        assert shapes["transformer.layers.1.mlp.proj.weight"] == [512, 1024 // ranks]
        assert len(shapes) == 3 + 2 * 7


@pytest.mark.parametrize(
    ("kind", "version", "reason"),
    [
        ("checkpoint", "0.20.0", "the LLM API needs TensorRT-LLM 1.0 or later"),
        ("checkpoint", None, "the LLM API needs TensorRT-LLM 1.0 or later"),
        ("engine", "1.0.0", "trtllm-build is not on PATH"),
        ("cpu", None, "the CPU engine has one rank"),
    ],
)
def test_what_cannot_be_made_has_a_reason(
    checkpoint: Path, kind: Kind, version: str | None, reason: str
) -> None:
    with pytest.raises(Skipped, match=reason):
        tiny_subject(kind, 2, checkpoint.parent, HostInfo(runtime_version=version)).make()
