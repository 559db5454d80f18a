"""The CPU converter: engine and checkpoint must compute the same."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import openvino
import openvino_genai
import pytest
from tests.builder.llama_checkpoint import TINY, logits, write_tiny_checkpoint

from trtllm_backends.openvino_genai.guide_compiler import find_model
from trtllm_builder.gguf_conversion import main, reorder_rotated

EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}


def convert(folder: Path, weights: str, *more: str) -> Path:
    output = folder / "model.gguf"
    arguments = ["--checkpoint", str(folder), "--output", str(output), "--weights", weights]
    assert main([*arguments, *more]) == 0
    return output


def next_tokens(file: Path, prompts: list[list[int]]) -> list[int]:
    """Return the engine's likeliest token after each prompt."""
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        file, openvino_genai.SchedulerConfig(), "CPU", EXACT
    )
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos = 1, True
    handles = [
        pipeline.add_request(number, openvino.Tensor(np.array([prompt])), config)
        for number, prompt in enumerate(prompts)
    ]
    while pipeline.has_non_finished_requests():
        pipeline.step()
    return [handle.read_all()[0].generated_ids[0] for handle in handles]


@pytest.mark.parametrize(("weights", "dtype"), [("Q8_0", "F32"), ("F16", "F16"), ("Q8_0", "BF16")])
def test_the_engine_computes_what_the_checkpoint_computes(
    tmp_path: Path, weights: str, dtype: str
) -> None:
    model = write_tiny_checkpoint(tmp_path, dtype)
    random = np.random.default_rng(1)
    prompts = [random.integers(0, TINY["vocab_size"], 12).tolist() for _ in range(32)]
    tokens = next_tokens(convert(tmp_path, weights), prompts)
    assert len(set(tokens)) > 16, "the test needs a model with different answers"
    for prompt, token in zip(prompts, tokens, strict=True):
        expected = logits(model, TINY, prompt)
        assert expected[token] > expected.max() - 1e-3


def test_tied_embeddings_and_four_bits(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path, tie_word_embeddings=True)
    file = convert(tmp_path, "Q4_0", "--context", "128")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors}
    assert "output.weight" not in kinds
    assert kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.0.ffn_down.weight"] == "Q4_0"
    assert kinds["blk.0.attn_norm.weight"] == "F32"
    assert find_model(tmp_path).context_length == 128
    assert len(next_tokens(file, [[1, 2, 3]])) == 1


def test_halves_become_neighbours() -> None:
    rows = np.arange(8, dtype=np.float32).reshape(8, 1)  # two heads of four
    assert reorder_rotated(rows, 2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("tokenizer", "not a BPE tokenizer"),
        ("safetensors", "no .safetensors files"),
        ("damaged", "is not a safetensors file"),
        ("cut", "is truncated"),
        ("dtype", "is F64"),
        ("foreign", "model.layers.0.mlp.up_more.weight"),
    ],
)
def test_what_cannot_be_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, part: str
) -> None:
    write_tiny_checkpoint(tmp_path)
    file = tmp_path / "model.safetensors"
    if change == "tokenizer":
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram"}}))
    elif change == "safetensors":
        file.unlink()
    elif change == "damaged":
        file.write_bytes(b"\xff" * 100)
    elif change == "cut":
        file.write_bytes(file.read_bytes()[:-1000])
    elif change == "dtype":
        file.write_bytes(file.read_bytes().replace(b'"F32"', b'"F64"', 1))
    else:
        file.write_bytes(file.read_bytes().replace(b"0.mlp.up_proj", b"0.mlp.up_more", 1))
    arguments = ["--checkpoint", str(tmp_path), "--output", str(tmp_path / "x.gguf")]
    assert main([*arguments, "--weights", "Q8_0"]) == 1
    assert part in capsys.readouterr().err
    assert not list(tmp_path.glob("x.*"))
