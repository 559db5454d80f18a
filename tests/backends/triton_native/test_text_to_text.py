"""Responses of `ensemble` and `tensorrt_llm_bls` to clients of Triton's API."""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import signal
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
from tests.backends.triton_native.native_triton import TEXT_MODELS
from tests.support.truss_process import free_port
from tests.support.waiting import PATIENCE_S, settles
from tritonclient.grpc import InferenceServerClient, InferInput, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from trtllm_backends.triton_native.calls import Models, Value, integer, to_array
from trtllm_truss.processes.process_guard import marked_processes
from trtllm_truss.triton.client.tensors import pack_texts
from trtllm_truss.triton.server.process import State

ALL_TOKENS = 200
HTTP_QUERY = {"text_input": ("BYTES", [1, 1], ["Hi"]), "max_tokens": ("INT32", [1, 1], [200])}
LIMITS = ({}, {"top_p": 1.0}, {"top_p": 0.9}, {"top_k": 50}, {"top_k": 50, "top_p": 1.0})
IN_A_CHARACTER = (16, 17, 19, 20)  # token counts that cut 日 or 本 in half


@pytest.fixture(params=TEXT_MODELS)
def model(request):
    return request.param


def query(*, stream=False, max_tokens=ALL_TOKENS):
    """Return a request's inputs for tritonclient."""
    values = {
        "text_input": np.array([[b"Hi"]], np.object_),
        "max_tokens": np.array([[max_tokens]], np.int32),
        "stream": np.array([[stream]]),
    }
    inputs = []
    for name, array in values.items():
        inputs.append(InferInput(name, [1, 1], np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def test_all_five_are_ready(native):
    models = httpx.post(native.url("repository/index"), timeout=60).json()
    assert {(each["name"], each["state"]) for each in models} == {
        (name, "READY")
        for name in ("preprocessing", "postprocessing", "tensorrt_llm", *TEXT_MODELS)
    }


def test_the_guides_answer(native):
    answer = native.generate("ensemble")
    assert answer.status_code == 200
    assert answer.json() == {
        "cum_log_probs": 0.0,
        "model_name": "ensemble",
        "model_version": "1",
        "output_log_probs": [0.0] * 20,
        "sequence_end": False,
        "sequence_id": 0,
        "sequence_start": False,
        "text_output": native.decoded(20),
    }


def test_a_stream_has_only_new_text(native, model):
    pieces = [event["text_output"] for event in native.stream(model, max_tokens=ALL_TOKENS)]
    assert "".join(pieces) == native.text
    assert len(pieces) > 40
    assert all(pieces[:-1])  # the last one can be empty, with the end token
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@pytest.mark.parametrize("max_tokens", [*IN_A_CHARACTER, ALL_TOKENS])
def test_the_whole_text_at_any_instance_count(native, max_tokens):
    assert native.at_once(20, max_tokens=max_tokens) == [native.decoded(max_tokens)] * 20
    assert native.decoded(ALL_TOKENS) == native.text


@pytest.mark.parametrize(
    ("stop_words", "text"),
    [
        (["本語 t"], "It is  only a 日"),
        (["robot", " 🤖"], "It is  only a 日本語 test"),
        (["x, y", "with two  w"], "It is  only a 日本語 test 🤖, "),
        ([" test 🤖!", "wor"], "It is  only a 日本語 test 🤖, with two  "),
        (["only a ja"], None),
    ],
)
def test_stop_words(native, stop_words, text):
    texts = native.at_once(4, stop_words=stop_words, max_tokens=ALL_TOKENS)
    assert texts == [native.text if text is None else text] * 4


@pytest.fixture(scope="session")
def slow(make_native):
    """A server with a slow engine that refuses a length penalty for beams."""
    letters = "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z "
    refused = {"length_penalty": "would be another; leave it out."}
    return make_native(text=letters * 20, step_ms=20, refused=refused)


def stopped(server):
    return sum("[fake] stopped" in line for line in tuple(server.lines))


def test_a_stop_word_ends_the_generation(slow, model):
    before = stopped(slow)
    # The engine receives the word's tokens and finishes the answer.
    assert slow.generate(model, stop_words=["D E"]).json()["text_output"] == "A B C "
    # Not here: with this prompt the tokens would match before the text of the answer.
    answer = slow.generate(model, stop_words=["A B C"], text_input="B A", max_tokens=1000)
    assert answer.json()["text_output"] == ""
    assert settles(lambda: stopped(slow) > before)
    assert stopped(slow) == before + 1


def test_unsupported_requests_are_refused(native, model):
    for fields, message in [
        ({"exclude_input_in_output": False}, "never repeats its prompt"),
        ({"stream": True, "beam_width": 2}, "beam_width above 1"),
        ({"max_tokens": 0}, "max_tokens is 0; send 1 or more."),
        ({"text_input": "x" * 3000}, "exceeds maximum input length"),
    ]:
        answer = native.generate(model, **fields)
        assert answer.status_code == 400, answer.text
        assert message in answer.json()["error"]


def test_seeds_matter_at_a_temperature_alone(make_native):
    server = make_native(text="x" * 40, draws=1, vocabulary=315)

    def answer(model, **fields):
        return server.generate(model, **fields).json()["text_output"]

    likeliest = answer("ensemble", top_k=1)
    for model, limits in itertools.product(TEXT_MODELS, LIMITS):
        cold, hot = (
            [answer(model, temperature=t, seed=seed, **limits) for seed in (1, 2)] for t in (0, 1)
        )
        assert cold == [likeliest, likeliest], (model, limits)
        assert hot[0] != hot[1], (model, limits)
    assert answer("ensemble", temperature=1e-46, top_p=1, seed=3) == likeliest


def test_an_input_that_the_engine_would_misread(slow, model):
    assert slow.generate(model, length_penalty=2, max_tokens=2).status_code == 200
    answer = slow.generate(model, length_penalty=2, beam_width=2)
    assert answer.status_code == 400
    assert "length_penalty would be another; leave it out." in answer.json()["error"]


def test_leaving_over_grpc_ends_the_generation(slow):
    before = stopped(slow)
    message = service_pb2.ModelInferRequest(model_name="tensorrt_llm_bls", id="leaves")
    for name, datatype, raw in (
        ("text_input", "BYTES", struct.pack("<I", 2) + b"Hi"),
        ("max_tokens", "INT32", struct.pack("<i", 500)),
        ("stream", "BOOL", b"\1"),
    ):
        message.inputs.add(name=name, datatype=datatype, shape=[1, 1])
        message.raw_input_contents.append(raw)
    with grpc.insecure_channel(slow.process.grpc_address) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([message]))
        next(call)
        call.cancel()
        assert settles(lambda: stopped(slow) > before)


def test_log_probabilities_without_text(native):
    values = {
        "text_input": Value("BYTES", (1, 1), pack_texts([b"x"])),
        "max_tokens": integer(3),
    }

    async def ask():
        models = Models(native.process.grpc_address)
        answers = models.generate("tensorrt_llm_bls", "", values, ["cum_log_probs"])
        return [answer async for answer in answers]

    for _ in range(20):
        ((answer, last),) = asyncio.run(ask())
        assert last
        assert to_array(answer["cum_log_probs"]).tolist() == [[0]]
        assert answer.keys() == {"cum_log_probs"}


@pytest.mark.thorough
def test_the_ports_can_be_pinned(make_native):
    http_port, grpc_port = free_port(), free_port()
    for _ in range(2):  # a restart reuses the ports at once
        server = make_native(text="Here.", http_port=http_port, grpc_port=grpc_port)
        answer = httpx.get(f"http://127.0.0.1:{http_port}/v2/models/ensemble/ready", timeout=60)
        assert answer.status_code == 200
        with InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
            assert client.is_model_ready("ensemble")
        server.process.stop(0)


@pytest.mark.parametrize("max_tokens", [*IN_A_CHARACTER, ALL_TOKENS])
def test_an_open_stream_shows_its_last_response(native, model, max_tokens):
    """A client that keeps its side open sees the end without asking for empty responses."""
    responses = queue.Queue()
    with InferenceServerClient(native.process.grpc_address) as client:
        client.start_stream(lambda result, error: responses.put((result, error)))
        for _ in range(2):  # one stream carries several requests
            client.async_stream_infer(model, query(stream=True, max_tokens=max_tokens))
            last, text = False, ""
            while not last:
                result, error = responses.get(timeout=PATIENCE_S)
                assert error is None
                text += result.as_numpy("text_output").item().decode()
                last = result.get_response().parameters["triton_final_response"].bool_param
            assert text == native.decoded(max_tokens)
        client.stop_stream()
    assert responses.empty()


def test_one_response_per_request(unary, model):
    """`decoupled_mode: false` of NVIDIA's repository."""
    assert unary.infer(model, HTTP_QUERY, "text_output") == {"text_output": [unary.text]}
    assert unary.generate(model, max_tokens=ALL_TOKENS).json()["text_output"] == unary.text
    (event,) = unary.stream(model, stream=False, max_tokens=ALL_TOKENS)
    assert event["text_output"] == unary.text
    with (
        InferenceServerClient(unary.process.grpc_address) as client,
        ThreadPoolExecutor(20) as pool,
    ):
        asked = [pool.submit(client.infer, model, query(max_tokens=17)) for _ in range(20)]
        texts = [each.result().as_numpy("text_output").item().decode() for each in asked]
        assert texts == [unary.decoded(17)] * 20
        with pytest.raises(InferenceServerException, match=r"triton_decoupled_mode is false"):
            client.infer(model, query(stream=True))
    refusal = unary.generate(model, max_tokens=0)
    assert refusal.status_code == 400
    assert "max_tokens is 0; send 1 or more." in refusal.json()["error"]
    (event,) = unary.stream(model)
    assert "stream is true" in event["error"]


def test_a_decoupled_model_refuses_unary_requests(native, model):
    with (
        InferenceServerClient(native.process.grpc_address) as client,
        pytest.raises(InferenceServerException, match="decoupled transaction policy"),
    ):
        client.infer(model, query())


@pytest.mark.parametrize(
    "path", ["logging", "trace/setting", "systemsharedmemory/status", "cudasharedmemory/status"]
)
@pytest.mark.parametrize("head", ["", "closed:to:all: x\r\n", "closed: to:all: x\r\n"])
def test_unneeded_apis_are_closed(native, path, head):
    """The name of the opening header has a colon, which HTTP clients cannot send."""
    url = httpx.URL(native.url(path))
    with socket.create_connection((url.host, url.port), timeout=PATIENCE_S) as connection:
        request = f"GET {url.path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n"
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"This API is restricted" in answer


def test_ranks_above_0_load_the_engine_alone_and_a_dead_text_model_ends_triton(make_native):
    """Triton would otherwise stay ready, and requests would hang."""
    server = make_native(text="Two ranks.", tp=2)
    assert server.generate("ensemble").json()["text_output"] == "Two ranks."
    stubs = {
        pid: Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in marked_processes(server.process.launch.run_id)
        if Path(f"/proc/{pid}/exe").readlink().name.endswith("_stub")
    }
    assert len(stubs) == 5
    (text_model,) = (pid for pid, line in stubs.items() if b"tensorrt_llm_bls" in line)
    os.kill(text_model, signal.SIGKILL)
    # mpirun of Open MPI 5.0.11 outlives its ranks at times; the supervisor sees the closed port.
    process = server.process
    assert settles(lambda: process.state is State.DEAD or process.refuses_connections())


@pytest.mark.thorough
def test_a_real_model_on_the_cpu(make_native):
    server = make_native()
    answer = server.generate("ensemble")
    assert answer.status_code == 200, answer.text
    text = answer.json()["text_output"]
    assert "learning" in text.lower()
    assert "".join(event["text_output"] for event in server.stream("ensemble")) == text
    cut = server.generate("tensorrt_llm_bls", stop_words=["learning"]).json()["text_output"]
    assert cut == text[: text.index("learning")]
    refusal = server.generate("ensemble", bad_words=["learning"])
    assert refusal.status_code == 400
    assert "bad_words_list is not supported by the CPU engine" in refusal.json()["error"]
