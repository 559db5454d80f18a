"""Parameters in a model's `config.pbtxt`, where every value is a string."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer


def parameters(args: Mapping[str, str]) -> dict[str, str]:
    """Return the model's parameters by name, from the arguments of `initialize`."""
    config = json.loads(args["model_config"])
    return {name: value["string_value"] for name, value in config["parameters"].items()}


def tokenizer(values: Mapping[str, str]) -> TextTokenizer:
    is_trusted = flag(values, "trust_remote_code", default=False)
    return load_tokenizer(Path(values["tokenizer_dir"]), trust_remote_code=is_trusted)


def flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return a boolean parameter; `default` if it is blank or missing."""
    text = values.get(name, "").strip().lower()
    return text in ("true", "1") if text else default
