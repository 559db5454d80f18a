"""Bodies to responses in every protocol, with a fake engine that follows a script."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from tests.fakes.engine import FakeEngine, Step
from tests.support.smollm2 import smollm2_tokenizer
from tokenizers import Tokenizer, models

from trtllm_truss.endpoints.application import INVOCATIONS
from trtllm_truss.endpoints.routes import build_routes
from trtllm_truss.errors import EngineUnavailable
from trtllm_truss.local_requests import PREDICT
from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer

PACKAGE = "/trtllm_truss/"
TGI = {"User-Agent": "unknown/None; hf_hub/1.0.0; python/3.12"}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
GONE = EngineUnavailable("the engine has died.", retry_after_s=5)
INVALID = {"message": "max_tokens is 0; it must be at least 1.", "param": "max_tokens"}


def served(
    steps: Sequence[Step],
    defaults: Mapping[str, Any] | None = None,
    tokenizer: TextTokenizer | None = None,
    **sampling: object,
) -> tuple[httpx.AsyncClient, FakeEngine]:
    engine = FakeEngine(lambda _: steps, tokenizer or smollm2_tokenizer())
    engine.pipeline = engine.pipeline._replace(recommended=sampling)
    routes = build_routes(engine, defaults or {})  # type: ignore[arg-type]
    paths = {"/predict": PREDICT, "/invocations": INVOCATIONS}
    paths |= {"/chat": "/v1/chat/completions"}
    paths |= {f"/{n}": f"/v1/{n}" for n in ("completions", "embeddings", "messages", "responses")}
    app = Starlette(
        routes=[
            Route(short, routes[path].__call__, methods=["POST"]) for short, path in paths.items()
        ]
    )
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://server"), engine


async def post(
    path: str, body: Any, steps: Sequence[Step] = ("Yes", "."), **headers: str
) -> httpx.Response:
    client, _ = served(steps)
    async with client:
        return await client.post(path, json=body, headers=headers)


@pytest.mark.parametrize(
    ("path", "body", "headers", "said"),
    [
        (
            "/predict",
            {"prompt": "Hi", "max_tokens": 0},
            {},
            {"error": {"code": "invalid_request", **INVALID}},
        ),
        (
            "/chat",
            {**CHAT, "max_tokens": 0},
            {},
            {
                "error": {
                    "type": "invalid_request_error",
                    "code": "invalid_request",
                    **INVALID,
                }
            },
        ),
        (
            "/messages",
            {**CHAT, "max_tokens": 0},
            {},
            {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": INVALID["message"]},
            },
        ),
        (
            "/predict",
            {"inputs": "Hi", "parameters": {"n": 2}},
            {},
            {
                "code": 400,
                "error": "parameters.n is 2; it is not supported: one sequence is generated. "
                "Leave it out.",
            },
        ),
        (
            "/predict",
            {"inputs": 5},
            TGI,
            {
                "error": "inputs is 5; it must be a non-empty string.",
                "error_type": "validation",
            },
        ),
    ],
)
async def test_an_error_has_the_shape_of_its_protocol(
    path: str, body: Any, headers: dict[str, str], said: Any
) -> None:
    answer = await post(path, body, **headers)
    assert answer.status_code == 400
    assert answer.json() == said


@pytest.mark.parametrize(
    ("path", "headers", "shape"),
    [
        ("/predict", {}, ["code", "message", "param"]),
        ("/chat", {}, ["code", "message", "param", "type"]),
        ("/completions", TGI, ["code", "message", "param", "type"]),
        ("/responses", {}, ["code", "message", "param", "type"]),
        ("/messages", {}, ["message", "type"]),
    ],
)
async def test_invalid_json_gets_the_routes_error_shape(
    path: str, headers: dict[str, str], shape: list[str]
) -> None:
    client, engine = served([])
    async with client:
        answer = await client.post(path, content=b"{", headers=headers)
    assert answer.status_code == 400
    assert sorted(answer.json()["error"]) == shape
    assert engine.counted("requests_failed") == 1


@pytest.mark.parametrize("path", ["/chat", "/completions", "/responses", "/messages"])
async def test_an_answer_names_the_served_model_by_default(path: str) -> None:
    """The name is that of `/v1/models`."""
    bodies = {"/completions": {"prompt": "Hi"}, "/responses": {"input": "Hi"}}
    body = bodies.get(path, CHAT) | ({"max_tokens": 9} if path == "/messages" else {})
    assert (await post(path, body)).json()["model"] == "smollm2"
    assert (await post(path, {**body, "model": "other"})).json()["model"] == "other"


async def test_invalid_json_gets_tgis_error_shape() -> None:
    client, _ = served([])
    async with client:
        answer = await client.post("/predict", content=b"{", headers=TGI)
    assert answer.json()["error_type"] == "validation"


@pytest.mark.parametrize(
    ("body", "headers", "media_type", "first_key"),
    [
        (CHAT, {}, "application/json", "id"),
        (CHAT, TGI, "application/json", "id"),
        ({**CHAT, "stream": True}, {}, "text/event-stream; charset=utf-8", None),
        ({"prompt": "Hi"}, {}, "application/json", "id"),
        ({"prompt": "Hi", "stream": True}, {}, "text/event-stream; charset=utf-8", None),
        ({"inputs": "Hi"}, {}, "application/json", "generated_text"),
    ],
)
async def test_invocations_are_chosen_by_the_body(
    body: Any, headers: dict[str, str], media_type: str, first_key: str | None
) -> None:
    answer = await post("/invocations", body, **headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
    if first_key is None:
        assert answer.text.endswith("data: [DONE]\n\n")
    else:
        assert next(iter(answer.json())) == first_key
    for path in ("/predict", "/invocations"):
        answer = await post(path, {**body, "max_tokenz": 1}, **headers)
        assert answer.status_code == 400


@pytest.mark.parametrize("raw", [b"{", b"{}", b'{"parameters": {}}'])
async def test_errors_at_invocations_are_lmis(raw: bytes) -> None:
    client, _ = served([])
    async with client:
        answer = await client.post("/invocations", content=raw)
    assert answer.status_code == 400
    assert list(answer.json()) == ["code", "error"]


async def test_invocations_report_the_chosen_token_as_lmi_does() -> None:
    sent = {**CHAT, "logprobs": True, "top_logprobs": 1}
    answer = (await post("/invocations", sent)).json()
    tokens = answer["choices"][0]["logprobs"]["content"]
    assert [token["top_logprobs"][0]["token"] for token in tokens] == ["Yes", "."]
    assert (await post("/chat", sent)).status_code == 400
    answer = (await post("/invocations", {"prompt": "Hi", "logprobs": 1})).json()
    assert answer["choices"][0]["logprobs"]["top_logprobs"] == [{"Yes": 0.0}, {".": -1.0}]
    assert (await post("/completions", {"prompt": "Hi", "logprobs": 1})).status_code == 400


async def test_embeddings_are_refused_in_openais_shape() -> None:
    answer = await post("/embeddings", {"model": "m", "input": "Hi"})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("not_served", "invalid_request_error")


BODIES = [
    ("/predict", {"prompt": "Hi", "stream": True}, {"Accept": "text/event-stream"}),
    ("/chat", {**CHAT, "stream": True}, {}),
    ("/completions", {"prompt": "Hi", "stream": True}, {}),
    ("/responses", {"input": "Hi", "stream": True}, {}),
    ("/predict", {"inputs": "Hi", "stream": True}, {}),
    ("/predict", {"inputs": "Hi", "stream": True}, TGI),
]


@pytest.mark.parametrize(("path", "body", "headers"), BODIES)
async def test_an_error_before_the_first_delta_sets_the_status(
    path: str, body: Any, headers: dict[str, str]
) -> None:
    answer = await post(path, body, [GONE], **headers)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert "the engine has died." in answer.text


@pytest.mark.parametrize(("path", "body", "headers"), BODIES)
async def test_a_later_error_ends_the_stream_in_the_protocols_shape(
    path: str, body: Any, headers: dict[str, str]
) -> None:
    answer = await post(path, body, ["One", " two", " three", GONE], **headers)
    assert answer.status_code == 200
    *before, last = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert " two" in "".join(before)
    said = json.loads(last)
    assert "[DONE]" not in answer.text
    if "inputs" in body and not headers:
        assert said["token"]["error_msg"] == "the engine has died."
        assert said["details"]["finish_reason"] == "error"
    else:
        error = (said["response"] if path == "/responses" else said)["error"]
        assert "the engine has died." in (error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize(("path", "body", "headers"), BODIES)
async def test_an_unhandled_exception_hides_its_message(
    path: str, body: Any, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    secret: Any = ["a secret that is no token"]
    answer = await post(path, body, ["One", " two", " three", secret], **headers)
    assert "internal server error" in answer.text
    assert "secret" not in answer.text
    assert "unhandled exception" in caplog.text


@pytest.mark.parametrize("stream", [True, False])
async def test_a_panic_in_the_tokenizer_is_an_internal_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    model = models.WordLevel({"Hi": 0, "?": 1}, unk_token="?")
    parts = json.loads(Tokenizer(model).to_str())
    parts["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<gone>", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts))
    client, _ = served(["Hi"], tokenizer=load_tokenizer(tmp_path))
    async with client:
        for prompt in ("Hi", "Hi " * 5000):
            answer = await client.post("/predict", json={"prompt": prompt, "stream": stream})
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "internal_error"
    assert caplog.text.count("unhandled exception") == 2


@pytest.mark.parametrize(
    ("accept", "steps", "is_whole"),
    [
        ("text/event-stream", ["Yes."], True),
        ("text/event-stream", ["Yes", "."], False),
        ("*/*", ["Yes."], False),
    ],
)
async def test_events_that_are_whole_at_once_have_a_length(
    accept: str, steps: list[Step], is_whole: bool
) -> None:
    answer = await post("/predict", {"prompt": "Hi"}, steps, Accept=accept)
    assert "Yes" in answer.text
    assert answer.headers["x-accel-buffering"] == "no"
    length = answer.headers.get("content-length")
    assert length == (str(len(answer.content)) if is_whole else None)


async def test_every_response_has_a_request_id() -> None:
    for body in (CHAT, {**CHAT, "max_tokens": 0}, {**CHAT, "stream": True}):
        answer = await post("/chat", body)
        assert len(answer.headers["x-request-id"]) == 32
    first = json.loads(answer.text.splitlines()[0].removeprefix("data: "))
    assert first["id"] == f"chatcmpl-{answer.headers['x-request-id']}"


async def test_an_empty_answer_is_valid() -> None:
    body = {"prompt": "Hi", "stop_words": ["Yes"]}
    answer = await post("/predict", body)
    assert (answer.status_code, answer.text) == (200, "")
    answer = await post("/predict", body, accept="application/json")
    assert answer.json()["text"] == ""


async def test_the_operators_defaults_override_the_models() -> None:
    recommended = {"temperature": 0.6, "top_p": 0.9, "top_k": -1, "repetition_penalty": None}
    client, engine = served(["Yes"], {"temperature": 0.2, "max_tokens": 7}, **recommended)
    async with client:
        for path, body in (
            ("/completions", {"prompt": "Hi"}),
            ("/completions", {"prompt": "Hi", "top_p": 0.5}),
            ("/predict", {"inputs": "Hi", "parameters": {"do_sample": True}}),
            ("/predict", {"prompt": "Hi"}),
        ):
            assert (await client.post(path, json=body)).status_code == 200
    sampling = [request.sampling for request in engine.requests]
    assert [each.temperature for each in sampling] == [0.2] * 4
    assert [each.top_p for each in sampling] == [0.9, 0.5, 0.85, None]
    assert [each.top_k for each in sampling] == [0, 0, 5, None]
    assert [request.max_tokens for request in engine.requests] == [7] * 4


def is_ours(thing: object) -> bool:
    """Return True for an object of this package, and for a frame of its code."""
    if isinstance(thing, FrameType):
        return PACKAGE in thing.f_code.co_filename
    return type(thing).__module__.startswith("trtllm_truss")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", {"prompt": "Hi", "max_tokens": 9}),
        ("/predict", {"prompt": "Hi", "max_tokens": 9, "stop_words": ["."]}),
        ("/predict", {"prompt": "Hi", "max_tokens": 0}),
        ("/predict", {"prompt": ["Hi", {"a": [1, 2, 3]}]}),
        ("/predict", {"prompt": "Hi " * 9000}),
        ("/predict", "{"),
        ("/chat", CHAT),
        ("/chat", {**CHAT, "stream": True}),
        ("/chat", {**CHAT, "messages": []}),
        ("/completions", {"prompt": "Hi", "max_tokens": 9}),
        ("/responses", {"input": "Hi", "stream": True}),
        ("/messages", CHAT),
        ("/messages", {**CHAT, "stream": True}),
    ],
)
@pytest.mark.parametrize("steps", [("Yes", "."), ("Yes", GONE), (GONE,)])
async def test_a_request_leaves_nothing_to_the_garbage_collector(
    path: str, body: Any, steps: Sequence[Step]
) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    client, _ = served(steps)
    client.headers["Accept"] = "text/event-stream"
    async with client:
        await client.post(path, content=content)  # builds what all requests share
        gc.freeze()  # spares the collections of a large process
        gc.disable()
        try:
            await client.post(path, content=content)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = [thing for thing in gc.garbage if is_ours(thing)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
            gc.unfreeze()
    assert left == []


async def test_an_error_message_is_always_utf_8() -> None:
    """JSON's escapes can contain a lone surrogate, which no response can."""
    for path, body in (
        ("/chat", {**CHAT, "structured_outputs": {"\ud800": 1}}),
        ("/messages", {**CHAT, "\ud800": 1}),
        ("/invocations", {"inputs": "Hi", "parameters": {"\ud800": 1}}),
    ):
        client, _ = served(("Yes",))
        async with client:
            assert (await client.post(path, content=json.dumps(body))).status_code == 400
    error = EngineUnavailable("\ud800", param="a\udfff")
    assert (error.message, error.param, str(error)) == ("?", "a?", "?")
