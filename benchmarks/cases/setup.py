"""The engine, configuration and requests that several cases share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.backend import Backend, make_backend
from benchmarks.engine.folder import write_engine
from benchmarks.load.spec import LoadSpec
from benchmarks.options import Options
from benchmarks.result import CaseResult
from benchmarks.servers.configuration import TOKENIZER_REPOSITORY, write_config
from benchmarks.servers.target import Target
from trtllm_truss.settings.model import Serving

PROMPT = "Once upon a time there was a little"
PROMPT_IDS = (6403, 2980, 253, 655, 665, 436, 253, 1838)
"""Any prompt of the same length; the engine repeats any tokens."""


@dataclass(frozen=True, slots=True)
class Bench:
    """An engine and its configuration."""

    backend: Backend
    config: Path

    def note_backend(self, result: CaseResult) -> None:
        """Add a finding if the engine is not the compiled one."""
        if self.backend.kind != "compiled":
            result.find(f"Engine: {self.backend.kind}.")


def set_up(
    options: Options,
    name: str,
    *,
    max_batch_size: int = 2048,
    engine: Mapping[str, Any] | None = None,
    **serving: Any,
) -> Bench:
    """Create the paced engine and a configuration that serves it.

    Args:
        options: contains the folder.
        name: name of the case and its files.
        max_batch_size: concurrent requests in the engine.
        engine: its behaviour; see `paced_engine.c` for the keys.
        serving: keys of `model_metadata.serving`.
    """
    options.work.mkdir(parents=True, exist_ok=True)
    folder = write_engine(
        options.work / f"{name}-engine", max_batch_size=max_batch_size, **(engine or {})
    )
    config = write_config(
        options.work / f"{name}.yaml",
        engine_repository=str(folder.resolve()),
        tokenizer_repository=TOKENIZER_REPOSITORY,
        serving={"drain_timeout_s": 1, **serving},
    )
    return Bench(make_backend(options.work), config)


def chunk_interval_ms() -> float:
    """Return the default of `serving.chunk_interval_ms`."""
    field = Serving.model_fields.get("chunk_interval_ms")
    return 0.0 if field is None else float(field.default)


def predict_load(target: Target, tokens: int, streams: int, **load: Any) -> LoadSpec:
    """Return a load on the Truss; `load` are fields of `LoadSpec`."""
    bodies = (predict_body(PROMPT, tokens),)
    return LoadSpec("http", target.port, target.path, bodies, streams=streams, **load)


def predict_body(prompt: str, tokens: int) -> str:
    """Return the `predict` body for an answer of exactly `tokens` tokens."""
    return json.dumps({"prompt": prompt, "max_tokens": tokens, "ignore_eos": True})


def native_load(target: Target, model: str, tokens: int, streams: int, **load: Any) -> LoadSpec:
    """Return a load on Triton's HTTP endpoint."""
    if model == "tensorrt_llm":
        body: dict[str, Any] = {
            "input_ids": PROMPT_IDS,
            "input_lengths": len(PROMPT_IDS),
            "request_output_len": tokens,
            "streaming": True,
        }
    else:
        body = {"text_input": PROMPT, "max_tokens": tokens, "stream": True}
        body |= {"bad_words": "", "stop_words": ""}
    bodies = (json.dumps(body),)
    return LoadSpec("http", target.port, target.path, bodies, streams=streams, **load)


def bare_load(target: Target, tokens: int, streams: int, **load: Any) -> LoadSpec:
    """Return the load of a bare gRPC loop."""
    ids = PROMPT_IDS
    return LoadSpec(
        "grpc", target.grpc_port, prompt_ids=ids, tokens=tokens, streams=streams, **load
    )
