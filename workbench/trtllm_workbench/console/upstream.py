"""HTTP requests to the served API, each on its own connection."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import httpx

from trtllm_truss.errors import EngineUnavailable

Headers = Sequence[tuple[bytes, bytes]]
_CONNECT_TIMEOUT_S = 10.0


class Reply:
    """A response; read its body once."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers: Headers = [(name.lower(), value) for name, value in response.headers.raw]
        self._response = response

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            EngineUnavailable: the connection ended before the response did.
        """
        with _failures():
            async for part in self._response.aiter_raw():
                yield part


class Upstream:
    """The served API.

    Args:
        host: its address.
        port: its port.
    """

    def __init__(self, host: str, port: int) -> None:
        self._root = httpx.URL(scheme="http", host=host, port=port)
        self._client = httpx.AsyncClient(
            limits=httpx.Limits(max_keepalive_connections=0),
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
            trust_env=False,
            verify=False,  # noqa: S501 - no TLS here; certificates take 0.3 s to read
        )

    @asynccontextmanager
    async def send(
        self, method: str, path: str, headers: Headers = (), body: bytes = b""
    ) -> AsyncGenerator[Reply, None]:
        """Send a request and yield its reply; leaving the block closes the connection.

        The server takes that for a client that has gone, and stops the engine's request.

        Raises:
            EngineUnavailable: the server is unreachable or broke off.
        """
        own = [(b"host", b"localhost"), (b"connection", b"close")]
        url = self._root.copy_with(path=path)
        request = httpx.Request(method, url, headers=[*headers, *own], content=body)
        with _failures():
            response = await self._client.send(request, stream=True)
        try:
            yield Reply(response)
        finally:
            await response.aclose()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise EngineUnavailable("the server does not answer; see its terminal.") from error
    except httpx.TransportError as error:
        raise EngineUnavailable("the server broke off; see its terminal.") from error
