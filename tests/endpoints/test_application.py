"""The routes of our own HTTP server, alone and in front of Truss's, without a network."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.fakes.engine import FakeEngine
from tests.support.smollm2 import smollm2_tokenizer

from trtllm_truss.endpoints.application import TRUSS_PATHS, Application
from trtllm_truss.endpoints.routes import build_routes
from trtllm_truss.inference import tokenization
from trtllm_truss.local_requests import PREDICT
from trtllm_truss.observability.log_lines import REQUEST_ID
from trtllm_truss.settings.model import Serving

CONFIG = {"model_name": "mine", "model_metadata": {"lora_adapters": {"french": "org/french"}}}
KEY = "sk-0123456789"
BODIES = {"prompt": "Hi", "max_tokens": 2}
PROBES = ("/health", "/health/ready", "/v1/models/model")


class Engine(FakeEngine):
    healthy = True

    def is_healthy(self) -> bool:
        return self.healthy


def engine() -> Engine:
    return Engine(lambda _: ["Yes", "."], smollm2_tokenizer())


def begun(application: Application, served: Engine) -> Application:
    application.begin(served, build_routes(served, {}))  # type: ignore[arg-type]
    return application


def asking(application: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(application)
    return httpx.AsyncClient(transport=transport, base_url="http://server")


def alone(key: str = "") -> Application:
    return Application(CONFIG, Serving(), key).alone()


async def test_the_states_of_a_server() -> None:
    served, application = engine(), alone()
    async with asking(application) as client:

        async def statuses() -> list[int]:
            paths = ("/", "/health/live", *PROBES, "/v1/models/model/loaded", "/ping")
            return [(await client.get(path)).status_code for path in paths]

        assert await statuses() == [200, 200, 503, 503, 503, 503, 503]
        early = await client.post("/v1/chat/completions", json={})
        assert (early.status_code, early.headers["Retry-After"]) == (503, "5")
        assert early.json()["error"]["type"] == "server_error"
        for method, path in (("GET", "/v1/models"), ("GET", "/v1/models/french"), ("POST", "/v1")):
            early = await client.request(method, path)
            assert (early.status_code, early.headers["Retry-After"]) == (503, "5")
            assert early.json()["error"]["message"] == "the engine is starting."
        early = await client.post("/v1/messages", json={})
        assert early.json()["error"]["type"] == "overloaded_error"
        begun(application, served)
        assert await statuses() == [200, 200, 200, 200, 200, 200, 200]
        served.healthy = False
        assert await statuses() == [200, 200, 503, 503, 503, 200, 200]
        served.healthy = True
        application.drain()
        assert await statuses() == [200, 200, 503, 503, 503, 200, 200]
        last = await client.post(PREDICT, json=BODIES)
        assert (last.status_code, last.headers["Connection"]) == (200, "close")


async def test_models_adapters_and_metrics_are_listed() -> None:
    async with asking(begun(alone(), engine())) as client:
        models = (await client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in models] == ["mine", "french"]
        assert (await client.get("/v1/models/french")).json() == models[1]
        assert all(model["conversations"].startswith("the chat template shows") for model in models)
        for path in ("/metrics", "/metrics/"):
            page = await client.get(path)
            assert page.status_code == 200
            assert page.headers["Content-Type"].startswith("text/plain")
        for accepted in ("application/openmetrics-text; version=x", b"text/plain; version=\xff"):
            answer = await client.get("/metrics?name[]=up", headers={"Accept": accepted})
            assert answer.status_code == 200
        posted = await client.post("/metrics")
        assert (posted.status_code, posted.headers["Allow"]) == (405, "GET, HEAD")


async def test_tokens_of_a_text_and_of_a_conversation() -> None:
    served, tokenizer = engine(), smollm2_tokenizer()
    async with asking(begun(alone(), served)) as client:
        (model, _) = (await client.get("/v1/models")).json()["data"]
        text = "Hi, Zoë 🦜"
        answer = (await client.post("/tokenize", json={"prompt": text})).json()
        assert answer["tokens"] == tokenizer.encode(text)
        assert answer["count"] == len(answer["tokens"])
        assert (
            answer["max_model_len"]
            == model["max_model_len"]
            == served.pipeline.engine.max_sequence_tokens
        )
        assert answer["token_strs"] is None
        chat = {"messages": [{"role": "user", "content": "Hi"}], "return_token_strs": True}
        answer = (await client.post("/tokenize", json=chat)).json()
        assert "".join(answer["token_strs"]) == tokenizer.decode(
            answer["tokens"], skip_special_tokens=False
        )
        back = await client.post("/detokenize", json={"model": "m", "tokens": answer["tokens"]})
        assert back.json() == {"prompt": "".join(answer["token_strs"])}
    assert served.requests == []


@pytest.mark.parametrize(
    ("route", "count", "body", "kind", "limit"),
    [
        (
            *("/v1/messages", "count_tokens"),
            {"system": "Rhyme.", "messages": [{"role": "user", "content": "Zoë?"}]},
            *({}, "max_tokens"),
        ),
        (
            *("/v1/responses", "input_tokens"),
            {"instructions": "Rhyme.", "input": "Zoë?"},
            *({"object": "response.input_tokens"}, "max_output_tokens"),
        ),
    ],
    ids=["messages", "responses"],
)
async def test_tokens_are_counted_as_an_answer_counts_them(
    route: str, count: str, body: dict[str, Any], kind: dict[str, str], limit: str
) -> None:
    served = engine()
    async with asking(begun(alone(), served)) as client:
        counted = await client.post(f"{route}/{count}", json=body)
        assert served.requests == []
        answer = await client.post(route, json={**body, limit: 9})
        tokens = answer.json()["usage"]["input_tokens"]
        assert counted.json() == {**kind, "input_tokens": tokens}
        wrong = await client.post(f"{route}/{count}", json={**body, "tools": 5})
        shape = (await client.post(route, json={**body, limit: 9, "tools": 5})).json()
        assert (wrong.status_code, wrong.json()) == (400, shape)


LONG = "word " * 9000
"""More tokens than the context has."""


@pytest.mark.parametrize(
    ("path", "body", "key", "least"),
    [
        ("/tokenize", {"prompt": LONG}, "count", 9000),
        ("/tokenize", {"prompt": [5] * 9000}, "count", 9000),
        ("/tokenize", {"messages": [{"role": "user", "content": LONG}]}, "count", 9000),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": LONG}]}, "", 9000),
        ("/v1/responses/input_tokens", {"input": LONG}, "", 9000),
        ("/tokenize", {"messages": [{"role": "user", "content": ""}]}, "count", 1),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": ""}]}, "", 1),
        ("/v1/responses/input_tokens", {"input": ""}, "", 1),
    ],
)
async def test_a_text_beyond_the_context_or_an_empty_one_has_a_count(
    path: str, body: dict[str, Any], key: str, least: int
) -> None:
    """One counts to decide what to cut."""
    served = engine()
    assert served.pipeline.engine.max_sequence_tokens < 9000
    async with asking(begun(alone(), served)) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()[key or "input_tokens"] >= least
    assert served.requests == []


async def test_no_tokens_have_no_text() -> None:
    async with asking(begun(alone(), engine())) as client:
        for empty in ("", []):
            answer = (await client.post("/tokenize", json={"prompt": empty})).json()
            assert (answer["count"], answer["tokens"]) == (0, [])
        assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}
        long = await client.post("/detokenize", json={"tokens": [100] * 9000})
        assert len(long.json()["prompt"]) >= 9000


async def test_a_count_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenization, "MAX_COUNTED_TOKENS", 8)
    small = engine()
    async with asking(begun(alone(), small)) as client:
        for path, body in (
            ("/tokenize", {"prompt": [100] * 90_000}),
            ("/tokenize", {"prompt": "word " * 90_000}),
            ("/detokenize", {"tokens": [100] * 90_000}),
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == 400
            assert "at most" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "field", "meant"),
    [
        ("/v1/completions", "stopp", "did you mean stop?"),
        ("/v1/completions", "sufix", "did you mean suffix?"),
        ("/v1/completions", "return_generation_logit", "did you mean return_generation_logits?"),
        ("/v1/completions", "add_generation_prompt", "the fields are"),
        ("/v1/chat/completions", "max_token", "did you mean max_tokens?"),
        ("/v1/messages", "mcp_server", "did you mean mcp_servers?"),
    ],
)
async def test_suggestions_are_accepted_fields_or_near_ones(
    path: str, field: str, meant: str
) -> None:
    body = {"model": "m", "prompt": "a", field: 1}
    if "completions" not in path or "chat" in path:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, field: 1}
    async with asking(begun(alone(), engine())) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 400
    assert meant in answer.text


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {"prompt": ["a", "b"]}, "prompt holds 2 prompts"),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs is 1"),
        ("/tokenize", {"text": "a"}, "prompt is missing"),
        ("/detokenize", {"tokens": [10**6]}, "tokens holds the id 1000000"),
        ("/tokenize", {"prompt": "a", "return_token_strs": []}, "return_token_strs is []"),
        ("/tokenize", {"prompt": [5] * 9000 + ["a"]}, 'prompt[9000] is "a"; it must be a token id'),
        (
            "/tokenize",
            {"prompt": "a", "add_generation_prompt": True},
            "the fields are add_special_",
        ),
        ("/tokenize", {"prompt": "a", "sufix": "b"}, "did you mean suffix?"),
        ("/tokenize", {"prompt": [[5, -1]]}, "prompt[0][1] is -1; it must be a token id"),
        ("/detokenize", {"tokens": [1, "a"]}, 'tokens[1] is "a"; it must be a token id'),
        ("/detokenize", {"tokens": [1, True]}, "tokens[1] is true; it must be a token id"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0] is -1; it must be a token id"),
        ("/detokenize", {"tokens": [2**31]}, "tokens[0] is 2147483648; it must be a token id"),
        ("/detokenize", {"ids": [1]}, "ids"),
        ("/detokenize", {}, "send tokens"),
    ],
)
async def test_a_wrong_text_or_id_is_named(path: str, body: Any, words: str) -> None:
    async with asking(begun(alone(), engine())) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("POST", "/health", 405, "GET, HEAD"),
        ("DELETE", "/v1/models", 405, "GET, HEAD"),
        ("GET", "/v1/models/other", 404, None),
        ("POST", "/hot-reload", 404, None),
        ("GET", "/v1/models/model/schema", 404, None),
        ("GET", "/v1/responses/resp_1", 404, None),
        ("POST", "/v1/moderations", 404, None),
        ("POST", "/v1/models/model", 405, "GET, HEAD"),
        ("POST", "/v1/models/model:generate", 404, None),
        ("POST", "/rerank", 404, None),
    ],
)
@pytest.mark.parametrize("behind", [False, True])
async def test_other_methods_and_routes_are_named(
    behind: bool, method: str, path: str, status: int, allowed: str | None
) -> None:
    if behind and path in ("/hot-reload", "/v1/models/model/schema"):
        pytest.skip("Truss's own.")
    application = Application(CONFIG, Serving()).before(unasked) if behind else alone()
    async with asking(begun(application, engine())) as client:
        answer = await client.request(method, path)
    assert (answer.status_code, answer.headers.get("Allow")) == (status, allowed)
    error = answer.json()["error"]
    assert error["message"]
    assert ("type" in error) == path.startswith("/v1/")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/v1/messages", "has /v1 twice; remove it from the end of the client's base URL"),
        ("/v1/v1/chat/completions", "has /v1 twice"),
        ("/chat/completions", "lacks /v1; add it to the end of the client's base URL"),
        ("/v1/responses/resp_1", "answers are not stored"),
    ],
)
async def test_a_wrong_base_url_is_named(path: str, words: str) -> None:
    async with asking(begun(alone(), engine())) as client:
        answer = await client.post(path, json={})
    assert answer.status_code == 404
    error = answer.json()
    assert words in error["error"]["message"]
    assert (error.get("type") == "error") is ("messages" in path)


async def unasked(*_: Any) -> None:
    raise AssertionError("Truss was asked")


async def test_trusss_server_is_not_asked_while_the_engine_starts() -> None:
    async with asking(Application(CONFIG, Serving()).before(unasked)) as client:
        for path in (*TRUSS_PATHS, "/v1/models/other:predict", "/tokenize"):
            answer = await client.post(path, json={})
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
            assert "the engine is starting." in answer.text
        assert (await client.get("/v1/chat/completions")).status_code == 405


@pytest.mark.parametrize("path", sorted(TRUSS_PATHS))
async def test_a_request_without_the_key_reaches_no_endpoint(path: str) -> None:
    served = engine()
    async with asking(begun(alone(KEY), served)) as client:
        for headers in ({}, {"Authorization": f"Bearer {KEY}0"}, {"X-Api-Key": KEY[:-1]}):
            answer = await client.post(path, json=BODIES, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert KEY not in answer.text
        if path == "/v1/messages":
            assert answer.json()["error"]["type"] == "authentication_error"
        elif path.startswith("/v1/") and not path.startswith(PREDICT):
            assert answer.json()["error"]["type"] == "invalid_request_error"
    assert served.requests == []


async def test_the_key_opens_the_routes_and_probes_need_none() -> None:
    async with asking(begun(alone(KEY), engine())) as client:
        for headers in (
            {"Authorization": f"Bearer {KEY}"},
            {"Authorization": f"Api-Key {KEY}"},
            {"X-Api-Key": KEY},
        ):
            assert (await client.post(PREDICT, json=BODIES, headers=headers)).status_code == 200
            assert (await client.get("/v1/models", headers=headers)).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401
        for path in ("/", *PROBES, "/metrics"):
            assert (await client.get(path)).status_code == 200, path


@pytest.mark.parametrize(
    "value",
    [f"Basic {KEY}", f"Digest {KEY}", f"Token {KEY}", KEY, f" {KEY}", f"Bearer Bearer {KEY}", ""],
)
async def test_another_scheme_is_no_key(value: str) -> None:
    async with asking(begun(alone(KEY), engine())) as client:
        headers = {"Authorization": value}
        assert (await client.get("/v1/models", headers=headers)).status_code == 401
        named = {"Authorization": f"BEARER  {KEY} "}
        assert (await client.get("/v1/models", headers=named)).status_code == 200


async def test_the_key_protects_the_metrics_if_asked_to() -> None:
    application = Application(CONFIG, Serving(metrics_need_key=True), KEY).alone()
    async with asking(begun(application, engine())) as client:
        for path in ("/metrics", "/metrics/", "/metrics?name[]=up"):
            refused = await client.get(path)
            assert refused.status_code == 401
            assert "trtllm_" not in refused.text
            client.headers["X-Api-Key"] = KEY
            assert (await client.get(path)).status_code == 200
            del client.headers["X-Api-Key"]
        for path in ("/", *PROBES):
            assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("key", ["", KEY])
@pytest.mark.parametrize("path", ["/v1/websocket", "/", PREDICT])
async def test_no_route_takes_a_websocket(key: str, path: str) -> None:
    async def truss(*_: Any) -> None:
        raise AssertionError("Truss was asked")

    application = Application(CONFIG, Serving(), key)
    for asked in (application.alone(), application.before(truss)):
        sent: list[Any] = []
        scope = {"type": "websocket", "path": path, "headers": [(b"x-api-key", KEY.encode())]}

        async def send(message: Any, into: list[Any] = sent) -> None:
            into.append(message)

        await asked(scope, send, send)
        assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("4f1d-B.9_x", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("A" * 60_000, False),
        ("", False),
        ("a b", False),
        ('a","level":"ERROR', False),
        ("ä", False),
        ("\u0661", False),
    ],
)
async def test_the_platforms_id_is_kept_if_it_is_one(value: str, kept: bool) -> None:
    seen = []

    async def endpoint(request: Any) -> PlainTextResponse:
        seen.append(REQUEST_ID.get())
        return PlainTextResponse("")

    application = alone()
    application.begin(engine(), {"/here": endpoint})  # type: ignore[arg-type, dict-item]
    headers = {"X-Baseten-Request-Id": value.encode()}
    async with asking(application) as client:
        await client.post("/here", headers=headers)
    assert seen == [value if kept else None]


async def test_truss_answers_its_own_routes() -> None:
    async def answer(request: Any) -> PlainTextResponse:
        return PlainTextResponse("of Truss")

    truss = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    application = Application(CONFIG, Serving(), KEY).before(truss)
    async with asking(begun(application, engine())) as client:
        ready = "/v1/models/model"
        for path in ("/", ready, f"{ready}/loaded", f"{ready}/schema", "/ping"):
            assert (await client.get(path)).text == "of Truss"
            assert (await client.post(path)).status_code == 401
        assert (await client.get("/hot-reload")).status_code == 401
        client.headers["X-Api-Key"] = KEY
        assert (await client.get("/hot-reload")).text == "of Truss"
        for path in TRUSS_PATHS:
            assert (await client.post(path, json=BODIES)).text == "of Truss"
        assert (await client.get("/health")).json() == {}
        assert (await client.get("/v1/models")).json()["object"] == "list"
        for name in ("other", "org/other", "other/loaded", "other:predict", ""):
            unknown = await client.get(f"/v1/models/{name}")
            assert unknown.status_code == 404
            refusal = unknown.json()["error"]
            assert f"no model '{name}'" in refusal["message"]
            assert (refusal["code"], refusal["type"]) == (
                "model_not_found",
                "invalid_request_error",
            )
        assert (await client.get("/metrics")).text != "of Truss"
        del client.headers["X-Api-Key"]
        assert (await client.post(PREDICT, json=BODIES)).status_code == 401
        assert (await client.get("/hot-reload")).status_code == 401
