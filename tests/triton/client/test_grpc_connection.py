"""The connection against grpcio's own server."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, RequestReceived, SettingsAcknowledged
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame
from tests.support.waiting import PATIENCE_S, until

from trtllm_truss.triton.client import grpc_connection
from trtllm_truss.triton.client.failures import StatusCode
from trtllm_truss.triton.client.grpc_connection import GrpcConnection

METHOD = "/test.Service/Answer"
EXCHANGES = "/test.Service/Exchanges"
FIRST_WINDOW_BYTES = 65_535  # of HTTP/2, before any settings
GRPC_HEAD_BYTES = 5


class Received:
    """A receiver that records messages and the end."""

    def __init__(self):
        self.messages = []
        self.end = asyncio.get_running_loop().create_future()

    def message(self, payload):
        self.messages.append(payload)
        if payload != LAST:
            return False
        self.end.set_result(None)
        return True

    def ended(self, status, details):
        self.end.set_result((status, details))


async def behave(request, context):
    """Follow the first word of the request."""
    word, _, rest = request.partition(b" ")
    if word == b"echo":
        yield rest
    elif word == b"count":
        for number in range(int(rest)):
            yield number.to_bytes(4, "big")
    elif word == b"sizes":
        for size in map(int, rest.split()):
            yield bytes([size % 251]) * size
    elif word == b"fail":
        yield b"before"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "zu viele: 100 % – voll")
    elif word == b"refuse":
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, rest.decode())
    elif word == b"wait":
        try:
            await until(lambda: bool(released))
        except asyncio.CancelledError:
            cancelled.append(rest)
            raise
        yield b"released"


async def answer_each(requests, context):
    """Answer every message of a call, then LAST."""
    number = len(calls)
    calls.append(0)
    async for request in requests:
        calls[number] += 1
        async for answer in behave(request, context):
            yield answer
        yield LAST
        if request == b"and two":
            yield LAST
    ended.append(number)


LAST = b"the last one"
calls: list[int] = []  # messages of each call
ended: list[int] = []
cancelled: list[bytes] = []
released: list[bool] = []


class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method == EXCHANGES:
            return grpc.stream_stream_rpc_method_handler(answer_each)
        return grpc.unary_stream_rpc_method_handler(behave) if details.method == METHOD else None


@pytest.fixture
async def server():
    calls.clear()
    ended.clear()
    released.clear()
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((Handler(),))
    server.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield server
    await server.stop(0)


@pytest.fixture
async def connection(server):
    connection = await GrpcConnection.connect(f"127.0.0.1:{server.port}", EXCHANGES)
    yield connection
    connection.close()
    await asyncio.sleep(0)


@pytest.fixture
def idle_calls_stay(monkeypatch):
    """Keep idle calls: a busy machine would not use them again within their quarter of a second."""
    monkeypatch.setattr(grpc_connection, "_IDLE_LIMIT_S", PATIENCE_S)


async def ask(connection, request, method=METHOD):
    received = Received()
    connection.call(method, request, received)
    return received.messages, await asyncio.wait_for(received.end, PATIENCE_S)


async def test_messages_in_order_and_a_status(connection):
    messages, end = await ask(connection, b"count 1000")
    assert messages == [number.to_bytes(4, "big") for number in range(1000)]
    assert end == (StatusCode.OK, "")


async def test_messages_of_any_size_are_put_together(connection):
    sizes = [0, 1, 16383, 16384, 16385, 70_000, 3_000_000, 0, 5]
    messages, end = await ask(connection, b"sizes " + b" ".join(b"%d" % size for size in sizes))
    assert messages == [bytes([size % 251]) * size for size in sizes]
    assert end[0] is StatusCode.OK


async def test_a_request_larger_than_the_servers_window(connection):
    payload = os.urandom(5_000_000)
    messages, end = await ask(connection, b"echo " + payload)
    assert messages == [payload]
    assert end[0] is StatusCode.OK


async def test_more_than_the_connections_window(connection):
    for _ in range(6):  # 6 MB each; the window grows in steps of 16 MB
        messages, end = await ask(connection, b"sizes 3000000 3000000")
        assert [len(message) for message in messages] == [3_000_000] * 2
        assert end[0] is StatusCode.OK


async def test_many_calls_at_once_stay_apart(connection):
    answers = await asyncio.gather(*(ask(connection, b"echo %d" % n) for n in range(300)))
    assert [messages for messages, _ in answers] == [[b"%d" % n] for n in range(300)]


async def test_errors_carry_status_and_details(connection):
    assert await ask(connection, b"refuse no such thing") == (
        [],
        (StatusCode.INVALID_ARGUMENT, "no such thing"),
    )
    assert await ask(connection, b"fail") == (
        [b"before"],
        (StatusCode.RESOURCE_EXHAUSTED, "zu viele: 100 % – voll"),
    )
    _, (status, _) = await ask(connection, b"", method="/test.Service/Unknown")
    assert status is StatusCode.UNIMPLEMENTED


async def test_a_cancelled_call_ends_on_the_server_without_further_messages(connection):
    received = Received()
    number = connection.call(METHOD, b"wait for me", received)
    await ask(connection, b"echo there")
    connection.cancel(number, received)
    connection.cancel(number, received)
    await until(lambda: b"for me" in cancelled)
    assert (await ask(connection, b"echo still here"))[0] == [b"still here"]
    assert not received.end.done()


async def exchange(connection, request):
    received = Received()
    number = connection.exchange(request, received)
    return number, received.messages, await asyncio.wait_for(received.end, PATIENCE_S)


@pytest.mark.usefixtures("idle_calls_stay")
async def test_exchanges_follow_each_other_on_one_call(connection):
    numbers = set()
    for number in range(20):
        call, messages, _ = await exchange(connection, b"echo %d" % number)
        assert messages == [b"%d" % number, LAST]
        numbers.add(call)
    assert len(numbers) == 1
    assert calls == [20]


@pytest.mark.usefixtures("idle_calls_stay")
async def test_exchanges_at_once_have_calls_of_their_own(connection):
    for _ in range(2):
        answers = await asyncio.gather(*(exchange(connection, b"echo %d" % n) for n in range(30)))
        assert [messages[0] for _, messages, _ in answers] == [b"%d" % n for n in range(30)]
    assert calls == [2] * 30


@pytest.mark.usefixtures("idle_calls_stay")
async def test_large_messages_both_ways_on_one_call(connection):
    payload = os.urandom(1_000_000)
    for _ in range(5):
        _, messages, _ = await exchange(connection, b"echo " + payload)
        assert messages == [payload, LAST]
    assert calls == [5]


async def test_an_idle_call_ends_by_itself(connection):
    await exchange(connection, b"echo it")
    await until(lambda: ended)
    assert (await exchange(connection, b"echo again"))[1] == [b"again", LAST]
    assert calls == [1, 1]


async def test_a_finished_call_is_not_used_again(connection):
    received = Received()
    number = connection.exchange(b"wait", received)
    connection.finish(number, received)
    assert (await exchange(connection, b"echo it"))[0] != number


async def test_a_failed_call_is_not_used_again(connection):
    _, messages, end = await exchange(connection, b"fail")
    assert messages == [b"before"]
    assert end[0] is StatusCode.RESOURCE_EXHAUSTED
    assert (await exchange(connection, b"echo it"))[1] == [b"it", LAST]


async def test_a_call_with_a_message_too_many_is_not_used_again(connection):
    await exchange(connection, b"and two")
    await until(lambda: ended)
    assert (await exchange(connection, b"echo it"))[1] == [b"it", LAST]
    assert calls == [1, 1]


async def test_nothing_old_touches_the_next_exchange(connection):
    old = Received()
    number = connection.exchange(b"echo old", old)
    await asyncio.wait_for(old.end, PATIENCE_S)
    received = Received()
    assert connection.exchange(b"echo new", received) == number
    connection.cancel(number, old)
    connection.finish(number, old)
    await asyncio.wait_for(received.end, PATIENCE_S)
    assert (old.messages, received.messages) == ([b"old", LAST], [b"new", LAST])
    assert (await exchange(connection, b"echo newer"))[0] == number


async def test_the_end_of_the_server_ends_every_call(server, connection):
    calls = [asyncio.create_task(ask(connection, b"wait")) for _ in range(3)]
    await ask(connection, b"echo there")
    await server.stop(0)
    for call in calls:
        _, (status, _) = await call
        assert status in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)
    await until(lambda: not connection.is_usable)


async def test_a_server_that_stops_ends_its_calls_first(server, connection):
    call = asyncio.create_task(ask(connection, b"wait"))
    await ask(connection, b"echo there")
    stop = asyncio.create_task(server.stop(PATIENCE_S))
    await until(lambda: not connection.is_usable)
    released.append(True)
    assert await call == ([b"released"], (StatusCode.OK, ""))
    await stop


async def test_a_call_is_cancelled_on_a_server_that_stops(server, connection):
    call = asyncio.create_task(ask(connection, b"wait"))
    left = Received()
    number = connection.call(METHOD, b"wait for the stop", left)
    await ask(connection, b"echo there")
    stop = asyncio.create_task(server.stop(PATIENCE_S))
    await until(lambda: not connection.is_usable)
    connection.cancel(number, left)
    await until(lambda: b"for the stop" in cancelled)
    released.append(True)
    assert await call == ([b"released"], (StatusCode.OK, ""))
    assert not left.end.done()
    await stop


@pytest.mark.parametrize("error", [ErrorCodes.NO_ERROR, ErrorCodes.ENHANCE_YOUR_CALM])
async def test_calls_that_a_stopping_server_has_not_taken_end(error):
    """The server accepts the first of two calls and finishes it.

    The client closes the connection.
    """
    is_closed = asyncio.Event()

    async def serve(reader, writer):
        peer = H2Connection(H2Configuration(client_side=False))
        peer.initiate_connection()
        open_calls = 0
        while open_calls < 2:
            writer.write(peer.data_to_send())
            events = peer.receive_data(await reader.read(65536))
            open_calls += sum(isinstance(each, RequestReceived) for each in events)
        writer.write(peer.data_to_send())
        writer.write(GoAwayFrame(0, last_stream_id=1, error_code=error).serialize())
        head = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "0")]
        peer.send_headers(1, head, end_stream=True)
        writer.write(peer.data_to_send())
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        is_closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = await GrpcConnection.connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    first, second = await asyncio.gather(ask(connection, b"one"), ask(connection, b"two"))
    lost = (StatusCode.UNAVAILABLE, "the connection was lost")
    untaken = (StatusCode.UNAVAILABLE, "the server is stopping and has not accepted the call")
    is_graceful = error is ErrorCodes.NO_ERROR
    assert first == ([], (StatusCode.OK, "")) or not is_graceful
    assert second == ([], untaken if is_graceful else lost)
    await asyncio.wait_for(is_closed.wait(), PATIENCE_S)
    server.close()
    await server.wait_closed()


async def test_the_end_waits_for_the_server_to_end_idle_calls_alone(connection):
    running = asyncio.create_task(ask(connection, b"wait"))
    received = [Received(), Received()]
    for each in received:
        connection.exchange(b"echo it", each)
    for each in received:
        await asyncio.wait_for(each.end, PATIENCE_S)
    await connection.end(PATIENCE_S)
    assert sorted(ended) == [0, 1]
    assert await running == ([], (StatusCode.UNAVAILABLE, "the connection was lost"))


async def test_closing_ends_every_call(connection):
    call = asyncio.create_task(ask(connection, b"wait"))
    await ask(connection, b"echo there")
    connection.close()
    assert await call == ([], (StatusCode.UNAVAILABLE, "the connection was lost"))
    assert not connection.is_usable


async def test_a_closed_port_is_an_error():
    with pytest.raises(OSError, match="9"):
        await GrpcConnection.connect("127.0.0.1:9")


async def test_a_peer_with_another_protocol():
    async def talk(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 2000)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = await GrpcConnection.connect(f"127.0.0.1:{port}")
    _, (status, _) = await ask(connection, b"echo")
    assert status is StatusCode.UNAVAILABLE
    assert not connection.is_usable
    server.close()
    await asyncio.sleep(0)


async def test_a_server_may_lower_a_window_below_zero():
    """Test with a server that raises an error for each byte above its window."""
    payload = os.urandom(300_000)
    lowest = []
    ended = asyncio.Event()

    async def serve(reader, writer):
        peer = H2Connection(H2Configuration(client_side=False))
        peer.initiate_connection()
        received = bytearray()
        is_lowered = False
        while len(received) < len(payload) + GRPC_HEAD_BYTES:
            writer.write(peer.data_to_send())
            for event in peer.receive_data(await reader.read(65536)):
                if isinstance(event, DataReceived):
                    received += event.data
                elif isinstance(event, SettingsAcknowledged) and is_lowered:
                    lowest.append(peer.remote_flow_control_window(1))
                    peer.increment_flow_control_window(100_000, 1)
            if is_lowered and lowest and peer.remote_flow_control_window(1) == 0:
                peer.increment_flow_control_window(70_000, 1)
            elif len(received) == FIRST_WINDOW_BYTES and not is_lowered:
                is_lowered = True
                peer.increment_flow_control_window(1_000_000)
                peer.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1000})
        head = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "0")]
        peer.send_headers(1, head, end_stream=True)
        writer.write(peer.data_to_send())
        await writer.drain()
        assert received[GRPC_HEAD_BYTES:] == payload
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = await GrpcConnection.connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert await ask(connection, payload) == ([], (StatusCode.OK, ""))
    assert lowest[0] == 1000 - FIRST_WINDOW_BYTES
    connection.close()
    await asyncio.wait_for(ended.wait(), 20)
    server.close()
    await server.wait_closed()
