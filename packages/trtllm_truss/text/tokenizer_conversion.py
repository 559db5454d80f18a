"""Convert a tokenizer without `tokenizer.json` to a fast one.

`transformers` converts it in a separate process: the import takes seconds, a tokenizer may be a
program, and the library may belong to another Python. NVIDIA's images from 26.03 on have it in
TensorRT-LLM's virtual environment only (tensorrtllm_backend r26.07,
`dockerfile/Dockerfile.triton.trt_llm_backend`), those before in the system's Python.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tokenizers import Tokenizer

from trtllm_truss.errors import ArtifactError
from trtllm_truss.machine.runtime import pythons_with
from trtllm_truss.processes.child import GuardedChild, child_environment, temporary_folder

_LIBRARY = "transformers"
_LIMIT_S = 600.0
_STOP_S = 5.0
_MAX_REASON = 500
_REMEDY = (
    "name a tokenizer_repository with a tokenizer.json "
    "(`AutoTokenizer.from_pretrained(…).save_pretrained(…)` of transformers writes it)"
)
_NO_LIBRARY, _NO_TOKENIZER, _NO_FAST_FORM, _NO_VOCABULARY = 10, 11, 12, 13
_PROGRAM = f"""
import sys

def end(status, text):
    open(out, "w", encoding="utf-8").write(text)
    sys.exit(status)

def reason(error):
    return str(error).strip().split("\\n")[0]

folder, out, trusted = sys.argv[1:]
try:
    from transformers import AutoTokenizer
except Exception as error:
    end({_NO_LIBRARY}, reason(error))
try:
    converted = AutoTokenizer.from_pretrained(
        folder, trust_remote_code=trusted == "yes", local_files_only=True
    )
except Exception as error:
    end({_NO_TOKENIZER}, reason(error))
backend = getattr(converted, "backend_tokenizer", None)
if backend is None:
    end({_NO_FAST_FORM}, type(converted).__name__)
if not backend.get_vocab_size(with_added_tokens=False):
    end({_NO_VOCABULARY}, "")
end(0, backend.to_str())
"""


def convert_tokenizer(folder: Path, *, trust_remote_code: bool) -> Tokenizer:
    """Build a fast tokenizer from `tokenizer.model`, `vocab.json` and similar files.

    Raises:
        ArtifactError: no Python here has `transformers`, or it cannot convert the tokenizer.
    """
    broken = []
    for python in pythons_with(_LIBRARY):
        status, text = _convert(python, folder, trust_remote_code=trust_remote_code)
        if status == 0:
            return Tokenizer.from_str(text)
        if status != _NO_LIBRARY:
            raise ArtifactError(f"{_described(status, folder, text)}; {_REMEDY}.")
        broken.append(f"that of {python} cannot be imported ({text})")
    found = "; ".join(broken) or "which is not installed here"
    raise ArtifactError(
        f"{folder} has no tokenizer.json, and building one requires transformers, {found}; "
        f"{_REMEDY}."
    )


def _described(status: int, folder: Path, text: str) -> str:
    if status == _NO_FAST_FORM:
        return f"the tokenizer in {folder}, a {text}, has no fast form"
    if status == _NO_VOCABULARY:
        return f"the tokenizer in {folder} has no vocabulary"
    return f"transformers cannot build a fast tokenizer from {folder} ({text})"


def _convert(python: Path, folder: Path, *, trust_remote_code: bool) -> tuple[int, str]:
    """Return the program's exit status and its text: the tokenizer or the problem."""
    with temporary_folder() as place:
        out = place / "out"
        trusted = "yes" if trust_remote_code else "no"
        child = GuardedChild(
            [str(python), "-c", _PROGRAM, str(folder.absolute()), str(out), trusted],
            dict(_environment(python)),
            run_id=f"tokenizer-{secrets.token_hex(8)}",
            orphan_grace_s=_STOP_S,
            cwd=place,  # Python imports modules from there, so never from the tokenizer's folder
            name=_LIBRARY,
        )
        try:
            status = child.wait(_LIMIT_S)
            child.wait_for_output(_STOP_S)
        finally:
            child.end(_STOP_S)
        if status is None:
            return _NO_TOKENIZER, f"it took more than {_LIMIT_S:.0f} s"
        if not out.exists():
            said = next((line.strip() for line in reversed(child.tail) if line.strip()), "")
            return _NO_TOKENIZER, said[:_MAX_REASON] or f"exit status {status}"
        text = out.read_text(encoding="utf-8")
        return status, text if status == 0 else text[:_MAX_REASON]


def _environment(python: Path) -> Iterator[tuple[str, str]]:
    """Yield the child's variables; `PYTHONPATH` is for this process's Python."""
    variables: Mapping[str, str] = child_environment(os.environ)
    for name, value in variables.items():
        if python == Path(sys.executable) or name != "PYTHONPATH":
            yield name, value
    # tiktoken caches files by name in /tmp, where any user may have put another file.
    yield "TIKTOKEN_CACHE_DIR", os.environ.get("TIKTOKEN_CACHE_DIR", "")
