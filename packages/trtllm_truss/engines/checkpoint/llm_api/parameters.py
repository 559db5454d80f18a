"""`parameters` of config.pbtxt -> the settings of the LLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_truss.backends.parameters import (
    ParameterError,
    Parameters,
    boolean,
    positive,
)
from trtllm_truss.backends.token_model.request import Limits

_ANY_ID = 2**31


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: its name for the LLM API, and its folder."""

    name: str
    path: str


@dataclass(frozen=True)
class LlmSettings:
    """Settings from config.pbtxt.

    Attributes:
        model_folder: the checkpoint.
        tokenizer_folder: the tokenizer.
        llm_args: keyword arguments of `tensorrt_llm.LLM`, without `model` and `tokenizer`.
        vocab_size: number of token ids.
        adapters: LoRA adapters by `lora_task_id`.
        exclude_input_in_output: default of the request's flag of that name.
        cancellation_check_s: interval of checks for cancelled requests, with few requests.
        hang_timeout_s: time without any response after which a busy LLM counts as hung.
        canary_interval_s: time without any response after which an idle LLM gets a request.
    """

    model_folder: Path
    tokenizer_folder: Path
    llm_args: Mapping[str, Any]
    vocab_size: int = _ANY_ID
    adapters: Mapping[int, Adapter] = field(default_factory=dict)
    exclude_input_in_output: bool = False
    normalize_log_probs: bool = True
    cancellation_check_s: float = 0.1
    hang_timeout_s: float = 120.0
    canary_interval_s: float = 30.0

    @property
    def guides(self) -> bool:
        """Return True if the LLM follows guides."""
        return bool(self.llm_args.get("guided_decoding_backend"))

    def limits(self, served: frozenset[str]) -> Limits:
        """Return the limits of requests.

        Args:
            served: inputs of `token_model.unsupported` that the library serves.
        """
        args = self.llm_args
        chunked = args.get("enable_chunked_prefill", False)
        return Limits(
            context_length=args["max_seq_len"],
            vocab_size=self.vocab_size,
            max_beam_width=args.get("max_beam_width") or 1,
            exclude_input_in_output=self.exclude_input_in_output,
            max_input_tokens=None if chunked else args["max_num_tokens"],
            engine="the LLM API",
            served=served,
        )


def read_settings(config: Mapping[str, Any]) -> LlmSettings:
    """Read a model's configuration, the JSON that Triton passes to Python backends.

    Raises:
        ParameterError: a parameter is missing or has an invalid value.
    """
    parameters = Parameters(config)
    folder = parameters.get("gpt_model_path", Path, Path())
    if folder == Path():
        raise ParameterError("Parameter gpt_model_path must name the checkpoint's folder.")
    return LlmSettings(
        model_folder=folder,
        tokenizer_folder=parameters.get("tokenizer_dir", Path, folder),
        llm_args=_llm_args(parameters),
        vocab_size=parameters.get("vocab_size", positive, _ANY_ID),
        adapters=parameters.get("lora_adapters", _adapters, {}),
        exclude_input_in_output=parameters.get("exclude_input_in_output", boolean, False),
        normalize_log_probs=parameters.get("normalize_log_probs", boolean, True),
        cancellation_check_s=parameters.get("cancellation_check_period_ms", positive, 100) / 1000,
        hang_timeout_s=parameters.get("hang_timeout_s", float, 120.0),
        canary_interval_s=parameters.get("canary_interval_s", float, 30.0),
    )


def _llm_args(parameters: Parameters) -> dict[str, Any]:
    args: dict[str, Any] = parameters.get("llm_args", json.loads, {})
    for name in ("max_seq_len", "max_num_tokens"):
        if not isinstance(args.get(name), int):
            raise ParameterError(
                f"Parameter llm_args lacks {name}; the Truss writes it, so do not leave it out."
            )
    return args


def _adapters(text: str) -> dict[int, Adapter]:
    return {int(number): Adapter(**adapter) for number, adapter in json.loads(text).items()}
