"""Convert requests of NVIDIA Dynamo's frontend to ours, and our tokens to its chunks.

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

_UNSERVED = {
    **dict.fromkeys(("prompt_embeds", "multi_modal_data"), "prompts are tokens"),
    **dict.fromkeys(
        ("prefill_result", "bootstrap_info", "encoder_result"),
        "this worker does every step of a request",
    ),
    "bad_words_token_ids": "the engine has no such limit",
    "logprob_token_ids": "the engine chooses the alternatives that it reports",
    "structural_tag": "guided decoding takes a JSON schema, a regex, a choice or a grammar",
}
"""Fields that no protocol of ours has, with the reasons for refusing them."""
_GUIDES = {"backend": "guided_decoding_backend"}
"""Guides whose fields are not named `guided_` plus their name."""


def read_request(
    request: Mapping[str, Any], defaults: Defaults, adapters: tuple[str, ...] = ()
) -> GenerationRequest:
    """Convert a request of Dynamo's frontend.

    The options have the names of OpenAI's completions, and the same rules apply. The frontend
    handles words and text: `stop`, `skip_special_tokens` and `include_stop_str_in_output` have no
    effect here.

    Args:
        request: a `GenerateRequest`.
        defaults: values of omitted fields.
        adapters: model names that are adapters.

    Raises:
        RequestError: a field is unsupported or out of range.
    """
    # Fields that only some workers support are next to the others.
    more = _given(_given(request, "extra_args"), "sampling_options")
    sampling = _given(request, "sampling_options") | more
    ends = _given(request, "stop_conditions")
    output = _given(request, "output_options")
    guide = _given(sampling, "guided_decoding")
    _refuse_unserved({**request, **sampling, **ends, **output, **guide})
    for name in ("n", "guided_decoding", "include_stop_str_in_output", "detokenize"):
        sampling.pop(name, None)
    body: dict[str, Any] = {
        **sampling,
        **{name: ends[name] for name in ("max_tokens", "min_tokens", "ignore_eos") if name in ends},
        "cache_salt": _given(request, "routing").get("cache_salt"),
        "prompt": list(request["token_ids"]),
        **{_GUIDES.get(name, f"guided_{name}"): value for name, value in guide.items()},
    }
    if ids := ends.get("stop_token_ids"):
        body["stop_token_ids"] = ids
    visible = ends.get("stop_token_ids_visible") or ()
    if visible and not guide:
        # An EOS token that also ends a tool call. The engine would hold it back; with it, the
        # frontend finishes the choice.
        body["ignore_eos"] = True
    given = "max_tokens" in body or "max_tokens" in defaults
    (wanted,) = parse_completion(
        body if given else {**body, "max_tokens": REST_OF_CONTEXT}, defaults
    ).requests
    wanted.max_tokens_given = "max_tokens" in body
    # The frontend adds the model's EOS tokens to every request.
    stops = (*wanted.stop_token_ids, *(ends.get("stop_token_ids_hidden") or ()))
    wanted.stop_token_ids = tuple(token_id for token_id in stops if token_id not in visible)
    if (model := request.get("model")) in adapters:
        wanted.model = model
    if (log_probs := output.get("logprobs")) is not None:
        # The frontend also sends 1 for `logprobs: true` without alternatives.
        wanted.log_probs = 0 if log_probs <= 1 else log_probs
    return wanted


def _refuse_unserved(fields: Mapping[str, Any]) -> None:
    for name, reason in _UNSERVED.items():
        if fields.get(name):
            raise InvalidRequest(f"{name} is given; {reason}. Leave it out.")
    if (answers := fields.get("n", 1)) != 1:
        raise InvalidRequest(
            f"n is {answers}; a Dynamo worker generates one choice per request. Send {answers} "
            "requests."
        )
    if (thinking := fields.get("max_thinking_tokens")) is not None:
        raise InvalidRequest(
            f"max_thinking_tokens is {thinking}; this worker does not see reasoning. Leave it out."
        )
    if (alternatives := fields.get("prompt_logprobs")) is not None:
        raise InvalidRequest(
            f"prompt_logprobs is {alternatives}; this worker reports no log probabilities of "
            "the prompt. Leave out prompt_logprobs, and echo, with which the frontend requests "
            "them."
        )


def _given(request: Mapping[str, Any], group: str) -> dict[str, Any]:
    options = request.get(group) or {}
    return {name: value for name, value in options.items() if value is not None}


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
