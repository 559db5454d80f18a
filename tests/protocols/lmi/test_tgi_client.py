"""huggingface_hub's client parses our TGI answers, and we parse its requests."""

from __future__ import annotations

import http.server
import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import (
    GenerationError,
    OverloadedError,
    TextGenerationError,
    ValidationError,
)
from tests.support.serving import serving

from trtllm_truss.endpoints.routes import is_tgi_client
from trtllm_truss.errors import EngineUnavailable, InvalidRequest, QueueFull, TrussError
from trtllm_truss.protocols.lmi import LmiAnswer, LmiForm, LmiStream, error_body, parse_lmi
from trtllm_truss.requests import FinishReason, GenerationEnd, TextDelta, Token, Usage

TOKENS = (Token(1425, "100", -1.5), Token(16, "%", -0.25), Token(25, ".", -0.5))
PIECES = (TextDelta("100%", tokens=TOKENS[:2]), TextDelta(".", tokens=TOKENS[2:]))
FINISH = GenerationEnd(FinishReason.LENGTH, Usage(4, 3), seed=7, prompt=(Token(487, "The"),))


class Answering(http.server.BaseHTTPRequestHandler):
    """Parse and answer with our code; `broken` selects the failure."""

    bodies: ClassVar[list[dict[str, Any]]] = []
    broken: ClassVar[dict[str, TrussError]] = {}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        tgi = is_tgi_client(self.headers["User-Agent"])
        if error := self.broken.get("before"):
            self._send(error.status, "application/json", error_body(error, tgi=tgi))
            return
        call = parse_lmi(body, {}, tgi=tgi)
        if call.form is LmiForm.EVENTS:
            stream = LmiStream(call)
            raw = b"".join(stream.push(piece) for piece in PIECES)
            error = self.broken.get("after")
            raw += stream.error(error) if error else stream.push(FINISH)
            self._send(200, call.form.media_type, raw)
            return
        answer = LmiAnswer(call)
        for item in (*PIECES, FINISH):
            answer.push(item)
        self._send(200, call.form.media_type, answer.body())

    def _send(self, status: int, media_type: str, content: Any) -> None:
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def client() -> Iterator[InferenceClient]:
    Answering.bodies.clear()
    Answering.broken.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    url = f"http://127.0.0.1:{server.server_port}/invocations"
    with serving(server), InferenceClient(url) as client:
        yield client


def test_text(client: InferenceClient) -> None:
    assert client.text_generation("The", max_new_tokens=3) == "100%."


def test_details(client: InferenceClient) -> None:
    answer = client.text_generation("The", details=True, decoder_input_details=True)
    assert answer.generated_text == "100%."
    details = answer.details
    assert details is not None
    assert (details.finish_reason, details.generated_tokens, details.seed) == ("length", 3, 7)
    assert [(token.id, token.text, token.logprob, token.special) for token in details.tokens] == [
        (1425, "100", -1.5, False),
        (16, "%", -0.25, False),
        (25, ".", -0.5, False),
    ]
    assert [token.id for token in details.prefill] == [487]


def test_stream(client: InferenceClient) -> None:
    assert list(client.text_generation("The", stream=True)) == ["100", "%", "."]


def test_stream_with_details(client: InferenceClient) -> None:
    events = list(client.text_generation("The", stream=True, details=True))
    assert [event.index for event in events] == [1, 2, 3]
    assert [event.token.logprob for event in events] == [-1.5, -0.25, -0.5]
    assert [event.generated_text for event in events] == [None, None, "100%."]
    assert events[0].details is None
    last = events[-1].details
    assert last is not None
    assert (last.finish_reason, last.generated_tokens, last.input_length, last.seed) == (
        *("length", 3, 4, 7),
    )


def test_every_parameter_of_the_client_is_known(client: InferenceClient) -> None:
    answer = client.text_generation(
        "The",
        best_of=1,
        do_sample=True,
        frequency_penalty=0.5,
        grammar={"type": "regex", "value": "a+"},  # type: ignore[arg-type]
        max_new_tokens=3,
        repetition_penalty=1.1,
        return_full_text=True,
        seed=7,
        stop=["x"],
        temperature=0.5,
        top_k=5,
        top_n_tokens=0,
        top_p=0.5,
        truncate=9,
        typical_p=1.0,
        watermark=False,
    )
    assert answer == "The100%."
    assert len(Answering.bodies[0]["parameters"]) > 12


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (InvalidRequest("no such thing."), ValidationError),
        (QueueFull("full."), OverloadedError),
        (EngineUnavailable("gone."), GenerationError),
    ],
)
def test_errors_become_the_clients_exceptions(
    client: InferenceClient, error: TrussError, raised: type[TextGenerationError]
) -> None:
    Answering.broken["before"] = error
    with pytest.raises(raised, match=error.message):
        client.text_generation("The")


def test_an_aborted_stream_raises(client: InferenceClient) -> None:
    Answering.broken["after"] = EngineUnavailable("the engine has died.")
    events = iter(client.text_generation("The", stream=True))
    assert [next(events) for _ in TOKENS] == ["100", "%", "."]
    with pytest.raises(GenerationError, match="the engine has died"):
        next(events)
