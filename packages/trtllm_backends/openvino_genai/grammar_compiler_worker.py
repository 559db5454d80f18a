"""Worker process that compiles guides for the CPU engine, with OpenVINO GenAI's XGrammar.

Run `python -m trtllm_backends.openvino_genai.grammar_compiler_worker FOLDER` with the
engine's folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

from trtllm_backends.openvino_genai.guide_compiler import GuideCompiler, find_model, load_vocabulary
from trtllm_truss.guides.compiler_worker import Follow, serve


def main() -> None:
    serve(lambda: _load(Path(sys.argv[1])), brackets_only=True, trusts_plain=True)


def _load(folder: Path) -> Follow:
    files = find_model(folder)
    return GuideCompiler(load_vocabulary(files.path), files.vocab_size)


if __name__ == "__main__":
    main()
