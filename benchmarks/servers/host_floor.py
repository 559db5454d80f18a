"""Truss's server with a model that only streams: the lower bound for any Truss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from benchmarks.servers.configuration import CONCURRENCY
from benchmarks.servers.target import Target
from benchmarks.servers.truss import PREDICT_PATH
from trtllm_truss.triton.server.ports import unused_ports
from trtllm_workbench.cli.truss_server import TrussServer

_MODEL = """\
from starlette.requests import Request
from starlette.responses import StreamingResponse

PIECES = (b'data: {"text": " little"}\\n\\n', b'data: {"text": " girl"}\\n\\n')


async def pieces():
    for piece in PIECES:
        yield piece


class Model:
    async def predict(self, request: Request):
        await request.json()
        return StreamingResponse(pieces(), media_type="text/event-stream")
"""
"""Sends two events, like ours for a two-token answer; it reads the body, as any model does."""


@contextmanager
def host_floor(work: Path) -> Iterator[Target]:
    """Serve that model during the block.

    Args:
        work: the folder for the Truss.

    Raises:
        StartupError: the server did not start.
    """
    truss = work / "host-floor-truss"
    (truss / "model").mkdir(parents=True, exist_ok=True)
    (truss / "model/__init__.py").touch()
    (truss / "model/model.py").write_text(_MODEL, encoding="utf-8")
    config = {"model_name": "floor", "runtime": {"predict_concurrency": CONCURRENCY}}
    (truss / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (port,) = unused_ports(1)
    with TrussServer(truss, None, port, lambda line: None) as server:
        server.wait_until_ready()
        yield Target(server.pid, port, PREDICT_PATH)
