"""Run Truss's `main.py` on one address, with a guard in front of the application.

Truss's server listens on every address, as a container must, and requires no key. Usage, in the
folder of `main.py`: `python local_main.py HOST main.py LAID_OUT GUARD`. The program runs once the
file LAID_OUT exists; its libraries are imported before. GUARD is the file of
`trtllm_truss.local_requests`: the served Truss may bundle another version of that package, so
nothing is imported from it.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
import time
from contextlib import suppress
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_OBJECTS_BEFORE_COLLECTION = 100_000
"""Imports create nearly as many and leave little garbage.

Collections would take a tenth of their time.
"""

_LIBRARIES = (
    *("uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto", "uvicorn.lifespan.on"),
    *("yaml", "fastapi", "prometheus_client", "opentelemetry.sdk.trace"),
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)
"""Truss's server takes a third of a second to import them, as long as the layout takes."""

_TICK_S = 0.02


def main(host: str, program: str, laid_out: str, guard: str) -> None:
    """Run Truss's program on `host` instead of every address."""
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    sys.path[0] = os.getcwd()  # noqa: PTH109 - as `python main.py` has it
    for name in _LIBRARIES:
        with suppress(ImportError):  # Truss's program reports it, if it needs this one
            import_module(name)
    guarded = runpy.run_path(guard)["LocalGuard"]
    while not Path(laid_out).exists():
        time.sleep(_TICK_S)
    invalidate_caches()  # for the folders that were filled meanwhile
    import uvicorn

    class LocalConfig(uvicorn.Config):
        def __init__(self, app: ASGIApp, **options: Any) -> None:
            super().__init__(guarded(app, host), **{**options, "host": host})

    uvicorn.Config = LocalConfig  # type: ignore[misc, assignment]
    sys.argv = [program]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
