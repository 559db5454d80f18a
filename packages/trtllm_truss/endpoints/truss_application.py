"""Guard Truss's application in this process, and respond before the model is loaded.

Imports only the standard library, because the model's module imports it first, while Truss's port
is already open.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from trtllm_truss.local_requests import error_body, send_json

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

LIVE, READY, LOADED = "/", "/v1/models/model", "/v1/models/model/loaded"
SCHEMA, PING = f"{READY}/schema", "/ping"
PROBES = frozenset({LIVE, READY, LOADED, SCHEMA, PING})
"""The routes of Truss's server, 0.18.35, that accept no bodies."""

RETRY_AFTER_S = 5
STARTING = "the engine is starting."

_MODULE = "truss_server"
_CLASS = "FastAPI"
_GUARDED = "unguarded_call"

logger = logging.getLogger(__name__)


def guard_application(guard: Callable[[ASGIApp], ASGIApp]) -> None:
    """Use `guard(application)` from now on; a second call replaces the first one's guard.

    uvicorn calls the application's class, which is the only access to it from the model: Truss's
    `truss_server.py` (0.18.35) builds one FastAPI object and keeps it in a local variable.
    """
    application = getattr(sys.modules.get(_MODULE), _CLASS, None)
    if application is None:
        logger.warning(
            "Truss's server has no %s: serving.max_bodies_bytes and body_timeout_s do not "
            "apply, and only its own routes are available",
            _CLASS,
        )
        return
    unguarded = getattr(application.__call__, _GUARDED, application.__call__)
    guarded: ASGIApp | None = None

    async def call(self: object, scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal guarded
        if guarded is None:
            guarded = guard(partial(unguarded, self))
        await guarded(scope, receive, send)

    setattr(call, _GUARDED, unguarded)
    application.__call__ = call


def answer_while_importing() -> None:
    """Answer Truss's requests as if the engine were starting, until `guard_application` runs."""
    if hasattr(sys.modules.get(_MODULE), _CLASS):
        guard_application(lambda truss: partial(_answer, truss))


async def _answer(truss: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http" or (scope["path"] in PROBES and scope["method"] != "POST"):
        await truss(scope, receive, send)
        return
    body = error_body(scope["path"], 503, "engine_unavailable", STARTING)
    await send_json(send, 503, body, [(b"retry-after", b"%d" % RETRY_AFTER_S)])
