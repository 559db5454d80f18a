"""The HTTP application: routes by path, body limits, and an optional key.

It is the whole application of our own server. In front of Truss's server it answers the routes that
Truss does not have, and passes on the others.
"""

from __future__ import annotations

import hmac
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from trtllm_truss.configuration import load_configuration
from trtllm_truss.endpoints.guard import BodyGuard, closing
from trtllm_truss.endpoints.truss_application import (
    LIVE,
    LOADED,
    PING,
    PROBES,
    READY,
    RETRY_AFTER_S,
    SCHEMA,
    STARTING,
)
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.errors import StartupError
from trtllm_truss.inference.start_throttle import StartThrottle
from trtllm_truss.local_requests import PREDICT, error_body
from trtllm_truss.observability.exposition import MetricsPage
from trtllm_truss.observability.log_lines import REQUEST_ID
from trtllm_truss.observability.status import START_FAILED, ServiceStatus
from trtllm_truss.processes.limits import limit_core_dumps
from trtllm_truss.processes.secret_variables import expose_secrets
from trtllm_truss.serving.service import Service
from trtllm_truss.settings.loading import Environment, require_declared_api_key
from trtllm_truss.settings.model import Serving
from trtllm_truss.validation import SHOWN_CHARACTERS

if TYPE_CHECKING:
    from trtllm_truss.endpoints.endpoint import Endpoint

import_routes = partial(import_module, "trtllm_truss.endpoints.routes")
"""The protocols take a third of a second to import, so this happens while the engine loads."""

INVOCATIONS = "/invocations"
"""SageMaker's route."""

TRUSS_PATHS = frozenset(
    {
        *(PREDICT, f"{PREDICT}_binary", INVOCATIONS),
        *(f"/v1/{name}" for name in ("chat/completions", "completions", "embeddings")),
        *(f"/v1/{name}" for name in ("messages", "responses")),
    }
)
"""The routes of Truss's server, 0.18.35, that accept bodies."""

_TRUSS_PATHS_OF_MODELS = PROBES | TRUSS_PATHS
"""Truss's server treats any other model name as this one."""
_MODELS, _METRICS = "/v1/models", "/metrics"
_PREDICTS = (":predict", ":predict_binary")
_READ = ("GET", "HEAD")
_PLATFORMS_ID = b"x-baseten-request-id"
_ID = re.compile(rb"[\w.-]{1,128}", re.ASCII)
_SCHEMES = (b"bearer", b"api-key")
"""Schemes of keys in `Authorization`; the second one is Baseten's."""

_POLICY_VIOLATION = 1008
_RETRY_AFTER = {"Retry-After": str(RETRY_AFTER_S)}
_OWN_PATHS = frozenset(
    {
        *("/v1/responses/input_tokens", "/v1/messages/count_tokens", "/tokenize", "/detokenize"),
        *TRUSS_PATHS,
    }
)
"""The routes that accept bodies, known before the engine starts."""
_RELOAD = "/hot-reload"

logger = logging.getLogger("trtllm_truss")


class Application:
    """ASGI application of one service, which starts, responds and drains.

    Args:
        config: the parsed config.yaml, which contains the models' names.
        api_key: key that callers must send; empty if none is required.
    """

    def __init__(self, config: Mapping[str, Any], limits: Serving, api_key: str = "") -> None:
        self._truss: ASGIApp | None = None
        self._key = api_key.encode()
        self._bodies = BodyGuard(limits)
        self._metrics = MetricsPage()
        self._scrapes = StartThrottle()
        self._metrics_need_key = limits.metrics_need_key
        self._service: Service | None = None
        self._endpoints: Mapping[str, Endpoint] = {}
        self._is_draining = False
        self._created_s = int(time.time())
        adapters = (config.get("model_metadata") or {}).get("lora_adapters") or ()
        self._models = [str(config.get("model_name") or "model"), *adapters]
        self._probes: dict[str, Callable[[], Response]] = {
            "/health": self._ready,
            "/health/ready": self._ready,
            "/health/live": lambda: JSONResponse(True),
        }
        self._lists: dict[str, Callable[[], Response]] = {
            _MODELS: self._list,
            **{f"{_MODELS}/{name}": partial(self._model, name) for name in self._models},
        }
        self._lists.pop(READY, None)  # Truss's route, whatever the model's name is

    def alone(self) -> Application:
        """Also answer the probes of Truss's server; return this application."""
        self._probes |= {
            LIVE: lambda: JSONResponse(True),
            READY: self._ready,
            LOADED: self._loaded,
            PING: self._loaded,
            # Called by `serve`, because it has no side effect in Truss's server.
            SCHEMA: lambda: (
                self._unavailable(SCHEMA)
                if self._service is None
                else _refused(SCHEMA, 404, "not_found", "the model has no schema.")
            ),
        }
        return self

    def before(self, truss: ASGIApp) -> Application:
        """Pass the routes of Truss's server on to it; return this application."""
        self._truss = truss
        return self

    def begin(self, service: Service, endpoints: Mapping[str, Endpoint]) -> None:
        """Start to answer requests."""
        self._endpoints = endpoints
        self._service = service

    def drain(self) -> None:
        """Report that the server is not ready, and close each connection after its response."""
        self._is_draining = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # neither server has a route for them
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        if scope["type"] != "http":
            if self._truss is not None:
                await self._truss(scope, receive, send)
            return
        path, reads = scope["path"], scope["method"] in _READ
        if self._is_draining:
            send = closing(send)
        if reads and (probe := self._probes.get(path)) is not None:
            await probe()(scope, receive, send)
        elif path.rstrip("/") == _METRICS and (
            not self._metrics_need_key or self._is_allowed(scope)
        ):
            await self._scrapes.turn()
            page = self._metrics if reads else _not_allowed(path, "GET, HEAD", scope["method"])
            await page(scope, receive, send)
        elif not (self._is_allowed(scope) or (reads and path in PROBES)):
            message = "the key is missing or unknown; send it as Authorization: Bearer KEY."
            refused = _refused(path, 401, "unauthorized", message, {"WWW-Authenticate": "Bearer"})
            await refused(scope, receive, send)
        elif reads and (described := self._lists.get(path)) is not None:
            # Other servers open their port only once they are ready, so scripts wait for this list.
            listed = self._unavailable(path) if self._service is None else described()
            await listed(scope, receive, send)
        elif reads and path.startswith(f"{_MODELS}/") and path not in _TRUSS_PATHS_OF_MODELS:
            name = path.removeprefix(f"{_MODELS}/")[:SHOWN_CHARACTERS]
            message = f"the server has no model {name!r}; GET {_MODELS} lists its models."
            await _refused(path, 404, "model_not_found", message)(scope, receive, send)
        else:
            await self._bodies.run(self._choose(scope), scope, receive, send)

    def _choose(self, scope: Scope) -> ASGIApp:
        """Return Truss's server for its own routes, once it has a model.

        Otherwise this application.
        """
        path, method = scope["path"], scope["method"]
        if self._truss is None:
            return self._answer
        if (path in PROBES and method in _READ) or path == _RELOAD:
            return self._truss
        # It redirects paths with an additional slash.
        is_its_own = path.rstrip("/") in TRUSS_PATHS or (
            path.startswith(f"{_MODELS}/") and path.rstrip("/").endswith(_PREDICTS)
        )
        if self._service is not None and method == "POST" and is_its_own and path not in PROBES:
            return self._truss
        return self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose body is complete."""
        path, method = scope["path"], scope["method"]
        for name, value in scope["headers"]:
            # every line of the request contains it
            if name == _PLATFORMS_ID and _ID.fullmatch(value):
                REQUEST_ID.set(value.decode())
        endpoint = self._endpoints.get(path)
        response: Response
        if method == "POST" and endpoint is not None:
            response = await endpoint(Request(scope, receive))
        elif method == "POST" and self._service is None:
            response = self._unavailable(path)
        elif endpoint is not None or path in _OWN_PATHS:
            response = _not_allowed(path, "POST", method)
        elif path in self._probes or path in self._lists or path in PROBES:
            response = _not_allowed(path, "GET, HEAD", method)
        else:
            response = _refused(path, 404, "not_found", _why_unknown(path))
        await response(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        return not self._key or _has_key(scope["headers"], self._key)

    def _ready(self) -> Response:
        service = self._service
        if service is None or self._is_draining or not service.is_healthy():
            return self._unavailable(READY)
        return JSONResponse({})

    def _loaded(self) -> Response:
        return self._unavailable(LOADED) if self._service is None else JSONResponse({})

    def _unavailable(self, path: str) -> Response:
        message = "the engine does not respond; it is being restarted."
        if self._service is None:
            message = STARTING
        elif self._is_draining:
            message = "the engine is finishing its last requests."
        return _refused(path, 503, "engine_unavailable", message, _RETRY_AFTER)

    def _list(self) -> Response:
        models = [self._described(name) for name in self._models]
        return JSONResponse({"object": "list", "data": models})

    def _model(self, name: str) -> Response:
        return JSONResponse(self._described(name))

    def _described(self, name: str) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if self._service is not None:
            pipeline = self._service.pipeline
            more["max_model_len"] = pipeline.engine.max_sequence_tokens
            if templates := pipeline.tokenizer.templates:
                more["conversations"] = templates.shape.sentence
        return {
            "id": name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "trtllm-truss",
            **more,
        }


def start_service(
    config: Mapping[str, Any],
    environment: Callable[[], Environment],
    data_dir: Path,
    status: ServiceStatus,
    before_start: Callable[[Serving, Environment], object] = lambda limits, environment: None,
    kv_events: Path | None = None,
    *,
    owns_process: bool = True,
) -> tuple[Service, Mapping[str, Any]]:
    """Start the service of a config.yaml; return it and its defaults of request fields.

    Failures are reported in the log and in the status.

    Args:
        environment: reads secrets and variables.
        before_start: called with valid settings.
        kv_events: Unix socket for events of the engine's KV cache; None for none.
        owns_process: remove secrets from this process's environment after all downloads.

    Raises:
        StartupError: the service cannot start.
    """
    try:
        settings, defaults = load_configuration(config)
        limit_core_dumps(allowed=settings.serving.core_dumps)
        known = environment()
        expose_secrets(known.variables)  # to downloads, after a failed start
        require_declared_api_key(config, settings.serving, known)
        before_start(settings.serving, known)
        image = HostInfo.from_config(config).image
        service = Service(
            settings,
            known,
            data_dir,
            image,
            status,
            model_name=str(config.get("model_name") or ""),
            is_traced=bool((config.get("runtime") or {}).get("enable_tracing_data")),
            kv_events=kv_events,
            owns_process=owns_process,
        )
        service.start(import_routes)
    except StartupError as error:
        _report_failure(status, error.message)
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    # Truss hangs if `load` raises a BaseException that is not an Exception
    except BaseException as error:
        logger.exception("unhandled exception")
        sentence = f"unhandled {type(error).__name__}: {error}; the log above has the traceback."
        _report_failure(status, sentence)
        raise StartupError(sentence) from error
    return service, defaults


def _report_failure(status: ServiceStatus, sentence: str) -> None:
    status.failed(sentence)
    logger.error("cannot start: %s", sentence, extra={START_FAILED: True})


def _why_unknown(path: str) -> str:
    """Return the sentence about an unknown route, with its most likely cause."""
    shown_path = path[:SHOWN_CHARACTERS]
    if path.startswith("/v1/v1/"):
        return f"{shown_path} has /v1 twice; remove it from the end of the client's base URL."
    if f"/v1{path.rstrip('/')}" in _OWN_PATHS:
        return f"{shown_path} lacks /v1; add it to the end of the client's base URL."
    if path.startswith("/v1/responses/"):
        return "answers are not stored; send the earlier items in input."
    return f"the server has no route {shown_path}; OpenAI's is POST /v1/chat/completions."


def _refused(
    path: str, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    return JSONResponse(error_body(path, status, code, message), status, headers)


def _not_allowed(path: str, allowed: str, method: str) -> Response:
    message = f"{path} accepts {allowed}, not {method}."
    return _refused(path, 405, "method_not_allowed", message, {"Allow": allowed})


def _has_key(headers: Sequence[tuple[bytes, bytes]], key: bytes) -> bool:
    """Compare a request's keys in constant time."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, value = value.partition(b" ")
            if scheme.lower() not in _SCHEMES:
                continue
        elif name != b"x-api-key":
            continue
        if hmac.compare_digest(value.strip(), key):
            return True
    return False
