"""The trial program for the CPU engine, with OpenVINO GenAI's XGrammar.

`python -m trtllm_truss.backends.openvino_genai.guide_trial FOLDER`; FOLDER is the engine's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import openvino_genai

from trtllm_truss.backends.openvino_genai.guide_compiler import GuideCompiler
from trtllm_truss.backends.openvino_genai.model_files import find_model
from trtllm_truss.guides.trial import Follow, serve


def main() -> None:
    """Run the trial program."""
    serve(lambda: _load(Path(sys.argv[1])), brackets_only=True)


def _load(folder: Path) -> Follow:
    files = find_model(folder)
    return GuideCompiler(openvino_genai.Tokenizer(files.path), files.vocab_size)


if __name__ == "__main__":
    main()
