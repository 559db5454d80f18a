"""The vocabulary of a GGUF file as GenAI itself reads it, which takes much longer."""

from __future__ import annotations

from pathlib import Path

import openvino_genai

from trtllm_truss.backends.openvino_genai.model_files import find_model
from trtllm_truss.backends.openvino_genai.vocabulary import load_vocabulary


def test_tokens_of_a_gguf_file(model_folder: Path) -> None:
    path = find_model(model_folder).path
    ours, genai = load_vocabulary(path), openvino_genai.Tokenizer(path)

    assert ours.get_vocab() == genai.get_vocab()
    for role in ("bos", "eos", "pad"):
        for value in (f"get_{role}_token", f"get_{role}_token_id"):
            assert getattr(ours, value)() == getattr(genai, value)()
    ids = [500, 1200, 8000, 3000]
    assert ours.decode(ids) == genai.decode(ids)
