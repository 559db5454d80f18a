"""Parameters in the `config.pbtxt` of a text model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from trtllm_truss.backends.parameters import Parameters, boolean
from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer


def read_parameters(args: Mapping[str, str]) -> Parameters:
    """Read a model's parameters from the arguments of `initialize`."""
    return Parameters(json.loads(args["model_config"]))


def tokenizer(parameters: Parameters) -> TextTokenizer:
    return load_tokenizer(
        parameters.get("tokenizer_dir", Path, Path()),
        trust_remote_code=parameters.get("trust_remote_code", boolean, False),
    )
