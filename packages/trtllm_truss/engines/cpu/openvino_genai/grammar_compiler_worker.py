"""Worker process that compiles guides for the CPU engine, with OpenVINO GenAI's XGrammar.

Run `python -m trtllm_truss.engines.cpu.openvino_genai.grammar_compiler_worker FOLDER` with the
engine's folder. GenAI compiles JSON schemas with any blanks only, so XGrammar's Python package
converts them where it is installed: its modules import torch, its library does not.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from trtllm_truss.engines.cpu.openvino_genai.guide_compiler import (
    GuideCompiler,
    find_model,
    load_vocabulary,
)
from trtllm_truss.guides.compiler_worker import Follow, serve


def main() -> None:
    serve(lambda: _load(Path(sys.argv[1])), brackets_only=True, to_grammar=_load_converter())


def _load_converter() -> Callable[[str], str] | None:
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
    convert = bindings.testing._json_schema_to_ebnf
    # any_whitespace, indent, separators, strict_mode, and max_whitespace_cnt from 0.1.22 on
    options = (False, None, None, True, None)

    def to_grammar(schema: str) -> str:
        try:
            return str(convert(schema, *options))
        except TypeError:
            return str(convert(schema, *options[:-1]))

    return to_grammar


def _load(folder: Path) -> Follow:
    files = find_model(folder)
    return GuideCompiler(load_vocabulary(files.path), files.vocab_size)


if __name__ == "__main__":
    main()
