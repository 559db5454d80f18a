"""Inspection of an engine by parsed contents, as of a listing."""

from __future__ import annotations

import json
from collections.abc import Iterable

from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.kinds import inspect_files


def inspect_config(
    config: object,
    files: Iterable[tuple[str, int]],
    manifest: object = None,
    *,
    index: object = None,
    quantization: object = None,
) -> Engine:
    """Inspect an engine.

    Args:
        config: the parsed ``config.json``.
        files: every file in the engine's folder: its path, and its bytes.
        manifest: the parsed ``engine.manifest.json``, if there is one.
        index: the parsed ``model.safetensors.index.json``, if there is one.
        quantization: the parsed ``hf_quant_config.json``, if there is one.
    """
    contents = {
        "config.json": config,
        "engine.manifest.json": manifest,
        "model.safetensors.index.json": index,
        "hf_quant_config.json": quantization,
    }
    given = {name for name, value in contents.items() if value is not None}
    sizes = dict(files)
    beside = dict.fromkeys(given - {"config.json"}, 9)
    return inspect_files({**beside, **sizes}, lambda name: json.dumps(contents[name]).encode())
