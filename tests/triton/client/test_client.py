"""The client against real Triton with the fake engine."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from tests.support.triton_server import chunks_of
from tests.support.waiting import PATIENCE_S, until

from trtllm_truss import errors
from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.releases import CacheReport
from trtllm_truss.request_fields import Sampling
from trtllm_truss.triton.client import client as client_module
from trtllm_truss.triton.client.client import Trial, TritonClient, is_ready, warm_up
from trtllm_truss.triton.client.engine_messages import EngineChunk, EngineRequest
from trtllm_truss.triton.client.grpc_connection import GrpcConnection


@pytest.fixture
async def client(triton):
    client = TritonClient(triton.grpc_address, tensorrt_llm_version="1.0.0")
    yield client
    await client.close()


TOO_MANY = 1900
"""Tokens of an answer that no test awaits."""


def request(request_id, max_tokens=50, **fields):
    return EngineRequest(request_id, [11, 12, 13], max_tokens, **fields)


async def collect(client, wanted, chunks=None):
    chunks = [] if chunks is None else chunks
    async for chunk in chunks_of(client, wanted):
        chunks.append(chunk)
    return chunks


def ids(chunks):
    return [token for chunk in chunks for token in chunk.token_ids]


async def test_chunks_come_one_by_one(triton, client):
    released = triton.engine_dir / "steps.released"
    released.touch()
    triton.script("steps", tokens=[1, 2, 3], released=released)
    async with client.answer(request("steps")) as answer:
        for token in (1, 2):
            released.write_bytes(bytes(token))
            assert ids([await answer.next()]) == [token]


async def test_no_token_until_the_deadline(triton, client):
    triton.script("late", first_delay_ms=500)
    async with client.answer(request("late")) as answer:
        with pytest.raises(TimeoutError):
            await answer.next(deadline=asyncio.get_running_loop().time() + 0.05)
        assert (await answer.next()).token_ids[0] == 11


async def test_tokens_before_an_error_are_returned(triton, client):
    triton.script("cut", tokens=[1, 2, 3], error="Prompt length (9) exceeds it", error_at=2)
    async with client.answer(request("cut")) as answer:
        assert await answer.wait_for_end(PATIENCE_S)
        assert (await answer.next()).token_ids == (1, 2)
        with pytest.raises(errors.ContextLengthExceeded):
            await answer.next()


@pytest.mark.parametrize("final", ["with_last", "after_last", "empty"])
async def test_every_way_to_end(triton, client, final):
    triton.script(f"final_{final}", tokens=[1, 2, 3], final=final)
    chunks = await collect(client, request(f"final_{final}"))
    assert ids(chunks) == [1, 2, 3]
    assert [c.final for c in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_no_token_at_all(triton, client):
    triton.script("nothing", tokens=[], final="after_last")
    assert await collect(client, request("nothing")) == [EngineChunk((), final=True)]


async def test_log_probs_come_when_asked_for(triton, client):
    (chunk,) = await collect(client, request("probs", max_tokens=1, return_log_probs=True))
    assert (chunk.cum_log_prob, chunk.log_probs) == (-0.5, (-0.5,))
    (chunk,) = await collect(client, request("no_probs", max_tokens=1))
    assert (chunk.cum_log_prob, chunk.log_probs) == (None, ())


async def test_engine_sees_the_tensors(triton, client):
    wanted = request(
        "tensors",
        end_id=2,
        stop_words=[[5, 7], [9]],
        sampling=Sampling(temperature=0.5, min_tokens=2, seed=2**63),
    )
    await collect(client, wanted)
    note = triton.wait_for_request("tensors")
    assert note["inputs"] == {
        "input_ids": [11, 12, 13],
        "input_lengths": [3],
        "request_output_len": [50],
        "end_id": [2],
        "stop_words_list": [5, 7, 9, 2, 3, -1],
        "temperature": [0.5],
        "runtime_top_p": [1.0],
        "min_tokens": [2],
        "seed": [2**63],
        "streaming": [True],
        "exclude_input_in_output": [True],
    }
    assert sorted(note["outputs"]) == ["output_ids", "sequence_length"]


@pytest.mark.parametrize("error_at", [0, 2])
async def test_error_text_becomes_our_error(triton, client, error_at):
    name = f"error_{error_at}"
    triton.script(name, tokens=[1, 2, 3], error="Prompt length (9) exceeds it", error_at=error_at)
    got = []
    with pytest.raises(errors.ContextLengthExceeded, match=r"Prompt length \(9\) exceeds it"):
        await collect(client, request(name), got)
    assert ids(got) == [1, 2, 3][:error_at]


async def test_an_input_unknown_to_triton_is_an_internal_error(triton):
    client = TritonClient(triton.grpc_address, tensorrt_llm_version="0.12.0")
    with pytest.raises(errors.InternalError, match="random_seed"):
        await collect(client, request("unknown", sampling=Sampling(seed=1)))
    await client.close()


async def test_closing_the_stream_cancels_in_the_engine(triton, client, monkeypatch):
    """The response to `stop` reveals at once that the engine does not know the id."""
    for limit in ("_ORDER_LIMIT_S", "_STOP_LIMIT_S"):
        monkeypatch.setattr(client_module, limit, 10 * PATIENCE_S)
    triton.script("closed", tokens=range(1000), delay_ms=20, ignore_stop=1)
    async with client.answer(request("closed", 1000)) as answer:
        await answer.next()
    assert await asyncio.to_thread(triton.wait_for_cancel, "closed") < 1000


@pytest.mark.parametrize("slow_ms", [50, 700])
async def test_an_engine_that_stops_is_not_cancelled(make_triton, monkeypatch, slow_ms):
    """Wait for the end of a slow iteration: cancelling a call can abort Triton."""
    cancelled = []
    monkeypatch.setattr(GrpcConnection, "cancel", lambda _, *call: cancelled.append(call))
    monkeypatch.setattr(client_module, "_ORDER_LIMIT_S", PATIENCE_S)  # beside other load
    server = make_triton(step_ms=slow_ms)
    client = TritonClient(server.grpc_address, tensorrt_llm_version="1.0.0")
    stopped = asyncio.Event()
    async with client.answer(request("slow", 500), on_stopped=lambda _: stopped.set()) as answer:
        await answer.next()
    await asyncio.wait_for(stopped.wait(), PATIENCE_S)
    await client.close()
    await asyncio.to_thread(server.wait_for_cancel, "slow")
    assert not cancelled


@pytest.mark.parametrize("streaming", [True, False])
async def test_cancelled_before_the_first_chunk(triton, client, streaming):
    name = f"early_{streaming}"
    triton.script(name, first_delay_ms=60_000, ignore_stop=1)
    task = asyncio.create_task(collect(client, request(name, streaming=streaming)))
    await asyncio.to_thread(triton.wait_for_request, name)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(triton.wait_for_cancel, name) == 0


async def test_many_cancelled_at_once_leave_nothing(triton, client):
    names = [f"many_{i}" for i in range(30)]
    for name in names:
        triton.script(name, tokens=range(1000), delay_ms=20, ignore_stop=1)
    tasks = [asyncio.create_task(collect(client, request(name, 1000))) for name in names]
    for name in names:
        await asyncio.to_thread(triton.wait_for_request, name)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for name in names:
        await asyncio.to_thread(triton.wait_for_cancel, name)
    assert ids(await collect(client, request("after_many", 3))) == [11, 12, 13]


async def test_fifty_at_once(triton, client):
    wanted = {f"c{i}": list(range(i, i + 40)) for i in range(50)}
    for name, tokens in wanted.items():
        triton.script(name, tokens=tokens)
    got = await asyncio.gather(*(collect(client, request(name)) for name in wanted))
    assert [ids(chunks) for chunks in got] == list(wanted.values())


async def test_one_call_serves_requests_until_it_is_idle(triton, client, monkeypatch):
    """Triton that stops waits half a minute for open calls."""
    used = []
    exchange = GrpcConnection.exchange

    def note(*arguments):
        used.append(exchange(*arguments))
        return used[-1]

    monkeypatch.setattr(GrpcConnection, "exchange", note)
    for number in range(5):
        triton.script(f"kept_{number}", tokens=[number, 7])
        assert ids(await collect(client, request(f"kept_{number}"))) == [number, 7]
    assert len(set(used)) == 1
    await until(lambda: not client._connection._calls)


async def test_an_abandoned_request_ends_its_call(triton, client):
    triton.script("abandoned", tokens=range(1000), delay_ms=5)
    async with client.answer(request("abandoned", 1000)) as answer:
        await answer.next()
    assert ids(await collect(client, request("next_one", 3))) == [11, 12, 13]
    await until(lambda: not client._connection._calls)


async def test_unreachable_server():
    client = TritonClient("127.0.0.1:9", tensorrt_llm_version=PINNED_VERSION)
    with pytest.raises(errors.EngineUnavailable) as failure:
        await collect(client, request("x"))
    assert failure.value.retry_after_s
    await client.close()


async def test_closing_the_client_fails_its_streams(triton):
    client = TritonClient(triton.grpc_address, tensorrt_llm_version=PINNED_VERSION)
    triton.script("left", tokens=[1] * 50, delay_ms=100)
    task = asyncio.create_task(collect(client, request("left")))
    await asyncio.to_thread(triton.wait_for_request, "left")
    await client.close()
    with pytest.raises(errors.EngineUnavailable):
        await task
    with pytest.raises(errors.EngineUnavailable):
        await collect(client, request("late"))


async def test_server_killed_mid_stream_fails_the_stream(make_triton):
    doomed = make_triton(tokens=range(50), step_ms=20, crash_after=5)
    client = TritonClient(doomed.grpc_address, tensorrt_llm_version=PINNED_VERSION)
    got = []
    with pytest.raises(errors.EngineUnavailable):
        await collect(client, request("doomed"), got)
    assert ids(got) == list(range(len(ids(got))))
    assert len(ids(got)) < 50
    await client.close()


def test_on_uvloop(triton):
    uvloop = pytest.importorskip("uvloop")

    async def main():
        client = TritonClient(triton.grpc_address, tensorrt_llm_version=PINNED_VERSION)
        triton.script("uvloop_cancel", tokens=[1] * 200, delay_ms=20, ignore_stop=1)
        async with client.answer(request("uvloop_cancel", 200)) as answer:
            await answer.next()
        chunks = await collect(client, request("uvloop", 3))
        await client.close()
        return ids(chunks)

    loop = uvloop.new_event_loop()
    try:
        assert loop.run_until_complete(main()) == [11, 12, 13]
    finally:
        loop.close()
    triton.wait_for_cancel("uvloop_cancel")


async def test_a_request_in_the_engines_queue_is_not_cancelled(make_triton, monkeypatch, tmp_path):
    """The executor processes its prompt, and then stops it."""
    cancelled = []
    monkeypatch.setattr(GrpcConnection, "cancel", lambda _, *call: cancelled.append(call))
    monkeypatch.setattr(client_module, "_STOP_LIMIT_S", 0.05)
    monkeypatch.setattr(client_module, "_ORDER_LIMIT_S", PATIENCE_S)  # beside other load
    prompts = tmp_path / "prefilled"
    server = make_triton(step_ms=20, prefilled=prompts, limits={"max_batch_size": 1})
    client = TritonClient(server.grpc_address, tensorrt_llm_version="1.0.0")
    stopped = asyncio.Event()
    async with client.answer(request("runs", 50)) as running:
        await running.next()
        async with client.answer(request("waits"), on_stopped=lambda _: stopped.set()):
            await asyncio.sleep(0)
        while not (await running.next()).final:
            pass
        await asyncio.wait_for(stopped.wait(), PATIENCE_S)
    await client.close()
    assert await asyncio.to_thread(server.wait_for_cancel, "waits") == 1
    assert prompts.stat().st_size == 2
    assert not cancelled


@pytest.mark.parametrize("instances", [1, 2, 3])
async def test_the_instance_that_has_an_abandoned_request_stops_it(
    make_triton, monkeypatch, instances
):
    """Triton hands an order to any instance, and another than the request's knows nothing of it."""
    cancelled = []
    monkeypatch.setattr(GrpcConnection, "cancel", lambda _, *call: cancelled.append(call))
    for limit in ("_ORDER_LIMIT_S", "_STOP_LIMIT_S", "_END_LIMIT_S"):
        monkeypatch.setattr(client_module, limit, PATIENCE_S)  # beside other load
    server = make_triton(step_ms=10, instances=instances)
    client = TritonClient(server.grpc_address, tensorrt_llm_version="1.0.0", instances=instances)
    alone, crowd = ["alone-1", "alone-2", "alone-3"], [f"crowd-{number}" for number in range(12)]

    async def leave(*names):
        """Leave all requests at once after the first token of each."""
        ended = [asyncio.Event() for _ in names]
        async with AsyncExitStack() as stack:
            for name, end in zip(names, ended, strict=True):
                answer = client.answer(
                    request(name, TOO_MANY), on_stopped=lambda _, end=end: end.set()
                )
                await (await stack.enter_async_context(answer)).next()
        await asyncio.wait_for(asyncio.gather(*(end.wait() for end in ended)), PATIENCE_S)

    for name in alone:
        await leave(name)
    await leave(*crowd)
    await client.close()
    for name in (*alone, *crowd):
        assert await asyncio.to_thread(server.wait_for_cancel, name) < TOO_MANY
    assert not cancelled


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("version", ["0.16.0", "0.18.2", "1.0.0", "1.2.1"])
async def test_two_turns_are_told_of_the_blocks_that_they_reuse(make_triton, version, streaming):
    """The third prompt ends within a block that the second one filled."""
    server = make_triton(version=version)
    client = TritonClient(server.grpc_address, tensorrt_llm_version=version)
    report = CacheReport("kv_cache_reused_blocks", 32)
    conversation, told = [*range(100, 170)], []
    for max_tokens, further in ((3, 40), (30, 0), (3, 0)):
        asked = EngineRequest(f"turn-{len(told)}", [*conversation], max_tokens, streaming=streaming)
        chunks = await collect(client, replace(asked, cache_report=report))
        told.append({chunk.cached for chunk in chunks})
        conversation += [*ids(chunks), *range(1000, 1000 + further)]
    plain = await collect(client, EngineRequest("plain", conversation, 3, streaming=streaming))
    await client.close()
    # 0 of 70 tokens; then 72 of 113, in two blocks and a part; then 142 of 143.
    assert told == [{0}, {3}, {5}]
    assert {chunk.cached for chunk in plain} == {None}


def trial(setting="", max_tokens=1, **fields):
    return Trial(setting, EngineRequest("warm-up", [5], max_tokens, **fields))


async def test_a_trial_that_fails_names_its_setting(triton):
    trials = [trial(), trial("runtime.max_beam_width 9", beam_width=9, streaming=False)]
    arguments = (triton.grpc_address, trials, PATIENCE_S, "1.0.0")
    words = "^the engine failed its first request with runtime.max_beam_width 9: .*[Bb]eam"
    with pytest.raises(errors.TritonError, match=words):
        await asyncio.to_thread(warm_up, *arguments)
    arguments = (triton.grpc_address, [trial("lora_adapters.sql", max_tokens=400)], 0.05, "1.0.0")
    words = "^the engine did not answer its first request with lora_adapters.sql within 0 s"
    with pytest.raises(errors.TritonError, match=words):
        await asyncio.to_thread(warm_up, *arguments)


@pytest.mark.parametrize("version", ["0.7.1", "0.9.0"])
async def test_old_releases_get_a_number_for_each_request(make_triton, version):
    """Such a release reads the leading digits of an id; these ids share them, or have none."""
    server = make_triton(version=version, step_ms=20)
    names = ("7f", "7e", "7e-1", "warm-up", "beef", "")
    client = TritonClient(server.grpc_address, tensorrt_llm_version=version)
    async with client.answer(request("7", 40)) as abandoned:
        await abandoned.next()
        running = [asyncio.create_task(collect(client, request(name, 20))) for name in names]
        await asyncio.sleep(0)
    for chunks in await asyncio.gather(*running):
        assert len(ids(chunks)) == 20
    await client.close()
    await asyncio.to_thread(warm_up, server.grpc_address, [trial()], PATIENCE_S, version)


async def test_the_fake_of_an_old_release_confuses_texts(make_triton):
    """Keep the fake as strict as the backend: the test above would pass with any other."""
    server = make_triton(version="0.7.1", step_ms=20)
    client = TritonClient(server.grpc_address, tensorrt_llm_version="0.7.1")
    client._numbers_only = False
    with pytest.raises(errors.TrussError, match="must be uint64_t"):
        await collect(client, request("warm-up"))
    with pytest.raises(errors.InvalidRequest, match="differs from the max beam width 1"):
        await collect(client, request("8", beam_width=2, streaming=False))
    async with client.answer(request("7f", 1900)) as first:
        await first.next()
        with pytest.raises(errors.TrussError, match="requestId 7 is already in progress"):
            await collect(client, request("7e", 4))
    await client.close()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sampling": Sampling(temperature=1.0, top_k=-1)}, "topK"),
        ({"sampling": Sampling(repetition_penalty=0.0)}, "penalty"),
        ({"sampling": Sampling(min_tokens=-1)}, "minTokens"),
        ({"sampling": Sampling(length_penalty=-1.0), "beam_width": 2}, "lengthPenalty"),
        ({"max_tokens": 0}, "mMaxNewTokens"),
        ({"beam_width": 0}, "beamWidth"),
    ],
)
async def test_the_fake_refuses_what_the_executor_refuses(client, wrong, words):
    """Keep the fake as strict as the executor: no protocol may send any of these."""
    with pytest.raises(errors.InvalidRequest, match=words):
        await collect(client, replace(request("wrong"), **wrong))


@pytest.mark.parametrize("backlog", [1, None], ids=["silent", "refused"])
def test_a_question_without_an_answer_keeps_nothing_of_its_caller(backlog):
    """Triton may not answer in time while it starts; the caller's frames hold the model."""

    class Model:
        pass

    def ask(address):
        model = Model()
        assert not is_ready(address, "model", server_id="any")
        return weakref.ref(model)

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if backlog:
            server.listen(backlog)
        gc.disable()
        try:
            model = ask(f"127.0.0.1:{server.getsockname()[1]}")
            assert model() is None
        finally:
            gc.enable()
