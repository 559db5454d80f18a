"""A minimal HTTP client for a Truss, on the standard library alone."""

from __future__ import annotations

import codecs
import http.client
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from trtllm_truss.errors import EngineUnavailable, InvalidRequest, TrussError
from trtllm_truss.settings.addresses import is_loopback

DEFAULT_URL = "http://localhost:8080"
URL_HELP = (
    "a local server, or the predict URL of a deployed Truss; the variable BASETEN_API_KEY is sent "
    "to remote hosts over https"
)

_LOCAL_PATH = "/v1/models/model:predict"
_API_KEY_VARIABLE = "BASETEN_API_KEY"
_UNAUTHORIZED = (http.client.UNAUTHORIZED, http.client.FORBIDDEN)
_WITHHELD = f". {_API_KEY_VARIABLE} was not sent: it is sent to remote hosts over https only."
CUT_OFF = "the response was cut off; see the server's log."


class Answer:
    """A 200 response; read its body once."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def texts(self) -> Iterator[str]:
        """Yield the body as text as it arrives, in whole characters.

        Raises:
            EngineUnavailable: the connection ended before the response did.
        """
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while chunk := self._response.read1(65536):
                yield decoder.decode(chunk)
        except (http.client.HTTPException, OSError) as error:
            raise EngineUnavailable(CUT_OFF) from error
        if self._response.length:  # bytes missing of a body with a length; a chunked one has raised
            raise EngineUnavailable(CUT_OFF)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of a stream of server-sent events."""
        rest = ""
        for text in self.texts():
            *frames, rest = (rest + text).split("\n\n")
            for frame in frames:
                if frame.startswith("data: "):
                    yield json.loads(frame.removeprefix("data: "))

    def json(self) -> dict[str, Any]:
        body = json.loads("".join(self.texts()))
        assert isinstance(body, dict)
        return body


@contextmanager
def post(url: str, body: Mapping[str, object], accept: str = "*/*") -> Iterator[Answer]:
    """Send a request and yield its response; close the connection at the end.

    A URL without a path gets the route of a local server. The variable `BASETEN_API_KEY` goes into
    the `Authorization` header that Baseten expects, to remote hosts over https only.

    Raises:
        InvalidRequest: `url` is not an HTTP URL.
        EngineUnavailable: the server is unreachable.
        TrussError: the status is not 200; the message is the server's.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(f"--url is {url!r}; it must be an http or https URL.")
    secure = parts.scheme == "https"
    connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    headers = {"Content-Type": "application/json", "Accept": accept}
    api_key = os.environ.get(_API_KEY_VARIABLE)
    key_is_safe = secure and not is_loopback(parts.hostname)
    if api_key and key_is_safe:
        headers["Authorization"] = f"Api-Key {api_key}"
    path = parts.path if parts.path not in ("", "/") else _LOCAL_PATH
    connection = connect(parts.hostname, parts.port)
    try:
        try:
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
        except OSError as error:
            raise EngineUnavailable(
                f"cannot connect to {parts.scheme}://{parts.netloc} ({error.strerror or error}); "
                "is `trtllm-truss serve` running there?"
            ) from None
        if response.status != http.client.OK:
            withheld = api_key and not key_is_safe and response.status in _UNAUTHORIZED
            raise TrussError(_error_message(response) + (_WITHHELD if withheld else ""))
        with response:  # else it would keep a connection that the server closes after it
            yield Answer(response)
    finally:
        connection.close()


def _error_message(response: http.client.HTTPResponse) -> str:
    text = response.read().decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        message = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        message = text[:500]
    return f"{message} (HTTP {response.status})"
