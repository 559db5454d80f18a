"""`parameters` of config.pbtxt -> the settings of the CPU engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_truss.backends.parameters import (
    ParameterError,
    Parameters,
    boolean,
    positive,
)


@dataclass(frozen=True)
class EngineSettings:
    """Settings from config.pbtxt, with TensorRT-LLM's meanings.

    Attributes:
        model_folder: the engine folder.
        max_batch_size: maximum of running requests; others wait.
        kv_cache_tokens: size of the KV cache; None lets it grow as needed.
        prefix_caching: reuse the KV cache of earlier prompts with the same beginning.
        chunked_context: read long prompts in parts, between the steps of running requests.
        evict: admit requests that may not fit together; some are then recomputed later.
        cancellation_check_s: interval of checks for cancelled requests, with few requests.
        response_interval_s: time to collect tokens of a stream, with few requests.
        ignored: keys that were set and have no meaning on a CPU.
    """

    model_folder: Path
    max_batch_size: int
    max_beam_width: int = 1
    kv_cache_tokens: int | None = None
    prefix_caching: bool = True
    chunked_context: bool = True
    evict: bool = False
    exclude_input_in_output: bool = False
    normalize_log_probs: bool = True
    cancellation_check_s: float = 0.1
    response_interval_s: float = 0.06
    ignored: tuple[str, ...] = ()


def read_settings(config: Mapping[str, Any]) -> EngineSettings:
    """Read a model's configuration, the JSON that Triton passes to Python backends.

    Raises:
        ParameterError: a parameter is missing or has an invalid value.
    """
    parameters = Parameters(config)
    folder = parameters.get("gpt_model_path", Path, Path())
    if folder == Path():
        raise ParameterError("Parameter gpt_model_path must name the engine folder.")
    return EngineSettings(
        model_folder=folder,
        max_batch_size=max(1, int(config["max_batch_size"])),
        max_beam_width=parameters.get("max_beam_width", positive, 1),
        kv_cache_tokens=parameters.get("max_tokens_in_paged_kv_cache", positive, None),
        prefix_caching=parameters.get("enable_kv_cache_reuse", boolean, True),
        chunked_context=parameters.get("enable_chunked_context", boolean, True),
        evict=parameters.get("batch_scheduler_policy", _policy, False),
        exclude_input_in_output=parameters.get("exclude_input_in_output", boolean, False),
        normalize_log_probs=parameters.get("normalize_log_probs", boolean, True),
        cancellation_check_s=parameters.get("cancellation_check_period_ms", positive, 100) / 1000,
        ignored=parameters.unread,  # must stay last: lists the keys not read above
    )


def _policy(text: str) -> bool:
    return {"guaranteed_no_evict": False, "max_utilization": True}[text]
