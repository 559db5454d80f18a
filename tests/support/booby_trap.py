"""Code of strangers in a repository: whatever runs any of it writes a file."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

PROPERTIES = """\
option.trust_remote_code=true
option.entryPoint=model.py
option.model_id=evil/other
option.tokenizer=evil/other
"""
ESCAPES = """\
{{ cycler.__init__.__globals__.os.mkdir(%r) }}
{%% include 'modeling_evil.py' %%}
"""
_MODULES = (
    *("modeling_evil.py", "configuration_evil.py", "model.py", "setup.py", "conftest.py"),
    *("sitecustomize.py", "usercustomize.py", "json.py", "trtllm_truss.py", "__init__.py"),
    *("custom_generate/generate.py", "tensorrt_llm/__init__.py", "1/model.py"),
)
_PICKLES = ("pytorch_model.bin", "adapter_model.bin", "training_args.bin", "optimizer.pt")
_CLASSES = """
try:
    from transformers import LlamaConfig as EvilConfig, PreTrainedTokenizerFast as EvilTokenizer
except ImportError:
    pass
"""
_CODE_OF_CONFIGS = {
    "config.json": {"AutoConfig": "configuration_evil.EvilConfig"},
    "tokenizer_config.json": {"AutoTokenizer": [None, "tokenization_evil.EvilTokenizer"]},
}


class _Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return exec, (f"import os; os.makedirs({str(self._file)!r}, exist_ok=True)",)


def set_traps(folder: Path, sprung: Path, *, tokenizer_is_program: bool = False) -> None:
    """Add code in every form to a repository.

    Args:
        folder: the repository; `auto_map` is added to its configurations.
        sprung: made by whatever runs.
        tokenizer_is_program: whether `tokenization_*.py` is there, for which a repository is
            refused before anything can run.
    """
    statement = f"import os; os.makedirs({str(sprung)!r}, exist_ok=True)\n"
    modules = (*_MODULES, "tokenization_evil.py") if tokenizer_is_program else _MODULES
    for name in modules:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(statement + _CLASSES)
    for name in _PICKLES:
        (folder / name).write_bytes(pickle.dumps(_Trap(sprung)))
    (folder / "evil.pth").write_text(statement)
    (folder / "serving.properties").write_text(PROPERTIES)
    (folder / "requirements.txt").write_text("./evil\n")
    (folder / "chat_template.jinja").write_text(ESCAPES % str(sprung))
    for name, classes in _CODE_OF_CONFIGS.items():
        if (folder / name).exists():
            config = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps({**config, "auto_map": classes}))
