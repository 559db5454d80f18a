"""Serve Truss's own application with the scripted engine; have clients leave in every way.

Prints one JSON object per way, of what is left without a garbage collection:

- `alive`: requests that exist still;
- `ours`: unreachable objects of this project, by type;
- `held_bytes`: bytes of bodies in other unreachable objects.
"""

import asyncio
import gc
import importlib.util
import json
import logging
import socket
import sys
import threading
import weakref
from collections import Counter
from pathlib import Path
from types import FrameType, SimpleNamespace

import truss
import uvicorn
import uvloop
import yaml
from starlette.requests import Request
from tests.fakes.engine import FakeEngine
from tests.support.paths import ROOT
from tests.support.smollm2 import smollm2_tokenizer

from trtllm_truss.endpoints.application import Application
from trtllm_truss.endpoints.guard import replace_watcher
from trtllm_truss.endpoints.routes import build_routes
from trtllm_truss.endpoints.truss_application import guard_application
from trtllm_truss.settings.model import Serving
from trtllm_truss.text.tokenizer import TextTokenizer

LEAVERS = 75
AT_ONCE = 25
PLACES = 8
SLOW, ENDLESS = 20, 30
SILENCES_S = {SLOW: 0.2, ENDLESS: 600.0}
"""By `max_tokens`, after the first token."""
LISTENS_S = 0.15  # the server looks for disconnects after 0.1 s
FILLER = "x" * 100_000
LONG = "word " * 30_000
PREDICT, CHAT = "/v1/models/model:predict", "/v1/chat/completions"
TEMPLATES = Path(truss.__file__).parent / "templates"

requests = weakref.WeakSet()
create_request = Request.__init__


def record_request(request, *arguments, **options):
    create_request(request, *arguments, **options)
    requests.add(request)


Request.__init__ = record_request
encode = TextTokenizer.encode
encoding, may_encode = threading.Event(), threading.Event()


def encode_when_allowed(tokenizer, text, *arguments, **options):
    if text == LONG:
        encoding.set()
        may_encode.wait()
    return encode(tokenizer, text, *arguments, **options)


TextTokenizer.encode = encode_when_allowed


def truss_application(engine):
    """Build the application of Truss's server for a loaded model."""
    from truss.templates import shared

    sys.modules["_truss_shared"] = shared
    sys.path.insert(0, str(TEMPLATES / "server"))
    import model_wrapper
    import truss_server

    defaults = {"model_module_dir": "model", "model_class_filename": "model.py", "secrets": {}}
    config = {**defaults, **yaml.safe_load((ROOT / "config.yaml").read_text())}
    server = truss_server.TrussServer(0, config)
    spec = importlib.util.spec_from_file_location("served_model", ROOT / "model/model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Model(config, object(), Path())
    model._endpoints = build_routes(engine, {})
    model._service = SimpleNamespace(is_healthy=lambda: True)
    wrapper = server._model
    wrapper._maybe_model = model
    wrapper._maybe_model_descriptor = model_wrapper.ModelDescriptor.from_model(model)
    wrapper._status = wrapper.Status.READY
    if "unpatched" not in sys.argv:
        replace_watcher()
        application = Application(config, Serving())
        application.begin(model._service, model._endpoints)
        guard_application(application.before)
    return server.create_application()


async def until(condition):
    while not condition():  # noqa: ASYNC110 - of another thread or library
        await asyncio.sleep(0.01)


class Ways:
    """The ways of leaving. Each sends one request and closes its connection."""

    def __init__(self, port, engine):
        self.port, self.engine = port, engine

    def head(self, path, length):
        return (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()
        )

    async def send(self, path, body, part=1.0):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(self.head(path, len(body)) + body[: int(len(body) * part)])
        await writer.drain()
        return reader, writer

    def body(self, **fields):
        messages = [{"role": "user", "content": "Hi"}]
        return json.dumps(
            {"messages": messages, "max_tokens": 9, "user": FILLER, **fields}
        ).encode()

    async def before_the_call(self):
        """Close before the server runs again."""
        body = self.body()
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            connection.sendall(self.head(CHAT, len(body)) + body)

    async def before_predict(self):
        body = json.dumps({"prompt": "Hi", "user": FILLER}).encode()
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            connection.sendall(self.head(PREDICT, len(body)) + body)

    async def after_the_head(self):
        _, writer = await self.send(CHAT, self.body(), 0)
        writer.transport.abort()

    async def within_the_body(self):
        _, writer = await self.send(CHAT, self.body(), 0.5)
        writer.transport.abort()

    async def while_it_is_encoded(self):
        body = json.dumps({"prompt": LONG, "max_tokens": 9}).encode()
        _, writer = await self.send(PREDICT, body)
        await until(encoding.is_set)
        await asyncio.sleep(LISTENS_S)
        writer.transport.abort()
        await asyncio.sleep(LISTENS_S)
        may_encode.set()

    async def before_the_first_token(self, **fields):
        before = len(self.engine.requests)
        _, writer = await self.send(CHAT, self.body(max_tokens=ENDLESS, **fields))
        await until(lambda: len(self.engine.requests) > before or self.engine.admission.waiting)
        await asyncio.sleep(LISTENS_S)
        writer.transport.abort()

    async def before_the_end_of_several(self):
        await self.before_the_first_token(n=3)

    async def while_it_streams(self, **fields):
        reader, writer = await self.send(CHAT, self.body(max_tokens=ENDLESS, stream=True, **fields))
        await reader.readuntil(b"Yes")
        writer.transport.abort()

    async def while_several_stream(self):
        await self.while_it_streams(n=3)

    async def after_the_answer(self, body=None):
        reader, writer = await self.send(CHAT, body or self.body())
        await reader.readuntil(b"}}")
        writer.transport.abort()

    async def after_a_slow_answer(self):
        await self.after_the_answer(self.body(max_tokens=SLOW))

    async def after_a_stream(self):
        reader, writer = await self.send(CHAT, self.body(stream=True))
        await reader.readuntil(b"[DONE]")
        writer.transport.abort()

    async def after_a_refusal(self):
        reader, writer = await self.send(CHAT, self.body(max_tokens=0))
        await reader.readuntil(b"}}")
        writer.transport.abort()


def is_ours(thing):
    if isinstance(thing, FrameType):
        return "/trtllm_truss/" in thing.f_code.co_filename
    return type(thing).__module__.startswith("trtllm_truss")


async def measure(server, way, engine):
    """Have clients leave, and count what is left of their requests."""

    async def leave(count):
        for start in range(0, count, AT_ONCE):
            await asyncio.gather(*(way() for _ in range(min(AT_ONCE, count - start))))
        state = server.server_state
        await until(lambda: not (state.connections or state.tasks))
        await asyncio.sleep(0.01)  # the callbacks of the last task

    await leave(2)  # builds what all requests share
    encoding.clear()
    may_encode.clear()
    gc.collect()
    gc.freeze()
    gc.disable()
    await leave(LEAVERS)
    alive = len(requests)
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    garbage = list(gc.garbage)
    ours = Counter(type(thing).__qualname__ for thing in garbage if is_ours(thing))
    held = sum(
        len(each)
        for thing in garbage
        for each in gc.get_referents(thing)
        if isinstance(each, bytes | bytearray | str)
    )
    gc.garbage.clear()
    gc.unfreeze()
    gc.enable()
    return {"way": way.__name__, "alive": alive, "ours": ours, "held_bytes": held}


async def main():
    def script(request):
        return ["Yes", SILENCES_S.get(request.max_tokens, 0.0), "."]

    engine = FakeEngine(script, smollm2_tokenizer(), places=PLACES)
    config = uvicorn.Config(
        truss_application(engine), "127.0.0.1", 0, http="h11", loop="none", log_config=None
    )
    logging.disable(logging.ERROR)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    ways = Ways(server.servers[0].sockets[0].getsockname()[1], engine)
    chosen = [argument for argument in sys.argv[1:] if hasattr(ways, argument)]
    for name in chosen:
        sys.stdout.write(json.dumps(await measure(server, getattr(ways, name), engine)) + "\n")
        sys.stdout.flush()
    server.should_exit = True
    await serving


uvloop.install()
asyncio.run(main())
