"""Inspection of checkpoints: listings, weights, dimensions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.engines.checkpoint.checkpoints import Json, listing, llama, write_checkpoint
from tests.support.inspection import inspect_config

from trtllm_truss.engines.checkpoint.engine import CheckpointEngine
from trtllm_truss.engines.kinds import inspect_engine
from trtllm_truss.errors import ArtifactError
from trtllm_truss.serving.repositories import needed_files

INDEX = "model.safetensors.index.json"


def refusal(files: list[tuple[str, int]], config: Json | None = None, index: Any = None) -> str:
    with pytest.raises(ArtifactError) as caught:
        inspect_config(config or llama(), files, index=index)
    return caught.value.message


def test_folder(tmp_path: Path) -> None:
    engine = inspect_engine(write_checkpoint(tmp_path))
    assert engine.backend == "llm_api"
    assert type(engine) is CheckpointEngine
    assert engine.llm_args == {}
    assert (engine.checkpoint.architecture, engine.checkpoint.layers) == ("LlamaForCausalLM", 32)
    assert engine.max_sequence_tokens == 131072
    assert engine.weights is not None
    assert engine.weights.total_bytes == engine.largest_rank_bytes == 2 * len(b"weights")
    assert engine.world_size == engine.server_ranks == 1


def test_git_lfs_pointers_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 16000000000\n"
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(pointer)
    with pytest.raises(ArtifactError, match="is a Git LFS pointer; run `git lfs pull`"):
        inspect_engine(tmp_path)


def test_only_the_weights_that_are_loaded_are_fetched() -> None:
    sizes = dict.fromkeys(
        (
            *("config.json", INDEX, "generation_config.json", "hf_quant_config.json", "README.md"),
            *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
            *("consolidated.safetensors", "pytorch_model-00001-of-00002.bin", "model.pth"),
            *("original/consolidated.00.pth", "modeling_own.py", "figures/a.py"),
        ),
        9,
    )
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    engine = inspect_config(llama(), sizes.items(), index=index)
    always = [
        *("config.json", "generation_config.json", "hf_quant_config.json"),
        *("model-00001-of-00002.safetensors", INDEX),
    ]
    assert needed_files(sizes, engine) == always
    assert needed_files(sizes, engine, with_code=True) == sorted([*always, "modeling_own.py"])
    of_vision = {
        **dict.fromkeys(("preprocessor_config.json", "tokenizer.json", "merges.txt"), 9),
        **dict.fromkeys(("chat_template.jinja", "adapter_config.json", "figures/b.json"), 9),
    }
    assert needed_files({**sizes, **of_vision}, engine) == sorted(
        [*always, "preprocessor_config.json", "tokenizer.json", "merges.txt", "chat_template.jinja"]
    )
    shards = inspect_config(llama(), sizes.items()).weights
    assert shards is not None
    assert shards.total_bytes == 18


@pytest.mark.parametrize(
    ("files", "index", "words"),
    [
        ([("a.safetensors", 1)], {"weight_map": {"x": "b.safetensors"}}, "names b.safetensors"),
        ([("a.safetensors", 0)], None, "a.safetensors in the checkpoint is empty"),
        ([("a.safetensors", 9)], {"weight_map": {"x": "../a.safetensors"}}, "../a.safetensors"),
        ([("a.safetensors", 9)], {"weight_map": {"x": "a.bin"}}, "names a.bin"),
        ([("a.safetensors", 9)], {"weight_map": {"x": 7}}, "names no files"),
        ([("a.safetensors", 9)], {"weight_map": {}}, "names no files"),
        ([("a.safetensors", 9)], [], "names no files"),
        ([("m-00001-of-00003.safetensors", 9)], None, "holds 1 of 3 shards"),
        ([("consolidated.safetensors", 9)], None, "in Hugging Face's format"),
    ],
)
def test_incomplete_weights(files: list[tuple[str, int]], index: Any, words: str) -> None:
    assert words in refusal([("config.json", 9), *files], index=index)


@pytest.mark.parametrize("config", [{}, {"architectures": []}, {"architectures": "Llama"}])
def test_a_config_without_architectures(config: Json) -> None:
    assert "names no architectures" in refusal(listing(), {"hidden_size": 1, **config})


def test_engines_win_over_weights_beside_them() -> None:
    files = [*listing(), ("rank0.engine", 9)]
    assert "does not describe a TensorRT-LLM engine" in refusal(files)
    assert "holds 2 .gguf files" in refusal([*listing(), ("a.gguf", 9), ("b.gguf", 9)])


def test_the_index_is_read_from_a_listing(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shards=3)
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"names model-00003-of-00003\.safetensors, which"):
        inspect_engine(tmp_path)
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(ArtifactError, match="is not valid JSON"):
        inspect_engine(tmp_path)
    (tmp_path / INDEX).write_text(
        json.dumps({"weight_map": {"a": "model-00001-of-00003.safetensors"}})
    )
    weights = inspect_engine(tmp_path).weights
    assert weights is not None
    assert weights.names == ("model-00001-of-00003.safetensors",)
