"""Inspection of folders and listings: an engine, or one message."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.engine_configs import (
    ENGINE_BYTES,
    Json,
    listing,
    new_config,
    old_config,
    rank_names,
)
from tests.support.inspection import inspect_config

from trtllm_truss.engines.compiled.config import Parallelism, opened_ranks
from trtllm_truss.engines.compiled.engine import CompiledEngine
from trtllm_truss.engines.cpu.engine import CpuEngine
from trtllm_truss.engines.kinds import inspect_engine
from trtllm_truss.errors import ArtifactError


def write_engine(folder: Path, config: Json, *, content: bytes = b"engine") -> None:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in rank_names(config):
        (folder / name).write_bytes(content)


def write_gguf(file: Path, context: int) -> None:
    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    file.write_bytes(
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 2)
        + text(b"general.architecture")
        + struct.pack("<I", 8)
        + text(b"llama")
        + text(b"llama.context_length")
        + struct.pack("<II", 4, context)
    )


def refusal(folder: Path) -> str:
    with pytest.raises(ArtifactError) as caught:
        inspect_engine(folder)
    return caught.value.message


def test_tensorrt_llm_folder(tmp_path: Path) -> None:
    write_engine(tmp_path, new_config(tp=2, pp=2))
    engine = inspect_engine(tmp_path)
    assert engine.folder == tmp_path
    assert engine.backend == "tensorrtllm"
    assert (engine.tensor_parallelism, engine.pipeline_parallelism) == (2, 2)
    assert (engine.max_batch_size, engine.max_beam_width) == (2048, 1)
    assert engine.rank_files is not None
    assert engine.rank_files.names == (
        "rank0.engine",
        "rank1.engine",
        "rank2.engine",
        "rank3.engine",
    )
    assert engine.rank_files.largest_rank_bytes == len(b"engine")
    assert engine.target_gpu is None


def test_folder_of_the_old_era(tmp_path: Path) -> None:
    write_engine(tmp_path, old_config(tp=2, pp=2))
    engine = inspect_engine(tmp_path)
    assert engine.rank_files is not None
    assert engine.rank_files.names[3] == "llama_float16_tp2_pp2_rank3.engine"
    assert engine.rank_files.missing == ()


def test_cpu_folders(tmp_path: Path) -> None:
    gguf, openvino = tmp_path / "gguf", tmp_path / "openvino"
    gguf.mkdir()
    openvino.mkdir()
    write_gguf(gguf / "model-q4_0.gguf", 2048)
    (openvino / "openvino_model.xml").write_text("<net/>")
    (openvino / "config.json").write_text('{"max_position_embeddings": 2048}')
    for folder in (gguf, openvino):
        engine = inspect_engine(folder)
        assert engine.backend == "openvino_genai"
        assert (engine.max_sequence_tokens, engine.max_input_tokens) == (2048, 2047)
        assert type(engine) is CpuEngine


def test_a_listing_describes_an_engine() -> None:
    engine = inspect_config(new_config(), listing(new_config()))
    assert type(engine) is CompiledEngine
    assert engine.rank_files is not None
    assert engine.rank_files.largest_rank_bytes == ENGINE_BYTES


def test_missing_and_surplus_rank_files_are_listed() -> None:
    config = new_config(tp=2)
    files = [("config.json", 1), ("rank0.engine", 1), ("rank2.engine", 1), ("notes.txt", 1)]
    ranks = inspect_config(config, files).rank_files
    assert ranks is not None
    assert (ranks.missing, ranks.surplus) == (("rank1.engine",), ("rank2.engine",))


def test_names_of_the_other_era_are_not_opened() -> None:
    files = [("config.json", 1), ("llama_float16_tp1_rank0.engine", 1)]
    ranks = inspect_config(new_config(), files).rank_files
    assert ranks is not None
    assert ranks.missing == ("rank0.engine",)
    assert ranks.surplus == ("llama_float16_tp1_rank0.engine",)


def test_managed_weights_belong_to_their_rank() -> None:
    config = new_config(tp=2)
    config["build_config"]["plugin_config"]["manage_weights"] = True
    weights = ("rank1_managed_weights.safetensors", 7)
    ranks = inspect_config(config, [*listing(config, engine_bytes=2), weights]).rank_files
    assert ranks is not None
    assert ranks.missing == ("rank0_managed_weights.safetensors",)
    assert ranks.largest_rank_bytes == 9


@pytest.mark.parametrize(("plugin", "takes"), [("auto", True), (None, False), (False, False)])
def test_adapters_need_the_lora_plugin(plugin: object, takes: bool) -> None:
    config = new_config()
    config["build_config"]["plugin_config"]["lora_plugin"] = plugin
    assert inspect_config(config, listing(config)).takes_adapters is takes
    assert not inspect_config(old_config(), listing(old_config())).takes_adapters


def test_the_builders_gpu_comes_from_the_manifest(tmp_path: Path) -> None:
    write_engine(tmp_path, new_config())
    manifest = tmp_path / "engine.manifest.json"
    manifest.write_text('{"gpu": {"name": "NVIDIA L4", "compute_capability": "8.9"}}')
    target = inspect_engine(tmp_path).target_gpu
    assert target is not None
    assert (target.name, target.compute_capability) == ("NVIDIA L4", (8, 9))
    manifest.write_text("{}")
    assert inspect_engine(tmp_path).target_gpu is None
    manifest.write_text('{"gpu": {"name": "NVIDIA L4", "compute_capability": "Ada"}}')
    assert "two numbers such as 9.0" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "holds no file."),
        ([("README.md", 9)], "holds no engine."),
        ([("config.json", 9)], "config.json but no engine files"),
        ([("rank0.engine", 9)], "engine files but no config.json"),
        (
            [("config.json", 9), ("rank0.engine", 0)],
            "rank0.engine in the engine repository is empty",
        ),
        ([("config.json", 9), ("1/rank0.engine", 9)], "but in 1; name that folder itself"),
        ([("llm/1/rank0.engine", 9), ("llm/1/config.json", 9)], "but in llm/1"),
        ([("encoder/rank0.engine", 9), ("decoder/rank0.engine", 9)], "which is not supported"),
        ([("a.gguf", 9), ("b.gguf", 9)], "holds 2 .gguf files (a.gguf, b.gguf); keep only one"),
        ([("a.gguf", 0)], "a.gguf in the engine repository is empty"),
        ([("openvino_model.xml", 0)], "openvino_model.xml in the engine repository is empty"),
        ([("model.safetensors", 9)], "a model's weights without their config.json"),
        ([("pytorch_model.bin", 9), ("config.json", 9)], "as pickles; convert them"),
        ([("model.onnx", 9)], "an ONNX model"),
        ([("model.plan", 9)], "a plain TensorRT plan"),
        ([(f"{n}.pt", 9) for n in range(5)], "0.pt, 1.pt, 2.pt, 3.pt and 1 more"),
    ],
)
def test_repositories_without_an_engine(files: list[tuple[str, int]], words: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        inspect_config({}, files)
    assert words in caught.value.message


def test_a_gguf_engine_cannot_be_inspected_by_its_listing() -> None:
    assert not inspect_config({}, [("a.gguf", 9)]).is_described


def test_unreadable_folders(tmp_path: Path) -> None:
    assert "the folder does not exist" in refusal(tmp_path / "nowhere")
    write_engine(tmp_path, new_config())
    config = tmp_path / "config.json"
    for content, words in {
        "{": "config.json is not valid JSON",
        "[" * 100_000: "config.json is not valid JSON",
        "[]": "config.json is not a JSON object",
        "null": "config.json is not a JSON object",
    }.items():
        config.write_text(content)
        assert words in refusal(tmp_path)
        assert refusal(tmp_path).startswith(f"engine_repository {str(tmp_path)!r}: ")
    config.unlink()
    config.mkdir()
    assert "engine files but no config.json" in refusal(tmp_path)


def test_openvino_without_its_config(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").write_text("<net/>")
    assert "config.json is missing" in refusal(tmp_path)


def test_gguf_without_a_context_length(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", 1)
    assert "model.gguf has no context length" in refusal(tmp_path)


def test_git_lfs_pointers_are_refused(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 16000000000\n"
    write_engine(tmp_path, new_config(), content=pointer)
    assert "rank0.engine is a Git LFS pointer; run `git lfs pull`" in refusal(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def paths(section: Json, parents: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in section.items():
        found.append((*parents, key))
        if isinstance(value, dict):
            found += paths(value, (*parents, key))
    return found


def with_value(config: Json, path: tuple[str, ...], value: Any) -> Json:
    section: Any = config
    for parent in path[:-1]:
        section = section.get(parent)
        if not isinstance(section, dict):  # removed by an earlier change
            return config
    section[path[-1]] = value
    return config


FILES = listing(new_config()) + listing(old_config())


@given(config=json_values, manifest=json_values)
def test_any_json_is_an_engine_or_an_error(config: Any, manifest: Any) -> None:
    with contextlib.suppress(ArtifactError):
        inspect_config(config, FILES, manifest)


@given(data=st.data(), build=st.sampled_from([new_config, old_config]))
def test_any_change_to_a_config_is_an_engine_or_an_error(data: st.DataObject, build: Any) -> None:
    config = build()
    changes = st.tuples(st.sampled_from(paths(build())), json_values)
    for path, value in data.draw(st.lists(changes, min_size=1, max_size=3)):
        config = with_value(config, path, value)
    with contextlib.suppress(ArtifactError):
        engine = inspect_config(config, FILES)
        assert engine.max_input_tokens < engine.max_sequence_tokens
        assert engine.max_input_tokens >= 1


@pytest.mark.parametrize(
    ("tp", "pp", "opened"),
    [
        (4, 1, [0, 1, 2, 3]),
        (1, 3, [2, 1, 0]),
        (2, 2, [2, 3, 0, 1]),
        (8, 2, [*range(8, 16), *range(8)]),
    ],
)
def test_the_leader_opens_the_file_of_the_last_pipeline_stage(
    tp: int, pp: int, opened: list[int]
) -> None:
    assert list(opened_ranks(Parallelism(tp, pp))) == opened
