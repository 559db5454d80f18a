"""Put the guard of bodies in front of the application of the running Truss server."""

from __future__ import annotations

import logging
import sys

from starlette.types import Receive, Scope, Send

from trtllm_truss.guard.bodies import BodyGuard
from trtllm_truss.settings.model import Serving

_MODULE = "truss_server"
_CLASS = "FastAPI"
_GUARDED = "unguarded_call"

logger = logging.getLogger(__name__)


def guard_application(limits: Serving) -> None:
    """Guard the requests of Truss's server from now on; a second call replaces the limits.

    uvicorn calls the application's class, which is the only way to it from the model: Truss's
    `truss_server.py` (0.18.35) builds one FastAPI object and keeps it in a local variable.
    """
    application = getattr(sys.modules.get(_MODULE), _CLASS, None)
    if application is None:
        logger.warning(
            "Truss's server has no %s: serving.max_bodies_bytes and body_timeout_s do not hold",
            _CLASS,
        )
        return
    unguarded = getattr(application.__call__, _GUARDED, application.__call__)
    guard = BodyGuard(limits)

    async def call(self: object, scope: Scope, receive: Receive, send: Send) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await unguarded(self, scope, receive, send)

        await guard.run(app, scope, receive, send)

    setattr(call, _GUARDED, unguarded)
    application.__call__ = call
