"""GETs of parts of files by `http.client`, for a third of the CPU time per byte that httpx takes.

Only the plainest response is taken: status 206 and a body of the requested length, over a direct
connection. Redirects, proxies, refusals and anything else are left to huggingface_hub's client.
Transient errors are retried.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection
from io import DEFAULT_BUFFER_SIZE
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from trtllm_truss.artifacts.listing import File
from trtllm_truss.errors import ArtifactError

logger = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.5
_MAX_WAIT_S = 300
_Result = TypeVar("_Result")


class Interrupted(Exception):
    """A transient error.

    Attributes:
        problem: the error without a subject: "is unreachable (ConnectError)".
        remedy: the remedy if it persists.
        retry_after_s: the delay that the remote requested, if any.
    """

    def __init__(self, problem: str, remedy: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.retry_after_s = retry_after_s


class Unreachable(ArtifactError):
    """The remote failed to respond after all retries."""


def retrying(name: str, attempt: Callable[[], _Result], *, tries: int = 4) -> _Result:
    """Call a function until it succeeds.

    Args:
        name: the resource, for messages.
        attempt: raises `Interrupted` for transient errors.
        tries: limit of calls. The delay starts at 0.5 s and doubles, or is the remote's.

    Raises:
        Unreachable: all calls failed, or the remote requested more than five minutes.
    """
    delay_s = _FIRST_DELAY_S
    for left in reversed(range(tries)):
        try:
            return attempt()
        except Interrupted as problem:
            asked_s = problem.retry_after_s
            if left == 0 or (asked_s or 0) > _MAX_WAIT_S:
                raise Unreachable(f"{name} {problem.problem}; {problem.remedy}.") from problem
            wait_s = delay_s if asked_s is None else asked_s
            logger.warning("%s %s; retrying in %.1f s", name, problem.problem, wait_s)
            time.sleep(wait_s)
            delay_s *= 2
    raise AssertionError("tries is at least 1")


_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")


class WrongContentsError(ArtifactError):
    """A server sends other contents than listed; the caller removes what has arrived."""

    @classmethod
    def longer(cls, file: File) -> WrongContentsError:
        return cls(
            f"{file.path} is longer than the {file.size} bytes that the repository lists, and was "
            "removed; try again, and use another repository or mirror if that does not help."
        )

    @classmethod
    def changed(cls, file: File) -> WrongContentsError:
        return cls(f"{file.path} changed during the download, and was removed; start again.")


def requested(file: File, start: int, end: int) -> dict[str, str]:
    """Return the header `Range` for `start` to before `end`; none for a whole file."""
    return {} if (start, end) == (0, file.size) else {"Range": f"bytes={start}-{end - 1}"}


def check_answered(content_range: str | None, file: File, start: int, end: int) -> None:
    """Compare the `Content-Range` of an answer with status 206 with the request.

    Raises:
        Interrupted: it is another range, or of a shorter file.
        WrongContentsError: it is of a longer file.
    """
    match = _CONTENT_RANGE.fullmatch(content_range or "")
    if match is None or int(match[1]) != start or not start <= int(match[2]) < end:
        raise Interrupted(
            f"was answered with other bytes than {start}-{end - 1}",
            "check this machine's proxies, and use another repository or mirror",
        )
    total = file.size if match[3] == "*" else int(match[3])
    if total < file.size:
        raise Interrupted("is shorter than the repository lists", "upload the file anew")
    if total > file.size:
        raise WrongContentsError.longer(file)


_TIMEOUT_S = 30
_BUFFER_BYTES = 1 << 20
_PARTIAL = 206
_TIMEVAL = struct.Struct("ll")
_REFUSED = 400
_CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


class RangeClient:
    """Keeps connections for later requests. Thread-safe.

    Attributes:
        is_usable: False where proxies are set, and after a response that is not plain.
    """

    def __init__(self) -> None:
        self.is_usable = not {"http", "https", "all"} & {name.lower() for name in getproxies()}
        self._idle: dict[tuple[str, str], list[HTTPConnection]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def get(
        self, url: str, headers: Mapping[str, str], count: int
    ) -> Iterator[tuple[HTTPMessage, Iterator[memoryview]] | None]:
        """Request a part of `count` bytes; the header `Range` is the caller's.

        Yields:
            The response's headers and its body, whose chunks are valid until the next one; or None
            if the caller must fall back to huggingface_hub.
        """
        opened = self._open(url, headers)
        if opened is None:
            yield None
            return
        connection, response = opened
        try:
            if _is_plain(response, count):
                yield response.headers, _body(response, connection.sock)
            else:
                self.is_usable = self.is_usable and response.status >= _REFUSED
                yield None
        finally:
            if response.length == 0 and not response.will_close:
                response.close()
                connection.sock.settimeout(_TIMEOUT_S)
                with self._lock:
                    self._idle.setdefault(_origin(url), []).append(connection)
            else:
                response.close()
                connection.close()

    def close(self) -> None:
        """Close the kept connections."""
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()

    def _open(
        self, url: str, headers: Mapping[str, str]
    ) -> tuple[HTTPConnection, HTTPResponse] | None:
        """Send a request; a server may have closed a kept connection, but not a new one."""
        place = urlsplit(url)
        target = f"{place.path or '/'}?{place.query}" if place.query else place.path or "/"
        if not self.is_usable or place.scheme not in ("http", "https") or "@" in place.netloc:
            return None
        while True:
            kept = self._kept(url)
            connection = kept
            try:
                connection = connection or self._connection(url)
                connection.request("GET", target, headers=dict(headers))
                return connection, connection.getresponse()
            except (OSError, HTTPException, ValueError):
                if connection is not None:
                    connection.close()
                if kept is None:
                    self.is_usable = False
                    return None

    def _kept(self, url: str) -> HTTPConnection | None:
        with self._lock:
            connections = self._idle.get(_origin(url))
            return connections.pop() if connections else None

    def _connection(self, url: str) -> HTTPConnection:
        scheme, host = _origin(url)
        if scheme == "https":
            return HTTPSConnection(host, timeout=_TIMEOUT_S, context=self._tls)
        return HTTPConnection(host, timeout=_TIMEOUT_S)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Verify by the certificates of the variables that httpx and requests read."""
        bundle = next((os.environ[name] for name in _CERTIFICATES if os.environ.get(name)), None)
        folder = None if bundle else os.environ.get("SSL_CERT_DIR")
        return ssl.create_default_context(cafile=bundle, capath=folder)


def _origin(url: str) -> tuple[str, str]:
    place = urlsplit(url)
    return place.scheme, place.netloc


def _is_plain(response: HTTPResponse, count: int) -> bool:
    headers = response.headers
    return (
        response.status == _PARTIAL
        and response.length == count
        and headers.get_all("Content-Length") == [str(count)]
        and "Transfer-Encoding" not in headers
        and headers.get("Content-Encoding", "identity") == "identity"
    )


def _body(response: HTTPResponse, sock: socket.socket | None) -> Iterator[memoryview]:
    """Read the body up to its `Content-Length`.

    Over plain TCP one system call fills the buffer; `http.client` returns what it has read with the
    headers. A timeout counts per buffer there.
    """
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    read = response.readinto
    if type(sock) is socket.socket:
        yield memoryview(response.read1(DEFAULT_BUFFER_SIZE))
        sock.settimeout(None)
        sock.setsockopt(
            socket.SOL_SOCKET,
            socket.SO_RCVTIMEO,
            _TIMEVAL.pack(*divmod(int(_TIMEOUT_S * 1e6), 10**6)),
        )
        read = partial(_fill, response, sock)
    while response.length:
        count = read(buffer)
        if count == 0:
            raise ConnectionError(f"{response.length} bytes are missing")
        yield buffer[:count]


def _fill(response: HTTPResponse, sock: socket.socket, buffer: memoryview) -> int:
    """Fill a buffer; at the end of the body, or after a timeout, with less.

    Raises:
        TimeoutError: nothing has arrived.
    """
    assert response.length is not None
    try:
        count = sock.recv_into(buffer, min(response.length, len(buffer)), socket.MSG_WAITALL)
    except BlockingIOError:
        raise TimeoutError(f"{response.length} bytes are missing") from None
    response.length -= count
    return count
