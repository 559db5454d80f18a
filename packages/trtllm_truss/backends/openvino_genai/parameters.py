"""`parameters` of config.pbtxt -> the settings of the CPU engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trtllm_truss.literals import BOOLEANS

T = TypeVar("T")

_WITHOUT_EFFECT = frozenset({"gpt_model_type", "FORCE_CPU_ONLY_INPUT_TENSORS", "triton_backend"})
"""Keys of every config.pbtxt that have no effect here."""


class ParameterError(ValueError):
    """A parameter in config.pbtxt is missing or invalid."""


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
    response_interval_s: float = 0.04
    ignored: tuple[str, ...] = ()


class _Parameters:
    """The parameters that are set; an empty value or an unfilled `${name}` counts as unset."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        given = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self._set = {k: v for k, v in given.items() if v and not v.startswith("${")}
        self._read: set[str] = set()

    def get(self, key: str, parse: Callable[[str], T], default: T) -> T:
        self._read.add(key)
        if key not in self._set:
            return default
        try:
            return parse(self._set[key])
        except (ValueError, KeyError) as error:
            raise ParameterError(f"Parameter {key} cannot be {self._set[key]!r}.") from error

    @property
    def unread(self) -> tuple[str, ...]:
        return tuple(sorted(self._set.keys() - self._read - _WITHOUT_EFFECT))


def read_settings(config: Mapping[str, Any]) -> EngineSettings:
    """Read a model's configuration, the JSON that Triton passes to Python backends.

    Raises:
        ParameterError: a parameter is missing or has an invalid value.
    """
    parameters = _Parameters(config)
    folder = parameters.get("gpt_model_path", Path, Path())
    if folder == Path():
        raise ParameterError("Parameter gpt_model_path must name the engine folder.")
    return EngineSettings(
        model_folder=folder,
        max_batch_size=max(1, int(config["max_batch_size"])),
        max_beam_width=parameters.get("max_beam_width", _positive, 1),
        kv_cache_tokens=parameters.get("max_tokens_in_paged_kv_cache", _positive, None),
        prefix_caching=parameters.get("enable_kv_cache_reuse", _boolean, True),
        chunked_context=parameters.get("enable_chunked_context", _boolean, True),
        evict=parameters.get("batch_scheduler_policy", _policy, False),
        exclude_input_in_output=parameters.get("exclude_input_in_output", _boolean, False),
        normalize_log_probs=parameters.get("normalize_log_probs", _boolean, True),
        cancellation_check_s=parameters.get("cancellation_check_period_ms", _positive, 100) / 1000,
        ignored=parameters.unread,  # must stay last: lists the keys not read above
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _boolean(text: str) -> bool:
    return BOOLEANS[text.lower()]


def _policy(text: str) -> bool:
    return {"guaranteed_no_evict": False, "max_utilization": True}[text]
