"""Greedy requests and requests that draw, in the fields of every protocol."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trtllm_dynamo.requests import read_request
from trtllm_truss.decoding import Decoding, meant
from trtllm_truss.protocols.lmi import parse_lmi
from trtllm_truss.protocols.messages.body import parse_messages
from trtllm_truss.protocols.openai.body import parse_chat, parse_completion
from trtllm_truss.protocols.predict import parse_predict
from trtllm_truss.protocols.responses.body import parse_response
from trtllm_truss.requests import GenerationRequest

Fields = Mapping[str, Any]
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
PROTOCOLS: dict[str, Callable[[Fields], GenerationRequest]] = {
    "predict": lambda sent: parse_predict({"prompt": "Hi", **sent}, {})[0],
    "chat": lambda sent: parse_chat({**CHAT, **sent}, {}).requests[0],
    "completions": lambda sent: parse_completion({"prompt": "Hi", **sent}, {}).requests[0],
    "messages": lambda sent: parse_messages({**CHAT, **sent}, {}).request,
    "responses": lambda sent: parse_response({"input": "Hi", **sent}, {}).request,
    "lmi": lambda sent: parse_lmi({"inputs": "Hi", "parameters": sent}, {}, tgi=False).requests[0],
    "tgi": lambda sent: parse_lmi({"inputs": "Hi", "parameters": sent}, {}, tgi=True).requests[0],
    "dynamo": lambda sent: read_request({"token_ids": [1], "sampling_options": sent}, {}),
}
LIMITS: list[Fields] = [
    {name: value for name, value in zip(("top_k", "top_p", "min_p"), values, strict=True) if value}
    for values in itertools.product((None, 50), (None, 0.5, 1.0), (None, 0.05))
]


def decoding(protocol: str, sent: Fields) -> Decoding:
    request = PROTOCOLS[protocol](sent)
    return meant(request.sampling, request.beam_width)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_temperature_of_0_is_greedy_beside_any_limit(protocol: str, limits: Fields) -> None:
    for cold in (0, 0.0, 1e-320, 1e-6):
        assert decoding(protocol, {"temperature": cold, **limits}).is_greedy


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_temperature_of_1_draws_within_the_limits(protocol: str, limits: Fields) -> None:
    assert decoding(protocol, {"temperature": 1, **limits}) == Decoding(**limits)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_token_to_draw_from_is_greedy(protocol: str) -> None:
    assert decoding(protocol, {"temperature": 1, "top_k": 1}).is_greedy
    if protocol not in ("lmi", "tgi"):  # where 0 sets no limit
        assert decoding(protocol, {"temperature": 1, "top_p": 0}).is_greedy


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_fields(protocol: str) -> None:
    """OpenAI and Anthropic draw by default; the others follow the engine."""
    is_greedy = protocol in ("predict", "lmi", "tgi")
    assert decoding(protocol, {}).is_greedy is is_greedy
