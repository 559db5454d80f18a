"""A hostile S3 server: the test chooses keys, ETags, sizes, checksums and bodies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import escape

from tests.fakes.s3.server import environment_for
from tests.support.serving import serving

_CHUNK_BYTES = 1 << 16


@dataclass
class HostileObject:
    """One object and its claimed properties.

    Attributes:
        data: body of a GET.
        etag: value of the header; None omits it.
        size: Content-Length of a HEAD; None sends the true one.
        headers: further headers of GET and HEAD.
        extra_bytes: sent after the data.
    """

    data: bytes
    etag: str | None = '"0123456789abcdef0123456789abcdef-1"'
    size: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_bytes: int = 0


class HostileS3:
    """The server; its objects may change while it runs.

    Attributes:
        objects: by key.
        listing: XML that replaces the true listing.
        refusal: status and XML that answer every GET of an object.
        if_match: If-Match of every GET.
        sent: bytes of contents sent.
    """

    def __init__(self) -> None:
        self.objects: dict[str, HostileObject] = {}
        self.listing: str | None = None
        self.refusal: tuple[int, str] | None = None
        self.if_match: list[str] = []
        self.sent = 0
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.server.daemon_threads = True
        self.server.s3 = self  # type: ignore[attr-defined]
        self.environment = environment_for(self.server.server_port)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        if (found := self._object) is None:
            self._answer(404, b"", {})
            return
        size = len(found.data) if found.size is None else found.size
        self._answer(200, b"", {**self._headers_of(found), "Content-Length": str(size)})

    def do_GET(self) -> None:
        s3, found = self._s3, self._object
        if found is None:
            self._answer(200, (s3.listing or _listing(s3.objects)).encode(), {})
            return
        s3.if_match.append(self.headers["If-Match"])
        if s3.refusal is not None:
            self._answer(s3.refusal[0], s3.refusal[1].encode(), {})
            return
        size = len(found.data)
        first, _, last = (self.headers["Range"] or "bytes=0-")[6:].partition("-")
        start, end = int(first), min(int(last) + 1 if last else size, size)
        if start > 0 and start >= size:
            self._answer(416, b"<Error><Code>InvalidRange</Code></Error>", {})
            return
        is_part = start > 0 or end < size
        ranged = {"Content-Range": f"bytes {start}-{end - 1}/{size}"} if is_part else {}
        headers = {**ranged, **self._headers_of(found)}
        self._answer(206 if is_part else 200, found.data[start:end], headers, found)

    @property
    def _s3(self) -> HostileS3:
        return self.server.s3  # type: ignore[attr-defined, no-any-return]

    @property
    def _object(self) -> HostileObject | None:
        _, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        return self._s3.objects.get(key)

    def _headers_of(self, found: HostileObject) -> dict[str, str]:
        tag = {} if found.etag is None else {"ETag": found.etag}
        return {**tag, **found.headers}

    def _answer(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str],
        found: HostileObject | None = None,
    ) -> None:
        extra = 0 if found is None else found.extra_bytes
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body) + extra), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)
            for _ in range(0, extra, _CHUNK_BYTES):
                self.wfile.write(bytes(_CHUNK_BYTES))
                self._s3.sent += _CHUNK_BYTES


def _listing(objects: Mapping[str, Any]) -> str:
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>1</Size></Contents>" for key in objects
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"


@contextlib.contextmanager
def hostile_s3_server() -> Iterator[HostileS3]:
    s3 = HostileS3()
    with serving(s3.server):
        yield s3
