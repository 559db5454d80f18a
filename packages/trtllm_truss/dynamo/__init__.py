"""A worker of NVIDIA Dynamo: its requests to ours, and our tokens to its chunks.

Dynamo's frontend speaks HTTP, tokenizes, applies chat templates and stop words, parses tool calls
and routes. The worker takes and gives token ids. Admission, checks, guides, deadlines and
supervision are those of `Service`, so a worker refuses what every other route refuses.

Source: `GenerateRequest` and `GenerateChunk` in `dynamo/common/backend/engine.py` of ai-dynamo
1.6.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import Defaults
from trtllm_truss.protocols.openai.body import parse_completion
from trtllm_truss.requests import REST_OF_CONTEXT, GenerationRequest, TokenDelta
from trtllm_truss.validation import shown_name

_GUIDES = ("json", "json_object", "regex", "choice", "grammar")
_COMPILER = "backend"


def read_request(
    request: Mapping[str, Any], defaults: Defaults, adapters: tuple[str, ...] = ()
) -> GenerationRequest:
    """Convert a request of Dynamo's frontend.

    The options have the names of OpenAI's completions, whose rules apply. Words and text are the
    frontend's: `stop`, `skip_special_tokens` and `include_stop_str_in_output` have no effect here.

    Args:
        request: a `GenerateRequest`.
        defaults: values of omitted fields.
        adapters: names of models that are adapters.

    Raises:
        RequestError: a field is unsupported or out of range.
    """
    sampling = _given(request, "sampling_options")
    ends = _given(request, "stop_conditions")
    output = _given(request, "output_options")
    sampling.pop("include_stop_str_in_output", None)
    if (answers := sampling.pop("n", None)) not in (None, 1):
        raise InvalidRequest(
            f"n is {answers}; a worker of Dynamo answers a request once. Send {answers} requests."
        )
    guide = sampling.pop("guided_decoding", None)
    if thinking := ends.get("max_thinking_tokens"):
        raise InvalidRequest(
            f"max_thinking_tokens is {thinking}; this worker sees no reasoning. Leave it out."
        )
    if output.get("prompt_logprobs") is not None:
        raise InvalidRequest(
            "prompt_logprobs is set; this worker reports none of the prompt. Leave it out."
        )
    body: dict[str, Any] = {
        **sampling,
        **{name: ends[name] for name in ("max_tokens", "min_tokens", "ignore_eos") if name in ends},
        "prompt": list(request["token_ids"]),
        "stop_token_ids": [
            *(ends.get("stop_token_ids") or ()),
            *(ends.get("stop_token_ids_hidden") or ()),
        ],
    }
    if guide is not None:
        body["structured_outputs"] = _structured_outputs(guide)
    given = "max_tokens" in body or "max_tokens" in defaults
    (wanted,) = parse_completion(
        body if given else {**body, "max_tokens": REST_OF_CONTEXT}, defaults
    ).requests
    wanted.max_tokens_given = "max_tokens" in body
    if (model := request.get("model")) in adapters:
        wanted.model = model
    if (log_probs := output.get("logprobs")) is not None:
        # 1 is also what `logprobs: true` without alternatives becomes.
        wanted.log_probs = 0 if log_probs <= 1 else log_probs
    return wanted


def _given(request: Mapping[str, Any], group: str) -> dict[str, Any]:
    options = request.get(group) or {}
    return {name: value for name, value in options.items() if value is not None}


def _structured_outputs(guide: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in guide.items() if value is not None}
    for name in options:
        if name not in (*_GUIDES, _COMPILER):
            raise InvalidRequest(
                f"guided decoding by {shown_name(name)} is not supported; send one of "
                f"{', '.join(_GUIDES)}."
            )
    return {name: value for name, value in options.items() if name in _GUIDES}


def to_chunk(delta: TokenDelta) -> dict[str, Any]:
    chunk: dict[str, Any] = {"token_ids": list(delta.ids), "index": 0}
    if delta.log_probs:
        chunk["log_probs"] = list(delta.log_probs)
        alternatives = delta.alternatives or [
            [pair] for pair in zip(delta.ids, delta.log_probs, strict=True)
        ]
        chunk["top_logprobs"] = [
            [
                {"rank": rank, "token_id": token_id, "token": None, "logprob": log_prob}
                for rank, (token_id, log_prob) in enumerate(pairs, 1)
            ]
            for pairs in alternatives
        ]
    if delta.end is not None:
        usage = delta.end.usage
        chunk["finish_reason"] = delta.end.reason.value
        chunk["completion_usage"] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        if usage.cached_tokens is not None:
            chunk["completion_usage"]["prompt_tokens_details"] = {
                "cached_tokens": usage.cached_tokens
            }
    return chunk
