"""A part of Baseten's API for one local server, for `truss predict`.

Truss's command line looks up its model by GraphQL at ``<remote URL>/graphql/`` and posts the body
to ``<hostname>/development/predict`` or ``<hostname>/deployment/<id>/predict`` (truss 0.18,
`remote/baseten/api.py` and `service.py`). The hostname returned here ends in ``#``: the appended
path becomes the URL's fragment, which is never sent. So the body goes straight to the route of
Truss's own server, without a proxy in the stream.
"""

from __future__ import annotations

import http.server
import json
import re
import shlex
import threading
from http import HTTPStatus
from typing import Any

from trtllm_truss.errors import SettingsError

_PATH = "/graphql/"


_LARGEST_QUERY_BYTES = 65536


_SOCKET_TIMEOUT_S = 30


_VERSION_ID = "local"


_FIRST_FIELD = re.compile(r"\s*(?:query\b\s*\w*\s*)?\{\s*(\w+)")


class RemoteApi:
    """Answers lookups on loopback while entered; every id resolves to the same model.

    Args:
        port: on 127.0.0.1, opened on entry.
        model_name: name in config.yaml.
        predict_url: the predict route of Truss's own server.
    """

    def __init__(self, port: int, model_name: str, predict_url: str) -> None:
        self._port = port
        self._model_name = model_name
        self._predict_url = predict_url

    @property
    def example(self) -> str:
        """A command line that uses this API."""
        return (
            f"BASETEN_TRUSS_AUTH_REMOTE_URL=http://localhost:{self._port} "
            "BASETEN_TRUSS_AUTH_API_KEY=any truss predict "
            f'--model {shlex.quote(self._model_name)} -d \'{{"prompt": "The sky is"}}\''
        )

    def __enter__(self) -> RemoteApi:
        try:
            self._server = _Server(self._port, _facts(self._model_name, self._predict_url))
        except OSError as error:
            raise SettingsError(
                f"--remote-api is {self._port}; that port cannot be used "
                f"({error.strerror or error}). Choose another one."
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, facts: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.facts = facts


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = _SOCKET_TIMEOUT_S

    def do_POST(self) -> None:
        if self.path != _PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"only {_PATH} is served here")
            return
        try:
            length = int(self.headers.get("Content-Length", ""))
            if not 0 <= length <= _LARGEST_QUERY_BYTES:
                raise ValueError
            query = json.loads(self.rfile.read(length))["query"]
            body = json.dumps(_answer(query, self.server.facts)).encode()
        except (ValueError, KeyError, TypeError, RecursionError):
            self.send_error(HTTPStatus.BAD_REQUEST, 'the body must be {"query": "..."}')
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal shows the server's log."""


def _answer(query: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the first field that a query selects, with every known value."""
    field = _FIRST_FIELD.match(query)
    if field is None or field[1] not in facts:
        asked = "this query" if field is None else field[1]
        message = f"`trtllm-truss serve` answers the lookups of `truss predict`, not {asked}."
        return {"errors": [{"message": message}]}
    return {"data": {field[1]: facts[field[1]]}}


def _facts(model_name: str, predict_url: str) -> dict[str, Any]:
    """Return the values for the lookups by model, by deployment and by name."""
    team = {"id": "local", "name": "local", "default": True}
    version = {
        "id": _VERSION_ID,
        "semver": "0.0.0",
        "truss_hash": "",
        "truss_signature": "",
        "is_draft": True,
        "is_primary": True,
        "current_model_deployment_status": {"status": "MODEL_READY"},
    }
    model = {"id": model_name, "name": model_name, "hostname": f"{predict_url}#", "team": team}
    return {
        "model": {**model, "primary_version": version, "versions": [version]},
        "model_version": {**version, "oracle": model},
        "models": [model],
        "teams": [team],
    }
