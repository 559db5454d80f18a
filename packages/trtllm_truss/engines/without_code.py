"""Strip a checkpoint's folder of the code that libraries would run unasked.

TensorRT-LLM passes ``trust_remote_code=True`` to transformers whatever its own argument says (1.0
to 1.2: ``_torch/pyexecutor/model_loader.py`` and ``inputs/registry.py``), and NVIDIA's conversion
scripts do the same.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trtllm_truss.errors import ArtifactError
from trtllm_truss.json_files import parse_json

TEXTS = (".json", ".txt", ".model", ".jinja", ".tiktoken")


_DATA = (*TEXTS, ".safetensors")


_RUNS = (
    *(".py", ".pyc", ".so", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill"),
)


_CONFIGS = "config.json"  # also the suffix of tokenizer_config.json, processor_config.json …


_NAMES_OF_CODE = frozenset({"auto_map", "auto_mapping", "custom_pipelines"})


def without_code(folder: Path, leave_out: Collection[str] = ()) -> Path:
    """Return a folder with the same data and no code; `folder` itself if it contains none.

    Otherwise the files are links, and JSON files that name code are copied without these names. The
    result is in `HF_HOME` under a name derived from its contents, so every host of a group finds it
    at the same path.

    Args:
        folder: folder of a checkpoint, tokenizer or adapter.
        leave_out: further names to omit.

    Raises:
        ArtifactError: a JSON file is malformed, or `HF_HOME` cannot be written.
    """
    files = sorted(file for file in folder.iterdir() if file.is_file())
    changed = dict(
        change for file in files if file.name.endswith(_CONFIGS) and (change := _changed(file))
    )
    if not changed and not any(file.suffix in _RUNS or file.name in leave_out for file in files):
        return folder
    kept = [file for file in files if file.suffix in _DATA and file.name not in leave_out]
    contents = {file.name: changed.get(file.name) or str(file.absolute()) for file in kept}
    digest = hashlib.sha256(json.dumps(contents).encode()).hexdigest()
    destination = _cache() / digest
    try:
        if not destination.is_dir():
            _write(kept, changed, destination)
    except OSError as error:
        raise ArtifactError(
            f"{folder} holds code, and {destination.parent}, for links to its data, cannot be "
            f"written ({error.strerror}); make HF_HOME writable, or name a repository without code."
        ) from error
    return destination


def _changed(file: Path) -> tuple[str, str] | None:
    """Return a file's name and its text without code; None if it contains none."""
    content = parse_json(str(file), file.read_bytes())
    plain = _plain(content)
    return None if plain == content else (file.name, json.dumps(plain, indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = ((name, item) for name, item in value.items() if name not in _NAMES_OF_CODE)
        return {name: _plain(item) for name, item in kept}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _write(kept: Collection[Path], changed: Mapping[str, str], destination: Path) -> None:
    """Write the folder under a temporary name first: another process may look for it."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=destination.parent))
    try:
        for file in kept:
            if file.name in changed:
                (draft / file.name).write_text(changed[file.name], encoding="utf-8")
            else:
                (draft / file.name).symlink_to(file.absolute())
        draft.rename(destination)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not destination.is_dir():
            raise


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HOME).absolute() / "trtllm-truss/without-code"
