"""Log probabilities from the logits of NVIDIA's backend."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.triton.known_model import log_probs_after, logits_after

from trtllm_truss.errors import InternalError, InvalidRequest
from trtllm_truss.triton.client.client import ResponseStream, TritonClient
from trtllm_truss.triton.client.engine_messages import EngineChunk, EngineRequest, Logits
from trtllm_truss.triton.client.grpc_connection import GrpcCall
from trtllm_truss.triton.client.logits import LARGE_BYTES, cut_large, with_log_probs
from trtllm_truss.triton.client.tensors import EngineInputs, decode_response, encode_request
from trtllm_truss.triton.protobuf import service_pb2

VOCABULARY, WIDTH = 1000, 1008
PROMPT = [7, 8, 9]
ASKED = EngineRequest("r", PROMPT, 3, top_log_probs=4, logits="generation", vocab_size=VOCABULARY)


def logits_of(*beginnings, padding=1e9):
    rows = np.full((len(beginnings), WIDTH), padding, "<f4")
    for row, ids in zip(rows, beginnings, strict=True):
        row[:VOCABULARY] = logits_after(ids, VOCABULARY)
    return Logits(rows.tobytes(), len(beginnings), WIDTH)


def response_with(name, logits, shape, *ids, final=False):
    response = service_pb2.ModelInferResponse(id="r")
    response.parameters["triton_final_response"].bool_param = final
    for output, dtype, dims, raw in (
        ("output_ids", "INT32", [1, 1, len(ids)], np.array(ids, "<i4").tobytes()),
        ("sequence_length", "INT32", [1, 1], np.array([len(ids)], "<i4").tobytes()),
        (name, "FP32", shape, logits.values),
    ):
        response.outputs.add(name=output, datatype=dtype, shape=dims)
        response.raw_output_contents.append(raw)
    return service_pb2.ModelStreamInferResponse(infer_response=response).SerializeToString()


def assert_true(log_probs, alternatives, ids, beginnings):
    """Compare figures with the model's, computed by definition in double precision."""
    assert len(log_probs) == len(alternatives) == len(ids)
    for value, pairs, token, before in zip(log_probs, alternatives, ids, beginnings, strict=True):
        model = log_probs_after(before, VOCABULARY)
        likeliest = np.argsort(-model)[:4].tolist()
        assert value == pytest.approx(model[token], abs=1e-5)
        assert [token for token, _ in pairs] == likeliest
        assert [value for _, value in pairs] == pytest.approx(model[likeliest], abs=1e-5)


def test_generated_tokens():
    beginnings = [PROMPT, [*PROMPT, 5], [*PROMPT, 5, 6]]
    chunk = EngineChunk((5, 6, 7), False, logits=logits_of(*beginnings))
    done = with_log_probs(chunk, ASKED)
    assert done.logits is None
    assert_true(done.log_probs, done.alternatives, (5, 6, 7), beginnings)


@pytest.mark.parametrize("ids", [(5,), ()], ids=["a token", "an end of sequence"])
def test_a_prompt_and_the_token_after_it(ids):
    beginnings = [PROMPT[:1], PROMPT[:2], PROMPT]
    chunk = EngineChunk(ids, True, logits=logits_of(*beginnings))
    done = with_log_probs(chunk, replace(ASKED, logits="context"))
    assert_true(done.prompt_log_probs, done.prompt_alternatives, PROMPT[1:], beginnings[:2])
    assert_true(done.log_probs, done.alternatives, ids, [PROMPT] * len(ids))


def test_equal_logits_come_in_the_order_of_their_ids():
    logits = Logits(np.zeros((1, WIDTH), "<f4").tobytes(), 1, WIDTH)
    request = replace(ASKED, top_log_probs=20, vocab_size=20)
    (pairs,) = with_log_probs(EngineChunk((3,), False, logits=logits), request).alternatives
    assert [token for token, _ in pairs] == list(range(20))
    assert [value for _, value in pairs] == pytest.approx([-np.log(20)] * 20)


@pytest.mark.parametrize(
    "logits",
    [
        None,
        logits_of(PROMPT, PROMPT),
        Logits(bytes(4 * 10), 1, 10),
        Logits(np.full((1, WIDTH), np.nan, "<f4").tobytes(), 1, WIDTH),
        Logits(np.full((1, WIDTH), -np.inf, "<f4").tobytes(), 1, WIDTH),
        Logits(bytes(8), 1, WIDTH),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_logits_that_do_not_fit_are_no_figures(logits):
    with pytest.raises(ValueError, match=r"logits|reshape"):
        with_log_probs(EngineChunk((5,), False, logits=logits), ASKED)


def test_large_tensors_are_cut_out_and_not_parsed():
    rows = LARGE_BYTES // (4 * WIDTH) + 1
    logits = logits_of(*([place] for place in range(rows)))
    payload = response_with("generation_logits", logits, [1, rows, 1, WIDTH], *range(rows))
    response, large = cut_large(bytearray(payload))
    assert response.ByteSize() < 1000
    chunk = decode_response(response, large)
    whole = decode_response(service_pb2.ModelStreamInferResponse.FromString(payload).infer_response)
    assert chunk.logits is not None
    assert chunk == whole
    assert chunk.logits.values.obj is not None  # a view


@pytest.mark.parametrize("size", [1, 2, 50, 1000])
def test_a_message_that_is_cut_off_is_an_error(size):
    payload = response_with("context_logits", logits_of(PROMPT), [1, 1, WIDTH], 5)
    with pytest.raises(ValueError, match=r"cut off|length|more than"):
        cut_large(payload[:-size])


class Gathering:
    def __init__(self):
        self.messages = []

    def message(self, payload):
        self.messages.append(bytes(payload))
        return len(self.messages) == 3

    def ended(self, *_):
        raise AssertionError


@pytest.mark.parametrize("part", [5, 1000, 2**14, 2**18, 2**22])
def test_large_messages_are_put_together_among_small_ones(part):
    random = np.random.default_rng(1)
    sent = [random.bytes(size) for size in (10, 2**18 + 1, 3)]
    stream = b"".join(b"\0" + len(each).to_bytes(4, "big") + each for each in sent)
    call, receiver = GrpcCall(one_message=False), Gathering()
    call.begin(b"", receiver)
    call.unsent = memoryview(b"")
    ends = [call.take(stream[at : at + part]) for at in range(0, len(stream), part)]
    assert receiver.messages == sent
    assert ends[-1]
    assert call.is_clean


async def test_figures_come_in_order_and_the_loop_goes_on_meanwhile():
    """The thread waits for the loop, which has taken all responses by then."""
    arrived = threading.Event()

    def complete(chunk):
        assert arrived.wait(60)
        return with_log_probs(chunk, ASKED)

    stream = ResponseStream(request_id="r", complete=complete)
    beginnings = [PROMPT, [*PROMPT, 5]]
    last = []
    for token, before in zip((5, 6), beginnings, strict=True):
        shape = [1, 1, 1, WIDTH]
        logits = logits_of(before)
        last.append(stream.message(response_with("generation_logits", logits, shape, token)))
    empty = Logits(b"", 0, WIDTH)
    ending = response_with("generation_logits", empty, [1, 0, 1, WIDTH], final=True)
    assert [*last, stream.message(ending)] == [False, False, True]
    assert stream.over
    reading = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    assert not reading.done()
    arrived.set()
    chunks = [await reading]
    while not chunks[-1].final:
        chunks.append(await stream.next())
    assert [token for chunk in chunks for token in chunk.token_ids] == [5, 6]
    assert_true(chunks[-1].log_probs, chunks[-1].alternatives, (5, 6), beginnings)


async def test_logits_that_do_not_fit_end_the_stream():
    stream = ResponseStream(request_id="r", complete=lambda chunk: with_log_probs(chunk, ASKED))
    stream.message(response_with("generation_logits", logits_of(PROMPT), [1, 1, 1, WIDTH], 5, 6))
    with pytest.raises(InternalError, match="logits are 1 × 1008 for 2 tokens"):
        await stream.next()


@pytest.mark.parametrize("logits", ["generation", "context"])
def test_one_kind_of_logits_is_asked_for_and_nothing_else(logits):
    request = replace(ASKED, logits=logits, prompt_log_probs=True)
    message = service_pb2.ModelInferRequest.FromString(
        encode_request(request, model_name="m", known=EngineInputs.of("1.0.0"))
    )
    inputs = {tensor.name for tensor in message.inputs}
    assert {name for name in inputs if "log" in name} == {f"return_{logits}_logits"}
    assert [o.name for o in message.outputs] == [
        *("output_ids", "sequence_length", f"{logits}_logits")
    ]


@pytest.mark.server
@pytest.mark.parametrize("logits", ["generation", "context"])
async def test_an_engine_without_them_refuses(triton, logits):
    client = TritonClient(triton.grpc_address, tensorrt_llm_version="1.0.0")
    request = replace(ASKED, request_id=f"no-{logits}", logits=logits)
    try:
        async with client.answer(request) as answer:
            with pytest.raises(InvalidRequest, match=f"gather_{logits}_logits"):
                await answer.next()
    finally:
        await client.close()
