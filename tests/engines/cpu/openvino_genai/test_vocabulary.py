"""The vocabulary of a GGUF file: that of GenAI, which takes much longer, and SentencePiece's."""

from __future__ import annotations

import re
from pathlib import Path

import openvino_genai
import pytest
from tests.backends.token_model.backend_requests import StartScheduler
from tests.builder.llama_checkpoint import write_tiny_checkpoint
from tests.engines.cpu.openvino_genai.test_guides import submit
from tokenizers import Tokenizer, decoders, models

from trtllm_backends.openvino_genai.engine import EngineSettings, GenAiEngine
from trtllm_backends.openvino_genai.guide_compiler import find_model, load_vocabulary
from trtllm_builder.gguf_conversion import main


def test_tokens_of_a_gguf_file(model_folder: Path) -> None:
    path = find_model(model_folder).path
    ours, genai = load_vocabulary(path), openvino_genai.Tokenizer(path)

    assert ours.get_vocab() == genai.get_vocab()
    for role in ("bos", "eos", "pad"):
        for value in (f"get_{role}_token", f"get_{role}_token_id"):
            assert getattr(ours, value)() == getattr(genai, value)()
    ids = [500, 1200, 8000, 3000]
    assert ours.decode(ids) == genai.decode(ids)


def sentencepiece_tokenizer(size: int) -> Tokenizer:
    names = ["<end>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a"]
    names += [f"word{number}" for number in range(size - len(names))]
    vocabulary = {name: number for number, name in enumerate(names)}
    model = models.BPE(vocabulary, [("\u2581", "a")], byte_fallback=True)
    tokenizer = Tokenizer(model)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


@pytest.mark.parametrize("guide", ["(b a|a  b){3}", "(é 🤖|日本)\\n", "[<>0x2A]{6}"])
def test_a_guide_with_a_tokenizer_of_sentencepiece(
    tmp_path: Path, start_scheduler: StartScheduler, guide: str
) -> None:
    write_tiny_checkpoint(tmp_path)
    tokenizer = sentencepiece_tokenizer(288)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    output = tmp_path / "engine" / "model.gguf"
    output.parent.mkdir()
    arguments = ["--checkpoint", str(tmp_path), "--output", str(output), "--weights", "Q8_0"]
    assert main(arguments) == 0

    scheduler = start_scheduler(GenAiEngine(EngineSettings(output.parent, max_batch_size=8)))
    caller = submit(scheduler, "regex", guide, prompt=[5, 7], end_id=0).wait()

    assert caller.error is None
    assert re.fullmatch(guide, tokenizer.decode(caller.tokens))
