"""Log probabilities and signs of life in engine responses."""

from __future__ import annotations

import asyncio
import gc
import struct
import weakref

import pytest
from tests.support.virtual_time import virtually
from tritonclient.grpc import service_pb2

from trtllm_truss.errors import EngineUnavailable, InternalError
from trtllm_truss.triton.client import tensors
from trtllm_truss.triton.client.client import ResponseStream
from trtllm_truss.triton.client.failures import StatusCode


def message(ids, log_probs, *, final=False, request_id=""):
    response = service_pb2.ModelInferResponse(model_name="tensorrt_llm", id=request_id)
    outputs = {
        "output_ids": ("INT32", [1, 1, len(ids)], struct.pack(f"<{len(ids)}i", *ids)),
        "sequence_length": ("INT32", [1, 1], struct.pack("<i", len(ids))),
        "cum_log_probs": ("FP32", [1, 1], struct.pack("<f", sum(log_probs))),
        "output_log_probs": (
            "FP32",
            [1, 1, len(log_probs)],
            struct.pack(f"<{len(log_probs)}f", *log_probs),
        ),
    }
    for name, (datatype, shape, data) in outputs.items():
        response.outputs.add(name=name, datatype=datatype, shape=shape)
        response.raw_output_contents.append(data)
    response.parameters["triton_final_response"].bool_param = final
    return service_pb2.ModelStreamInferResponse(infer_response=response).SerializeToString()


WHOLE = [([7], [-1]), ([8, 9], [-1, -2, -3]), ([9], [-1, -2, -3, -4]), ([], [-1, -2, -3, -4])]
NEW = [([7], [-1]), ([8, 9], [-2, -3]), ([9], [-4]), ([], [])]


@pytest.mark.parametrize("responses", [WHOLE, NEW], ids=["whole lists", "new ones alone"])
async def test_log_probs_are_those_of_all_tokens(responses):
    answer = ResponseStream()
    seen = []
    for ids, log_probs in responses:
        answer.message(message(ids, log_probs, final=not ids))
        chunk = await answer.next()
        seen.append((chunk.token_ids, chunk.log_probs))
    assert seen == [
        ((7,), (-1,)),
        ((8, 9), (-1, -2, -3)),
        ((9,), (-1, -2, -3, -4)),
        ((), (-1, -2, -3, -4)),
    ]


async def test_log_probs_of_chunks_that_are_read_together():
    answer = ResponseStream()
    for ids, log_probs in NEW:
        answer.message(message(ids, log_probs, final=not ids))
    chunk = await answer.next()
    assert (chunk.token_ids, chunk.log_probs) == ((7, 8, 9, 9), (-1, -2, -3, -4))


async def test_a_failure_keeps_nothing_alive_after_it_was_raised():
    answer = ResponseStream()
    answer.ended(StatusCode.UNAVAILABLE, "gone")
    with pytest.raises(EngineUnavailable):
        await answer.next()
    reference = weakref.ref(answer)
    gc.disable()
    try:
        del answer
        assert reference() is None
    finally:
        gc.enable()


def error(text):
    return service_pb2.ModelStreamInferResponse(error_message=text).SerializeToString()


@pytest.mark.parametrize(
    ("said", "signs"),
    [
        (message([], []), 1),
        (error("invalid argument: guided_decoding_guide cannot be followed: it is too large"), 1),
        (error("Maximum queue size reached, please try again later"), 1),
        (error("Failed to process the request: the stub process is not healthy"), 0),
    ],
    ids=["nothing yet", "a refusal", "a full queue", "a backend that is gone"],
)
async def test_signs_of_life_without_a_token(said, signs):
    seen = []
    answer = ResponseStream(on_heartbeat=lambda: seen.append(1))
    answer.message(said)
    assert len(seen) == signs


@pytest.mark.parametrize("status", [StatusCode.UNAVAILABLE, StatusCode.OK, StatusCode.CANCELLED])
async def test_a_connections_end_is_not_a_sign_of_life(status):
    seen = []
    answer = ResponseStream(on_heartbeat=lambda: seen.append(1))
    answer.ended(status, "connection reset")
    assert not seen


async def test_the_response_of_another_request_is_refused():
    answer = ResponseStream(request_id="ours")
    assert not answer.message(message([7], [], request_id="ours"))
    assert not answer.message(message([8], [], request_id="yours", final=True))
    assert (await answer.next()).token_ids == (7,)
    with pytest.raises(InternalError, match="'yours' instead of 'ours'"):
        await answer.next()
    assert not answer.over


async def test_alternatives_are_those_of_all_tokens():
    answer = ResponseStream()
    for place, final in enumerate((False, False, True)):
        payload = service_pb2.ModelStreamInferResponse.FromString(
            message([place], [-1], final=final)
        )
        for name, code in (("top_logprob_ids", "i"), ("top_logprobs", "f")):
            datatype = "INT32" if code == "i" else "FP32"
            payload.infer_response.outputs.add(name=name, datatype=datatype, shape=[1, 1, 1, 1])
            payload.infer_response.raw_output_contents.append(struct.pack(f"<{code}", place))
        answer.message(payload.SerializeToString())
    chunk = await answer.next()
    assert chunk.token_ids == (0, 1, 2)
    assert chunk.alternatives == (((0, 0.0),), ((1, 1.0),), ((2, 2.0),))


METRICS = (
    ("kv_cache_alloc_total_blocks", "INT32", "i"),
    ("first_token_time_ns", "INT64", "q"),
    ("acceptance_rate", "FP32", "f"),
    ("total_draft_tokens", "INT32", "i"),
)


def response(request_id, *tokens, final=False, cached=None, metrics=None):
    """Build what a backend sends: tokens, perhaps the last ones, or an empty response."""
    infer = service_pb2.ModelInferResponse(model_name="tensorrt_llm", id=request_id)
    if tokens:
        infer.outputs.add(name="output_ids", datatype="INT32", shape=[1, 1, len(tokens)])
        infer.raw_output_contents.append(struct.pack(f"<{len(tokens)}i", *tokens))
    if cached is not None:
        infer.outputs.add(name="kv_cache_reused_blocks", datatype="INT32", shape=[1, 1])
        infer.raw_output_contents.append(struct.pack("<i", cached))
    for name, datatype, code in METRICS if metrics is not None else ():
        infer.outputs.add(name=name, datatype=datatype, shape=[1, 1])
        infer.raw_output_contents.append(struct.pack(f"<{code}", metrics))
    infer.parameters["triton_final_response"].bool_param = final or not tokens
    return service_pb2.ModelStreamInferResponse(infer_response=infer).SerializeToString()


@pytest.mark.parametrize("last_is_empty", [True, False])
@pytest.mark.parametrize("later_id", ["b", "longer"])
async def test_a_later_request_with_responses_like_an_earlier_ones(later_id, last_is_empty):
    reader, seen = None, []
    for request_id, tokens in (("a", [1000, 2000]), (later_id, [3000, 4000])):
        answer = ResponseStream(request_id=request_id, like=reader)
        last = (
            response(request_id) if last_is_empty else response(request_id, tokens[1], final=True)
        )
        assert not answer.message(response(request_id, tokens[0]))
        assert not (last_is_empty and answer.message(response(request_id, tokens[1])))
        assert answer.message(last)
        chunk = await answer.next()
        seen.append((chunk.token_ids, chunk.final))
        reader = answer.reader
    assert seen == [((1000, 2000), True), ((3000, 4000), True)]


@pytest.mark.parametrize(
    "said", [response("a", 3000), response("a", 3000, final=True), response("a"), b""]
)
async def test_a_response_like_an_earlier_requests_needs_the_id(said):
    earlier = ResponseStream(request_id="a")
    for tokens in ((1000,), (2000,), ()):
        earlier.message(response("a", *tokens))
    earlier.reader.read(response("a", 3000, final=True))
    answer = ResponseStream(request_id="b", like=earlier.reader)
    assert not answer.message(said)
    with pytest.raises(InternalError, match="instead of 'b'"):
        await answer.next()


async def test_responses_of_as_many_tokens_are_parsed_once(monkeypatch):
    parsed, parse = [], tensors._parse
    monkeypatch.setattr(tensors, "_parse", lambda data: parsed.append(1) or parse(data))
    answer = ResponseStream(request_id="a")
    sent = [(1000, 2000), (7,), (3000, 4000), (5, 6, 5), (8,), (9, 9, 9), (1, 2)]
    for tokens in sent:
        assert not answer.message(response("a", *tokens))
    assert (await answer.next()).token_ids == tuple(token for tokens in sent for token in tokens)
    assert len(parsed) == len({len(tokens) for tokens in sent})


@pytest.mark.parametrize("ends_at_once", [False, True])
async def test_each_request_is_told_of_the_cache(ends_at_once):
    """Even if its responses resemble an earlier request's."""
    reader, told = None, []
    for request_id, cached in (("a", 30), ("b", 30), ("c", None), ("d", 30)):
        answer = ResponseStream(request_id=request_id, like=reader)
        if not ends_at_once:
            answer.message(response(request_id, 1000, cached=cached))
        answer.message(response(request_id, 2000, final=True, cached=cached))
        told.append((await answer.next()).cached)
        reader = answer.reader
    assert told == [30, 30, None, 30]


async def test_tokens_with_metrics_are_parsed_once(monkeypatch):
    """TensorRT-LLM repeats them in each response, and changes some; the first count is read."""
    parsed, parse = [], tensors._parse
    monkeypatch.setattr(tensors, "_parse", lambda data: parsed.append(1) or parse(data))
    answer = ResponseStream(request_id="a")
    for token in range(1000, 1050):
        answer.message(response("a", token, cached=30, metrics=token))
    answer.message(response("a", 2000, cached=33, metrics=7))  # it resumes an evicted request
    chunk = await answer.next()
    assert chunk.token_ids == (*range(1000, 1050), 2000)
    assert chunk.cached == 30
    assert len(parsed) == 2


@virtually
async def test_chunks_are_collected_until_a_time():
    answer, loop = ResponseStream(request_id="a"), asyncio.get_running_loop()
    start = loop.time()
    for token in range(1, 6):
        said = response("a", token, final=token == 5)
        loop.call_at(start + token / 10, answer.message, said)
    first = await answer.next()
    second = await answer.next(not_before=loop.time() + 0.25)
    assert loop.time() == pytest.approx(start + 0.35)
    rest = await answer.next(not_before=loop.time() + 60)
    assert loop.time() == pytest.approx(start + 0.5)
    chunks = (first, second, rest)
    assert [chunk.token_ids for chunk in chunks] == [(1,), (2, 3), (4, 5)]
    assert [chunk.final for chunk in chunks] == [False, False, True]


@virtually
async def test_a_read_before_its_time_wakes_once(monkeypatch):
    answer, loop = ResponseStream(request_id="a"), asyncio.get_running_loop()
    wakes = []
    monkeypatch.setattr(answer, "_wake", lambda wake=answer._wake: wakes.append(1) or wake())
    start = loop.time()
    reading = asyncio.create_task(answer.next(not_before=start + 0.05, deadline=start + 60))
    for token in (7, 8, 9):
        await asyncio.sleep(0)
        answer.message(response("a", token))
    assert (await reading).token_ids == (7, 8, 9)
    assert loop.time() >= start + 0.05
    late = asyncio.create_task(answer.next(not_before=start, deadline=start + 60))
    await asyncio.sleep(0)
    answer.message(response("a", 10))
    assert (await late).token_ids == (10,)
    assert len(wakes) == 2
