"""XGrammar's own matcher of grammars, without torch: its Python modules import it, its library
does not."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_truss.guides.json_schema import convert_schema


def load_bindings() -> Any:
    """Load the library of XGrammar's Python package; None without it."""
    package = importlib.util.find_spec("xgrammar")
    folders = () if package is None else package.submodule_search_locations or ()
    files = (file for folder in folders for file in Path(folder).glob("xgrammar_bindings*.so"))
    if (file := next(files, None)) is None:
        return None
    spec = importlib.util.spec_from_file_location("xgrammar_bindings", file)
    assert spec is not None
    assert spec.loader is not None
    bindings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bindings)
    return bindings


XGRAMMAR = load_bindings()
_OTHERS = (
    "\x7f\x85\xa0ªößéÿĀσЖ٣۹कข\u2003\u2010\u2028\u2029\u202f"
    "→、漢字\ua620가\ufeff０，\ufffd😀😁😂\U0010ffff"
)
VOCABULARY = [*map(chr, range(128)), *_OTHERS, "<end>"]
"""ASCII, and others on both sides of classes."""
END = len(VOCABULARY) - 1


def compiled(grammar: str, vocabulary: Sequence[str] = VOCABULARY) -> Any:
    """A grammar for XGrammar's matcher, whose tokens are characters by default."""
    info = XGRAMMAR.TokenizerInfo(vocabulary, 0, None, [len(vocabulary) - 1], False)
    compiler = XGRAMMAR.GrammarCompiler(info, 1, False, -1)
    return compiler.compile_grammar(XGRAMMAR.Grammar.from_ebnf(grammar, "root"))


def matching(grammar: str) -> Callable[[str], bool]:
    """The test whether a text fits a grammar."""
    ready = compiled(grammar)

    def fits(answer: str) -> bool:
        follows = XGRAMMAR.GrammarMatcher(ready, None, False, -1)
        return bool(follows.accept_string(answer, False) and follows.accept_token(END, False))

    return fits


def wrong_masks(grammar: str, before: str, tokens: Sequence[str]) -> list[str]:
    """The tokens behind a text that the mask allows and the matcher does not take, or the reverse.

    Args:
        tokens: of several characters, which can end a part of the grammar and begin another.
    """
    vocabulary = [*VOCABULARY[:-1], *tokens, VOCABULARY[-1]]
    follows = XGRAMMAR.GrammarMatcher(compiled(grammar, vocabulary), None, False, -1)
    assert follows.accept_string(before, False)
    mask = np.zeros((1, len(vocabulary) // 32 + 1), dtype=np.int32)
    follows.fill_next_token_bitmask(mask, 0, False)
    allowed = np.unpackbits(mask.view(np.uint8).ravel(), bitorder="little")
    wrong = []
    for place, token in enumerate(vocabulary[1:-1], start=1):
        if is_taken := follows.accept_token(place, False):
            follows.rollback(1)
        if is_taken != bool(allowed[place]):
            wrong.append(token)
    return wrong


def matcher(schema: str, *, any_blanks: bool = False) -> Callable[[str], bool]:
    """The test whether a text fits the grammar of a schema."""
    return matching(convert_schema(schema, any_blanks=any_blanks).grammar)
