"""The table of request fields: every row in every protocol, and in the engine's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trtllm_truss.engines.kinds import KINDS
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.lmi import parse_lmi
from trtllm_truss.protocols.messages.body import parse_messages
from trtllm_truss.protocols.openai.body import parse_chat
from trtllm_truss.protocols.predict import NO_DEFAULTS, PredictBody, parse_defaults, parse_predict
from trtllm_truss.releases import INPUTS, OWN_INPUTS
from trtllm_truss.request_fields import (
    OPTIONS,
    SAMPLING,
    Ids,
    ProtocolName,
    RequestField,
    rows_of,
)
from trtllm_truss.requests import GenerationRequest

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}


def lmi(sent: Mapping[str, Any], defaults: Mapping[str, Any]) -> GenerationRequest:
    parameters = {"max_new_tokens": 50, "do_sample": True, **sent}
    return parse_lmi({"inputs": "Hi", "parameters": parameters}, defaults, tgi=False).requests[0]


Parse = Callable[[Mapping[str, Any], Mapping[str, Any]], GenerationRequest]
PARSERS: dict[ProtocolName, Parse] = {
    "predict": lambda sent, defaults: parse_predict({"prompt": "Hi", **sent}, defaults)[0],
    "openai": lambda sent, defaults: parse_chat({**CHAT, **sent}, defaults).requests[0],
    "messages": lambda sent, defaults: parse_messages({**CHAT, **sent}, defaults).request,
    "lmi": lmi,
}
ROWS = [
    pytest.param(protocol, name, row, id=f"{protocol}-{name}")
    for protocol in PARSERS
    for name, row in rows_of(protocol).items()
]


def some_value(row: RequestField) -> Any:
    """Return a value that is not the default."""
    if isinstance(row.default, tuple):
        return [5] if row.kind == Ids else ["x"]
    return {float: 0.5, int: 3, bool: not row.default}[row.kind]


def attribute(request: GenerationRequest, row: RequestField) -> Any:
    value = getattr(request.sampling if row in SAMPLING else request, row.attribute)
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize(("protocol", "name", "row"), ROWS)
def test_a_field_reaches_the_request(protocol: ProtocolName, name: str, row: RequestField) -> None:
    value = some_value(row)
    request = PARSERS[protocol]({name: value}, {})
    assert attribute(request, row) == value
    if protocol != "predict":
        assert request.name(row.attribute).rpartition(".")[2] == name


@pytest.mark.parametrize(("protocol", "name", "row"), ROWS)
def test_a_default_reaches_the_request(
    protocol: ProtocolName, name: str, row: RequestField
) -> None:
    if row.name_in("predict") is not None:
        defaults = parse_defaults({row.name: some_value(row)})
        assert attribute(PARSERS[protocol]({}, defaults), row) == some_value(row)


@pytest.mark.parametrize(("protocol", "name", "row"), ROWS)
def test_the_range_of_a_field(protocol: ProtocolName, name: str, row: RequestField) -> None:
    beyond = [] if row.range.high is None else [row.range.high * 2 + 1]
    beyond += [] if row.range.low is None else [row.range.low * 2 - 2]
    for value in beyond:
        if protocol != "openai" or name != "seed":  # OpenAI's may be negative
            with pytest.raises(InvalidRequest, match=rf"{name} is .*it must be at (least|most)"):
                PARSERS[protocol]({name: value}, {})


@pytest.mark.parametrize("protocol", PARSERS)
@pytest.mark.parametrize(
    ("end", "ids", "ignores"), [({"end_id": 7}, [7], False), ({"end_id": -1}, [], True)]
)
def test_every_default_suits_every_protocol(
    protocol: ProtocolName, end: dict[str, int], ids: list[int], ignores: bool
) -> None:
    every = {row.name: some_value(row) for row in rows_of("predict").values()}
    every |= {"parallel_tool_calls": False, "stream": False, "max_tokens": 40, "ignore_eos": False}
    del every["stop_token_ids"]
    assert {*every, *end, "stop_token_ids"} == PredictBody.model_fields.keys() - {*NO_DEFAULTS}, (
        "give a new field of predict a value here, or add it to NO_DEFAULTS"
    )
    request = PARSERS[protocol]({}, parse_defaults({**every, **end}))
    assert (list(request.stop_token_ids), request.ignore_eos) == (ids, ignores)


@pytest.mark.parametrize("protocol", PARSERS)
def test_the_default_end_is_one_more_of_the_sent_ones(protocol: ProtocolName) -> None:
    defaults = parse_defaults({"end_id": 7, "stop_token_ids": [5]})
    request = PARSERS[protocol]({"stop_token_ids": [6]}, defaults)
    assert request.stop_token_ids == (6, 7)
    with pytest.raises(InvalidRequest, match="stop_token_ids"):
        PARSERS[protocol]({"stop_token_ids": 6}, defaults)


def test_rows_of_sampling_are_in_every_protocol() -> None:
    for protocol in PARSERS:
        assert all(row.name_in(protocol) for row in SAMPLING), protocol


def test_tensors_are_those_of_the_contract() -> None:
    contract = {tensor.name: tensor for tensor in (*INPUTS, *OWN_INPUTS)}
    for row in SAMPLING:
        for name in row.tensors:
            tensor = contract[name]
            assert (tensor.dtype in ("FP32",)) == (row.kind is float), name
            assert tensor.scalar


def test_engines_refuse_rows_only() -> None:
    rows = {row.name for row in (*SAMPLING, *OPTIONS)}
    assert all(kind.refused_fields <= rows for kind in KINDS)
