"""The inputs sent for a request, read by NVIDIA's rules, do what the request means."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from trtllm_truss.decoding import GREEDY, LEAST_TEMPERATURE, Decoding, in_runtime, inputs_for, meant
from trtllm_truss.releases import holds
from trtllm_truss.request_fields import SAMPLING, Sampling
from trtllm_truss.triton.client.engine_messages import EngineRequest
from trtllm_truss.triton.client.tensors import EngineInputs, encode_request

RELEASES = (
    *("0.7.1", "0.8.0", "0.9.0", "0.10.0", "0.11.0", "0.12.0", "0.13.0", "0.14.0", "0.15.0"),
    *("0.16.0", "0.17.0.post1", "0.18.2", "0.19.0", "0.20.0", "0.21.0", "1.0.0", "1.1.0"),
    *("1.2.0rc4", "1.2.1", None),
)
TEMPERATURES = (None, 0.0, 1e-320, 1e-46, 1e-6, LEAST_TEMPERATURE, 0.7, 1.0, 2.0, 100.0)
TOP_KS = (None, 0, 1, 2, 50, 1024)
TOP_PS = (None, 0.0, 1e-320, 1e-46, 1e-7, 1e-6, 0.5, 1.0)
CHOICES = [*itertools.product(TEMPERATURES, TOP_KS, TOP_PS)]


def fp32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def rounded(decoding: Decoding) -> Decoding:
    return Decoding(*(fp32(each) if isinstance(each, float) else each for each in decoding))


def received(version: str | None, beams: int, **fields: Any) -> Sampling:
    """Return the inputs of a request as a backend reads them."""
    request = EngineRequest("r", [5], 9, sampling=Sampling(**fields), beam_width=beams)
    raw = encode_request(request, model_name="m", known=EngineInputs.of(version))
    message = service_pb2.ModelInferRequest.FromString(raw)
    tensors = zip(message.inputs, message.raw_input_contents, strict=True)
    values = {tensor.name: (tensor.datatype, raw) for tensor, raw in tensors}
    formats = {"FP32": "<f", "INT32": "<i"}
    found = Sampling()
    for row in SAMPLING:
        if row.tensors[0] in values and row.effect in ("temperature", "limit"):
            datatype, data = values[row.tensors[0]]
            setattr(found, row.attribute, struct.unpack(formats[datatype], data)[0])
    return found


@pytest.mark.parametrize("version", RELEASES)
def test_every_release_does_what_a_request_means(version: str | None) -> None:
    replaced = holds("replaces_zero_temperature", version)
    for (temperature, top_k, top_p), beams in itertools.product(CHOICES, (1, 4)):
        fields = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        sent = received(version, beams, **fields)
        found = in_runtime(sent, beams, zero_is_replaced=replaced)
        assert found == rounded(meant(Sampling(**fields), beams)), (fields, beams, sent)


def test_only_releases_that_replace_a_temperature_of_0_get_one() -> None:
    for version in RELEASES:
        sent = received(version, 1, temperature=0.0, top_p=1.0)
        assert sent.top_k == 1
        assert (sent.temperature is None) is (version in ("0.7.1", "0.8.0", "0.9.0", "0.10.0"))


@pytest.mark.parametrize("min_p", [0.0, 1e-320, 0.05, 1.0])
def test_min_p_of_the_llm_apis_samplers(min_p: float) -> None:
    for temperature, top_k, top_p in CHOICES:
        given = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        wanted = meant(given)
        values = {name: value for name, value in inputs_for(wanted).items() if value is not None}
        assert in_runtime(Sampling(**values)) == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "beams", "decoding"),
    [
        ({}, 1, GREEDY),
        ({"seed": 7, "repetition_penalty": 1.2}, 1, GREEDY),
        ({"top_k": 0}, 1, GREEDY),
        ({"min_p": 0.0}, 1, GREEDY),
        ({"temperature": 0.0}, 1, GREEDY),
        ({"temperature": 0.0, "top_p": 1.0}, 1, GREEDY),
        ({"temperature": 0.0, "top_p": 0.9, "top_k": 50}, 1, GREEDY),
        ({"temperature": 1e-320, "top_p": 1.0}, 1, GREEDY),
        ({"temperature": 1.0, "top_k": 1}, 1, GREEDY),
        ({"temperature": 1.0, "top_p": 0.0}, 1, GREEDY),
        ({"temperature": 1.0, "top_p": 1e-320}, 1, GREEDY),
        ({"top_p": 1e-6}, 1, GREEDY),
        ({"temperature": 1.0, "min_p": 1.0}, 1, GREEDY),
        ({"temperature": 1.0}, 1, Decoding()),
        ({"temperature": 1.0, "top_p": 1.0}, 1, Decoding()),
        ({"temperature": 1.0, "top_p": 1.0, "top_k": 0}, 1, Decoding()),
        ({"top_p": 1.0}, 1, Decoding()),
        ({"top_p": 0.9}, 1, Decoding(top_p=0.9)),
        ({"top_k": 50}, 1, Decoding(top_k=50)),
        ({"temperature": 0.7, "top_k": 50}, 1, Decoding(temperature=0.7, top_k=50)),
        ({"min_p": 0.1}, 1, Decoding(min_p=0.1)),
        ({"temperature": 0.0, "top_p": 1.0}, 2, Decoding(2)),
        ({"temperature": 0.7, "top_k": 1, "top_p": 0.5, "min_p": 0.5}, 2, Decoding(2, 0.7)),
        ({}, 2, Decoding(2)),
    ],
)
def test_the_meaning_of_a_request(fields: dict[str, Any], beams: int, decoding: Decoding) -> None:
    assert meant(Sampling(**fields), beams) == decoding
    assert decoding.is_greedy is (decoding is GREEDY)


@pytest.mark.parametrize(
    ("fields", "beams", "decoding"),
    [
        ({}, 1, GREEDY),
        ({"temperature": 0.7}, 1, GREEDY),
        ({"temperature": 0.0}, 1, GREEDY),
        ({"temperature": 0.0, "top_p": 1.0}, 1, Decoding()),  # the most random answer
        ({"temperature": 0.0, "top_p": 0.5}, 1, Decoding()),
        ({"temperature": 0.0, "top_k": 50, "top_p": 0.5}, 1, GREEDY),
        ({"temperature": 0.0, "top_k": 50}, 1, GREEDY),
        ({"temperature": 0.7, "top_p": 0.0}, 1, GREEDY),
        ({"temperature": 0.7, "top_k": 0, "top_p": 0.5}, 1, Decoding(temperature=0.7, top_p=0.5)),
        ({"temperature": 0.7, "top_k": 5}, 1, Decoding(temperature=0.7, top_k=5)),
        ({"top_k": 5000}, 1, Decoding(top_k=1024)),
        ({"temperature": 0.0, "top_p": 0.5}, 2, Decoding(2)),
        ({"temperature": 0.7, "top_k": 1}, 2, Decoding(2, 0.7)),
    ],
)
def test_the_runtimes_reading(fields: dict[str, Any], beams: int, decoding: Decoding) -> None:
    assert in_runtime(Sampling(**fields), beams) == decoding


def test_releases_before_the_replacement_keep_a_temperature_of_0() -> None:
    given = Sampling(temperature=0.0, top_p=1.0)
    assert in_runtime(given, zero_is_replaced=False) == Decoding(temperature=0.0)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"top_k": -1}, "topK"),
        ({"top_p": 1.5}, "topP"),
        ({"temperature": -1.0}, "temperature"),
        ({"min_p": 2.0}, "minP"),
    ],
)
def test_refusals_of_the_runtime(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"Assertion failed: {text}"):
        in_runtime(Sampling(**fields))
