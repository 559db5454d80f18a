"""One TLS context per process for the HTTP clients of the tests.

Each client of httpx and httpx2 reads the machine's certificates, also for `http://`: 30 ms of CPU
time, which a test spends per request, or per look at a restarting server.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import httpx._transports.default
import httpx2._transports.default

_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def share_tls_contexts() -> None:
    for transports in (httpx._transports.default, httpx2._transports.default):
        transports.create_ssl_context = _shared(transports.create_ssl_context)


def _shared(create: Callable[..., Any]) -> Callable[..., Any]:
    @cache
    def created(variables: tuple[str | None, ...], options: tuple[tuple[str, Any], ...]) -> Any:
        return create(**dict(options))

    return lambda **options: created(tuple(map(os.getenv, _VARIABLES)), tuple(options.items()))
