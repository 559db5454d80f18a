"""Folders on the platform's volume for the kernels and tactics of a checkpoint.

On Baseten, replicas and later starts share `/cache/model/trtllm-truss/kernels/<key>`. Triton's
compiler publishes by a rename (`FileCacheManager.put` of python/triton/runtime/cache.py in
triton-lang/triton). FlashInfer builds and loads under a `FileLock` (`JitSpec.build_and_load` of
flashinfer/jit/core.py at 01a02aac). Whether the platform's volume honors locks between hosts is
unknown. TensorRT-LLM's DeepGEMM is excluded, because its renames into a shared folder fail for all
but the first process.

The autotuner writes its file in place (`AutoTunerProfilingCache.save_cache` of
tensorrt_llm/_torch/autotuner.py): without a lock in 1.2.0rc2, under `flock` once one file holds all
ranks (pull request 10336). A replica that reads a partly written file, or a file without its rank,
fails to start (`load_cache`).
"""

from __future__ import annotations

import ast
import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_truss.artifacts.open_repository import shared_folder

logger = logging.getLogger(__name__)

AUTOTUNER = "TLLM_AUTOTUNER_CACHE_PATH"
VARIABLES = {
    # tensorrt_llm/_torch/pyexecutor/model_engine.py, 1.2.0rc2 and later; one file, or one per rank
    # with `.rankN` before its suffix (tensorrt_llm/_torch/autotuner.py, 1.2.0rc2)
    AUTOTUNER: "autotuner.json",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",  # flashinfer/jit/env.py in flashinfer-ai/flashinfer
    "TRITON_CACHE_DIR": "triton",  # python/triton/runtime/cache.py in triton-lang/triton
}
_PREBUILT = {"FLASHINFER_WORKSPACE_BASE": ".cache/flashinfer"}
"""Folders below the home that an image may have filled; the variable would hide them."""


def key_of(facts: object) -> str:
    """Return the name of a cache, derived from everything that may change a kernel or a tactic."""
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:32]


def cache_variables(key: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Create a key's folder, and return the variables that point to places in it.

    Args:
        key: see `key_of`.
        variables: environment of the engine; variables that are already set are not changed.

    Returns:
        Empty if the platform has no volume, or the folder cannot be written.
    """
    shared = shared_folder()
    if shared is None:
        return {}
    folder = shared / "kernels" / key
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logger.info("kernels are not kept: %s cannot be written (%s)", folder, error)
        return {}
    home = Path(variables.get("HOME") or "/")
    return {
        name: str(folder / place)
        for name, place in VARIABLES.items()
        if name not in variables and not (name in _PREBUILT and (home / _PREBUILT[name]).exists())
    }


def remove_damaged_tactics(caches: Mapping[str, str], world_size: int) -> None:
    """Remove an autotuner file that would make the engine's next start fail.

    A server that was killed while writing leaves such a file.

    Args:
        caches: as returned by `cache_variables`.
        world_size: number of ranks, which the file must all contain.
    """
    if AUTOTUNER not in caches:
        return
    place = Path(caches[AUTOTUNER])
    for file in place.parent.glob(f"{place.stem}*{place.suffix}"):
        if not _is_sound(file, world_size):
            logger.warning("%s is damaged; tuning again", file)
            file.unlink(missing_ok=True)


def _is_sound(file: Path, world_size: int) -> bool:
    """Return True if TensorRT-LLM would load an autotuner file.

    `AutoTunerProfilingCache.load_cache` raises for a file that is not JSON, has no metadata or,
    after pull request 10336, not its rank, and for tactics that are not Python literals.
    """
    try:
        content: dict[str, Any] = json.loads(file.read_bytes())
        metadata = content.pop("metadata")
        if not {"lib_version", "device_name", "device_capability"} <= metadata.keys():
            return False
        own_file = content.pop("cache_data", None)
        ranks = {f"rank_{rank}" for rank in range(world_size)}
        if own_file is None and content.keys() <= ranks and content.keys() != ranks:
            return False
        for entries in (own_file or {}, *content.values()):
            for key, entry in entries.items():
                ast.literal_eval(key)
                tactic = entry["tactic"]
                if isinstance(tactic, str):
                    ast.literal_eval(tactic)
    except (OSError, ValueError, SyntaxError, LookupError, TypeError, AttributeError):
        return False
    except RecursionError:
        return False
    return True
