"""The compiler worker for TensorRT-LLM: `python -m trtllm_truss.guides.xgrammar_worker INFO`.

INFO is the file of `xgrammar_tokenizer_info_path`. TensorRT-LLM requires XGrammar's Python package,
so its image holds it. Without the package only length, depth and repetitions are checked.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtllm_truss.guides.compiler_worker import NOTHING_ALLOWED, Follow, serve
from trtllm_truss.requests import Guide


def main() -> None:
    serve(lambda: _load(Path(sys.argv[1])), brackets_only=False)


def _load(info_file: Path) -> Follow:
    if importlib.util.find_spec("xgrammar") is None:
        return lambda guide, tokens, on_token: None
    return _Compiler(json.loads(info_file.read_text(encoding="utf-8")))


class _Compiler:
    """XGrammar's compiler on one thread; TensorRT-LLM uses eight.

    Args:
        info: the contents of INFO, see `write_tokenizer_info`.
    """

    def __init__(self, info: dict[str, Any]) -> None:
        import numpy as np
        import transformers
        import xgrammar
        from tokenizers import Tokenizer

        wrapper: Any = transformers.PreTrainedTokenizerFast
        backend = Tokenizer.from_str(info["tokenizer_str"])
        self._xgrammar = xgrammar
        self._vocabulary = xgrammar.TokenizerInfo.from_huggingface(
            wrapper(tokenizer_object=backend),
            vocab_size=len(info["encoded_vocab"]),
            stop_token_ids=info["stop_token_ids"],
        )
        self._compiler = xgrammar.GrammarCompiler(self._vocabulary, max_threads=1)
        vocabulary = self._vocabulary.decoded_vocab
        self._drawn = np.array([bool(token.strip()) for token in vocabulary])
        self._drawn[info["stop_token_ids"]] = False

    def __call__(self, guide: Guide, tokens: int, on_token: Callable[[], None]) -> None:
        """Draw allowed tokens at random, except blank ones and stop tokens."""
        import numpy as np

        matcher = self._xgrammar.GrammarMatcher(self._compile(guide))
        bitmask = self._xgrammar.allocate_token_bitmask(1, len(self._drawn))
        chance = np.random.default_rng(0)
        for _ in range(tokens):
            matcher.fill_next_token_bitmask(bitmask)
            words = bitmask.numpy().view(np.uint8).ravel()
            bits = np.unpackbits(words, bitorder="little")[: len(self._drawn)]
            if not bits.any():
                raise RuntimeError(NOTHING_ALLOWED)
            (allowed,) = np.nonzero(bits & self._drawn)
            if not len(allowed) or not matcher.accept_token(int(chance.choice(allowed))):
                return
            on_token()

    def _compile(self, guide: Guide) -> Any:
        """Compile as `GuidedDecoder::build` in TensorRT-LLM does."""
        if guide.language == "json_schema":
            return self._compiler.compile_json_schema(guide.text)
        make = self._xgrammar.Grammar
        grammar = (make.from_regex if guide.language == "regex" else make.from_ebnf)(guide.text)
        return self._compiler.compile_grammar(grammar)


if __name__ == "__main__":
    main()
