"""Spans of calls: complete for each end, below the caller's, and without text."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.requests import Request
from starlette.types import Message
from tests.fakes.engine import FakeEngine, Step
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.smollm2 import smollm2_tokenizer
from tests.support.waiting import until

from trtllm_truss.endpoints.routes import build_routes
from trtllm_truss.errors import EngineUnavailable, SettingsError
from trtllm_truss.observability.tracing import Tracing, open_tracing
from trtllm_truss.requests import GenerationRequest
from trtllm_truss.settings.model import Serving
from trtllm_truss.triton.client.engine_messages import EngineRequest

TRACE_ID, CALLERS_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{TRACE_ID}-{CALLERS_SPAN}-01", "tracestate": "vendor=x"}
SECRET = "a prompt that nobody may see"
GONE = EngineUnavailable("the engine has died.", retry_after_s=5)
WAITS = 3600.0
PHASES = ["queue", "first_token", "stream"]


@dataclass
class Collected:
    """Spans by call, from an exporter in memory."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    def tracing(self) -> Tracing:
        return Tracing([SimpleSpanProcessor(self.exporter)])

    @property
    def calls(self) -> list[tuple[ReadableSpan, list[ReadableSpan]]]:
        """The spans of calls, ordered by end, each with those below it."""
        below: dict[int, list[ReadableSpan]] = defaultdict(list)
        tops = []
        for span in self.exporter.get_finished_spans():
            if span.kind is SpanKind.SERVER:
                tops.append(span)
            else:
                assert span.parent is not None
                below[span.parent.span_id].append(span)
        assert below.keys() <= {span.context.span_id for span in tops}
        return [(span, below[span.context.span_id]) for span in tops]


class Caller:
    """One call of an endpoint over ASGI."""

    def __init__(
        self, engine: FakeEngine, body: Any, route: str = "/v1/chat/completions", **headers: str
    ) -> None:
        endpoint = build_routes(engine, {})[route]  # type: ignore[arg-type]
        self._endpoint, self._route = endpoint, route
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._messages = iter([{"type": "http.request", "body": raw, "more_body": False}])
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._leaves = asyncio.Event()
        self.begun = asyncio.Event()
        self.sent: list[Message] = []

    def leave(self) -> None:
        self._leaves.set()

    async def call(self) -> int:
        """Return the status, or 0 if the client left before it."""
        scope = {
            **{"type": "http", "method": "POST", "path": self._route},
            **{"query_string": b"", "headers": self._headers},
        }
        response = await self._endpoint(Request(scope, self._receive, self._send))
        await response(scope, self._receive, self._send)
        return int(self.sent[0]["status"])

    async def _receive(self) -> Message:
        if (message := next(self._messages, None)) is not None:
            return message
        await self._leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        if message.get("body"):
            self.begun.set()


def engine_with(collected: Collected, *steps: Step, **options: Any) -> FakeEngine:
    def script(_: EngineRequest) -> Sequence[Step]:
        return steps or ("Yes", ".")

    engine = FakeEngine(script, smollm2_tokenizer(), **options)
    engine.tracing = collected.tracing()
    return engine


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 9, **fields}


def names(spans: Sequence[ReadableSpan]) -> list[str]:
    return [span.name for span in spans]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_has_its_phases_below_the_callers_span(stream: bool) -> None:
    collected = Collected()
    engine = engine_with(collected)
    body = chat(stream=stream, model="my-model")
    assert await Caller(engine, body, **CALLER).call() == 200

    ((top, below),) = collected.calls
    assert top.name == "chat my-model"
    assert f"{top.context.trace_id:032x}" == TRACE_ID
    assert top.parent is not None
    assert f"{top.parent.span_id:016x}" == CALLERS_SPAN
    assert top.context.trace_state.get("vendor") == "x"
    assert top.status.status_code is StatusCode.UNSET
    attributes = dict(top.attributes or {})
    assert attributes.pop("gen_ai.response.id") == engine.requests[0].request_id
    assert attributes.pop("gen_ai.usage.input_tokens") == len(engine.requests[0].input_ids)
    assert attributes == {
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "my-model",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.stream": stream,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.output_tokens": 2,
    }
    assert names(below) == PHASES
    times = [(span.start_time or 0, span.end_time or 0) for span in below]
    assert [start for start, _ in times][1:] == [end for _, end in times][:-1]
    assert (top.start_time or 0) <= times[0][0]
    assert times[-1][1] <= (top.end_time or 0)


async def test_every_choice_has_its_phases_and_the_call_their_sums() -> None:
    collected = Collected()
    engine = engine_with(collected)
    assert await Caller(engine, chat(n=3)).call() == 200
    ((top, below),) = collected.calls
    assert top.parent is None
    assert Counter(names(below)) == dict.fromkeys(PHASES, 3)
    about = dict(top.attributes or {})
    assert about["gen_ai.usage.output_tokens"] == 6
    assert about["gen_ai.request.choice.count"] == 3
    assert about["gen_ai.response.finish_reasons"] == ("stop",) * 3
    ids = {dict(span.attributes or {}).get("gen_ai.response.id") for span in below}
    assert ids == {None, *(request.request_id for request in engine.requests[1:])}


async def test_a_caller_that_does_not_sample_gets_no_spans() -> None:
    collected = Collected()
    headers = {"traceparent": f"00-{TRACE_ID}-{CALLERS_SPAN}-00"}
    assert await Caller(engine_with(collected), chat(), **headers).call() == 200
    assert collected.calls == []


async def test_a_malformed_traceparent_begins_a_new_trace() -> None:
    collected = Collected()
    await Caller(engine_with(collected), chat(), traceparent="00-xyz-1-01").call()
    ((top, _),) = collected.calls
    assert top.parent is None


@pytest.mark.parametrize(
    ("steps", "body", "status", "error", "phases"),
    [
        (["Yes"], b"{", 400, "invalid_request", []),
        (["Yes"], chat(max_tokens=0), 400, "invalid_request", []),
        (["Yes"], chat(max_tokens=5000), 400, "context_length_exceeded", PHASES[:1]),
        ([GONE], chat(), 503, "engine_unavailable", PHASES[:2]),
        ([GONE], chat(stream=True), 503, "engine_unavailable", PHASES[:2]),
        (["Yes ", "no", GONE], chat(), 503, "engine_unavailable", PHASES),
        (["Yes ", "no", GONE], chat(stream=True), 200, "engine_unavailable", PHASES),
    ],
)
async def test_refused_and_failed_calls_end_with_their_error(
    steps: list[Step], body: Any, status: int, error: str, phases: list[str]
) -> None:
    collected = Collected()
    assert await Caller(engine_with(collected, *steps), body).call() == status
    ((top, below),) = collected.calls
    assert (top.status.status_code, top.status.description) == (StatusCode.ERROR, error)
    assert dict(top.attributes or {})["error.type"] == error
    assert dict(top.attributes or {})["http.response.status_code"] == status
    assert names(below) == phases
    ended = [span.status.description for span in below]
    assert ended == [*[None] * (len(phases) - 1), error][: len(phases)]


async def test_a_client_that_leaves_ends_its_spans() -> None:
    for steps, phases in ((["Yes ", "it ", WAITS], PHASES), ([WAITS], PHASES[:2])):
        collected = Collected()
        caller = Caller(engine_with(collected, *steps), chat(stream=True))
        calling = asyncio.create_task(caller.call())
        if phases == PHASES:
            await caller.begun.wait()
        caller.leave()
        await calling
        ((top, below),) = collected.calls
        assert top.status.description == "cancelled"
        assert names(below) == phases
        assert below[-1].status.description == "cancelled"


async def test_a_call_that_the_server_cancels_ends_its_spans() -> None:
    collected = Collected()
    engine = engine_with(collected, WAITS)
    calling = asyncio.create_task(Caller(engine, chat()).call())
    await until(lambda: bool(engine.requests))
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    ((top, below),) = collected.calls
    assert top.status.description == "cancelled"
    assert "http.response.status_code" not in dict(top.attributes or {})
    assert names(below) == PHASES[:2]


@pytest.mark.thorough
async def test_the_spans_of_a_thousand_calls_are_complete() -> None:
    """Each of a mix of whole, streamed, refused, failed, queued out and left calls."""
    collected = Collected()
    kinds = ["whole", "streamed", "dies", "dies late", "leaves", "invalid"]
    ends = dict(zip(kinds, (None, None, *["engine_unavailable"] * 2, "cancelled"), strict=False))
    steps: list[list[Step]] = [
        *(["Yes", "."], ["It ", "is", "."], [GONE], ["Yes ", "no", GONE], ["Yes ", "no", WAITS])
    ]
    limits = Serving(chunk_interval_ms=0, queue_limit=3)
    engine = FakeEngine(
        lambda request: steps[request.sampling.seed or 0], smollm2_tokenizer(), 4, limits
    )
    engine.tracing = collected.tracing()
    seen: Counter[tuple[int, str | None]] = Counter()

    async def one(kind: str) -> None:
        given = {"temperature": -1} if kind == "invalid" else {"seed": kinds.index(kind)}
        caller = Caller(engine, chat(stream=kind in ("streamed", "leaves"), **given))
        calling = asyncio.create_task(caller.call())
        if kind == "leaves":
            begun = asyncio.create_task(caller.begun.wait())
            await asyncio.wait([begun, calling], return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
            caller.leave()
        status = await calling
        refusals = {400: "invalid_request", 429: "queue_full"}
        seen[status, refusals.get(status, ends.get(kind))] += 1

    draw = random.Random(7)
    for _ in range(10):  # more at once than places and queue take
        await asyncio.gather(*map(one, draw.choices(kinds, k=100)))

    calls = collected.calls
    assert len(calls) == 1000
    ended = [(dict(top.attributes or {}), top.status.description) for top, _ in calls]
    assert Counter((about["http.response.status_code"], error) for about, error in ended) == seen
    assert {status for status, _ in seen} == {200, 400, 429, 503}
    assert len({top.context.span_id for top, _ in calls}) == 1000
    for top, below in calls:
        assert names(below) == PHASES[: len(below)]
        assert all(span.context.trace_id == top.context.trace_id for span in below)
        starts = [span.start_time or 0 for span in below]
        assert starts == sorted(starts)
        for span in (top, *below):
            assert (span.start_time or 0) <= (span.end_time or 0) <= (top.end_time or 0)
            assert SECRET not in span.to_json()


@pytest.mark.parametrize("path", ["", "/", "/v1/traces", "/own/path"])
async def test_spans_arrive_at_a_receiver(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url + path)
        monkeypatch.setenv("OTEL_TRACING_NDJSON_FILE", str(tmp_path / "spans"))
        tracing = open_tracing()
        assert tracing is not None
        engine = engine_with(Collected())
        engine.tracing = tracing
        await Caller(engine, chat(stream=True), **CALLER).call()
        tracing.close()
    assert receiver.paths == [path if len(path) > 1 else "/v1/traces"]
    spans = receiver.spans("trtllm-truss")
    assert [span.name for span in spans] == [*PHASES, "chat smollm2"]
    assert {span.trace_id.hex() for span in spans} == {TRACE_ID}
    assert spans[-1].parent_span_id.hex() == CALLERS_SPAN
    lines = (tmp_path / "spans").read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == [*PHASES, "chat smollm2"]


async def call_and_export(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """Export the spans of a call as the environment says."""
    for name, value in variables.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    tracing = open_tracing()
    assert tracing is not None
    engine = engine_with(Collected())
    engine.tracing = tracing
    await Caller(engine, chat(), **CALLER).call()
    tracing.close()


async def test_spans_are_posted_as_the_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    with OtlpReceiver() as receiver:
        await call_and_export(
            monkeypatch,
            ENDPOINT="http://127.0.0.1:1",
            TRACES_ENDPOINT=f"{receiver.url}/here",
            HEADERS="authorization=Bearer%20abc,x-team=us",
            COMPRESSION="none",
            TRACES_COMPRESSION="GZip",
        )
    assert receiver.paths == ["/here"]
    assert len(receiver.spans("trtllm-truss")) == 4
    headers = receiver.headers[0]
    assert headers["Content-Type"] == "application/x-protobuf"
    assert (headers["Authorization"], headers["X-Team"]) == ("Bearer abc", "us")


async def test_a_receiver_that_is_busy_gets_the_spans_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with OtlpReceiver(503) as receiver:
        await call_and_export(monkeypatch, ENDPOINT=receiver.url)
    assert len(receiver.paths) == 2
    assert len(receiver.spans("trtllm-truss")) == 4


async def test_lost_spans_are_logged_without_the_password_of_the_url(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with OtlpReceiver(400) as receiver:
        url = receiver.url.replace("//", "//me:hidden@")
        await call_and_export(monkeypatch, ENDPOINT=url)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "4 spans are lost: HTTP 400."
    ]
    assert "hidden" not in caplog.text


@pytest.mark.parametrize(
    ("name", "value"), [("TIMEOUT", "soon"), ("TIMEOUT", "-1"), ("TRACES_COMPRESSION", "zip")]
)
def test_wrong_variables_name_themselves(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    with pytest.raises(SettingsError, match=f"{name.removeprefix('TRACES_')} is '{value}'"):
        open_tracing()


async def test_an_unreachable_receiver_is_named_without_its_url(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await call_and_export(monkeypatch, ENDPOINT="http://127.0.0.1:1/traces?key=hidden", TIMEOUT="1")
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert errors == ["4 spans are lost: ConnectionError."]
    assert "hidden" not in caplog.text


async def test_a_large_call_loses_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = 1000
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        tracing = open_tracing()
        assert tracing is not None
        trace = tracing.begin({}, "/v1/completions", "id")
        assert trace is not None
        now_s = time.monotonic()
        for number in range(answers):
            trace.answered(
                *(f"{number}", (now_s, now_s, now_s), now_s),
                **{"reason": "length", "error": None, "cached_tokens": None},
                **{"input_tokens": 1, "output_tokens": 1},
            )
        trace.end()
        tracing.close()
    assert len(receiver.spans("trtllm-truss")) == 3 * answers + 1


async def test_half_a_surrogate_pair_loses_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        tracing = open_tracing()
        assert tracing is not None
        trace = tracing.begin({}, "/v1/completions", "id")
        assert trace is not None
        trace.describe(
            [GenerationRequest(prompt="", max_tokens=1, model="caf\udce9")], is_streamed=False
        )
        trace.end()
        tracing.close()
    assert [span.name for span in receiver.spans("trtllm-truss")] == ["text_completion caf?"]


async def test_a_service_name_that_is_no_utf_8_loses_no_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "caf\udce9")
    with OtlpReceiver() as receiver:
        await call_and_export(monkeypatch, ENDPOINT=receiver.url)
    assert len(receiver.spans("caf?")) == 4


def test_honeycomb_takes_the_secret_and_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HONEYCOMB_DATASET", "mine")
    assert open_tracing() is None
    tracing = open_tracing("key")
    assert tracing is not None
    tracing.close()


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "trtllm-truss"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine,zone=a"}, "mine"),
    ],
)
async def test_the_service_has_the_name_of_its_variables(
    variables: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    collected = Collected()
    await Caller(engine_with(collected), chat()).call()
    ((top, _),) = collected.calls
    assert top.resource.attributes["service.name"] == name
    assert ("zone" in top.resource.attributes) == ("OTEL_RESOURCE_ATTRIBUTES" in variables)
