"""Just enough HTTP to ask a Truss, with nothing but the standard library."""

from __future__ import annotations

import codecs
import http.client
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from trtllm_truss.cli.local_main import is_loopback
from trtllm_truss.errors import EngineUnavailable, InvalidRequest, TrussError

_LOCAL_PATH = "/v1/models/model:predict"
_API_KEY_VARIABLE = "BASETEN_API_KEY"
_UNAUTHORIZED = (http.client.UNAUTHORIZED, http.client.FORBIDDEN)
_WITHHELD = f". {_API_KEY_VARIABLE} was not sent: it goes over https and to other machines only."


class Answer:
    """A response whose status was good; its body is read once."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def texts(self) -> Iterator[str]:
        """The body as text, as it arrives; never cut inside a character.

        Raises:
            EngineUnavailable: the connection ended before the answer did.
        """
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while chunk := self._response.read1(65536):
                yield decoder.decode(chunk)
        except (http.client.HTTPException, OSError) as error:
            raise EngineUnavailable("the answer broke off; the server's log says why.") from error
        if self._response.length:  # of a body with a length; a chunked one has raised
            raise EngineUnavailable("the answer broke off; the server's log says why.")

    def events(self) -> Iterator[dict[str, Any]]:
        """The JSON objects of a stream of server-sent events."""
        rest = ""
        for text in self.texts():
            *frames, rest = (rest + text).split("\n\n")
            for frame in frames:
                if frame.startswith("data: "):
                    yield json.loads(frame.removeprefix("data: "))

    def json(self) -> dict[str, Any]:
        """The body as one JSON object."""
        body = json.loads("".join(self.texts()))
        assert isinstance(body, dict)
        return body


@contextmanager
def post(url: str, body: Mapping[str, object], accept: str = "*/*") -> Iterator[Answer]:
    """Sends a request and waits for the head of the response; closes the connection at the end.

    A URL without a path means a local server. The variable `BASETEN_API_KEY` is sent along as
    Baseten wants it, over https and to other machines only.

    Raises:
        InvalidRequest: the URL is none.
        EngineUnavailable: nobody answers there.
        TrussError: the server refused; the message is its own.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(f"--url is {url!r}; it must be a http or https URL.")
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
                f"nobody answers at {parts.scheme}://{parts.netloc} ({error.strerror or error}); "
                "is `trtllm-truss serve` running there?"
            ) from None
        if response.status != http.client.OK:
            withheld = api_key and not key_is_safe and response.status in _UNAUTHORIZED
            raise TrussError(_refusal(response) + (_WITHHELD if withheld else ""))
        yield Answer(response)
    finally:
        connection.close()


def _refusal(response: http.client.HTTPResponse) -> str:
    text = response.read().decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        message = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        message = text[:500]
    return f"{message} (HTTP {response.status})"
