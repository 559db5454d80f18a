"""Worker process that compiles guides for the CPU engine, with OpenVINO GenAI's XGrammar.

Run `python -m trtllm_truss.engines.cpu.openvino_genai.grammar_compiler_worker FOLDER` with the
engine's folder. GenAI compiles JSON schemas with any blanks only, so XGrammar's Python package
converts them where it is installed: its modules import torch, its library does not.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from trtllm_truss.engines.cpu.openvino_genai.guide_compiler import (
    GuideCompiler,
    find_model,
    load_vocabulary,
)
from trtllm_truss.guides.compiler_worker import Follow, ToGrammar, serve


def main() -> None:
    serve(lambda: _load(Path(sys.argv[1])), brackets_only=True, to_grammar=_load_converter())


def _load_converter() -> ToGrammar | None:
    if (bindings := load_bindings()) is None:
        return None
    convert = bindings.testing._json_schema_to_ebnf

    def to_grammar(schema: str, any_blanks: bool) -> str:
        # any_whitespace, indent, separators, strict_mode, and max_whitespace_cnt from 0.1.22 on
        options = (any_blanks, None, None, True, None)
        try:
            return str(convert(schema, *options))
        except TypeError:
            return str(convert(schema, *options[:-1]))

    return to_grammar


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


def _load(folder: Path) -> Follow:
    files = find_model(folder)
    return GuideCompiler(load_vocabulary(files.path), files.vocab_size)


if __name__ == "__main__":
    main()
