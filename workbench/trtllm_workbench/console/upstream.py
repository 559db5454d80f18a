"""HTTP requests to the served API, each on its own connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import h11

from trtllm_truss.errors import EngineUnavailable

Headers = Sequence[tuple[bytes, bytes]]
_READ_BYTES = 65536
_CONNECT_TIMEOUT_S = 10.0


class Reply:
    """A response; read its body once."""

    def __init__(self, head: h11.Response, events: AsyncIterator[h11.Event]) -> None:
        self.status = head.status_code
        self.headers: Headers = list(head.headers)
        self._events = events

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            EngineUnavailable: the connection ended before the response did.
        """
        async for event in self._events:
            if isinstance(event, h11.Data):
                yield bytes(event.data)


class Upstream:
    """The served API.

    Args:
        host: its address.
        port: its port.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    @asynccontextmanager
    async def send(
        self, method: str, path: str, headers: Headers = (), body: bytes = b""
    ) -> AsyncGenerator[Reply, None]:
        """Send a request and yield its reply; leaving the block closes the connection.

        The server takes that for a client that has gone, and stops the engine's request.

        Raises:
            EngineUnavailable: the server is unreachable or broke off.
        """
        reader, writer = await self._connect()
        try:
            connection = h11.Connection(h11.CLIENT)
            request = h11.Request(
                method=method,
                target=path,
                headers=[
                    *headers,
                    (b"host", b"localhost"),
                    (b"connection", b"close"),
                    (b"content-length", b"%d" % len(body)),
                ],
            )
            events = [request, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
            writer.write(b"".join(connection.send(event) or b"" for event in events))
            with _broken_off():
                await writer.drain()
            received = _events(reader, connection)
            async for event in received:
                if isinstance(event, h11.Response):
                    yield Reply(event, received)
                    return
            raise EngineUnavailable("the server sent no response; see its terminal.")
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            opening = asyncio.open_connection(self._host, self._port)
            return await asyncio.wait_for(opening, _CONNECT_TIMEOUT_S)
        except (OSError, asyncio.TimeoutError) as error:
            raise EngineUnavailable("the server does not answer; see its terminal.") from error


async def _events(
    reader: asyncio.StreamReader, connection: h11.Connection
) -> AsyncIterator[h11.Event]:
    while True:
        with _broken_off():
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(_READ_BYTES))
                continue
        if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return
        assert not isinstance(event, type)
        yield event


@contextmanager
def _broken_off() -> Iterator[None]:
    try:
        yield
    except (OSError, h11.RemoteProtocolError) as error:
        raise EngineUnavailable("the server broke off; see its terminal.") from error
