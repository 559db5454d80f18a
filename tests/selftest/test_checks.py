"""Single checks against a server that breaks one promise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.serving import serving
from tests.support.smollm2 import smollm2_tokenizer

from trtllm_truss.settings.model import Settings
from trtllm_workbench.selftest import answer_checks, engine_checks
from trtllm_workbench.selftest.calls import Api, DirectEngine
from trtllm_workbench.selftest.served_model import (
    PROMPTS,
    CheckVerdict,
    Failed,
    GreedyAnswer,
    Passed,
    Report,
    Result,
    ServedModel,
    Skipped,
    run_check,
)

Reply = tuple[int, Mapping[str, str], bytes]
Respond = Callable[[str, bytes], Reply]
SETTINGS = Settings(engine_repository="/engine", serving={"queue_limit": 1})


def reply(status: int, content: object, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, named, json.dumps(content).encode()


@contextmanager
def model(respond: Respond) -> Iterator[ServedModel]:
    """Yield a bench of a server that answers each request with a function."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, content = respond(self.path, body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, serving(server):
        yield ServedModel(
            server=SimpleNamespace(api=Api(server.server_port)),
            direct=DirectEngine("127.0.0.1:1", "1.0.0"),
            tokenizer=smollm2_tokenizer(),
            settings=SETTINGS,
            batch=1,
            context_tokens=64,
            cache_tokens=256,
        )


def shortfall(respond: Respond, check: Callable[[ServedModel], Passed]) -> str:
    with model(respond) as served, pytest.raises(Failed) as raised:
        check(served)
    return str(raised.value)


def test_an_accepted_bad_body_is_named() -> None:
    found = shortfall(lambda *_: reply(200, {"text": "fine"}), answer_checks.bad_bodies)
    assert found.startswith("/v1/models/model:predict responded to b'{\"prompt\": '")
    assert found.endswith("expected 4xx and 'JSON'")


def test_an_error_must_name_the_field() -> None:
    def respond(_: str, body: bytes) -> Reply:
        known = body in (b'{"prompt": ', b"[1, 2]")
        return reply(400, {"error": {"message": "JSON object" if known else "wrong"}})

    assert "HTTP 400: wrong; expected 4xx and 'prompt'" in shortfall(
        respond, answer_checks.bad_bodies
    )


def test_a_refusal_needs_retry_after() -> None:
    found = shortfall(lambda *_: reply(429, {}), engine_checks.overload)
    assert found == "HTTP 429 came without Retry-After"


def test_everything_accepted_is_no_overload_protection() -> None:
    found = shortfall(lambda *_: reply(200, {}), engine_checks.overload)
    assert found.startswith("0 of 6 requests at once were refused")


def test_a_stream_must_equal_the_whole_answer() -> None:
    def respond(_: str, body: bytes) -> Reply:
        streamed = json.loads(body).get("stream")
        if not streamed:
            return reply(200, {"choices": [{"text": "one two"}]})
        return 200, {}, b'data: {"choices": [{"text": "one"}]}\n\ndata: [DONE]\n\n'

    assert "returned 'one two' at once and streamed 'one'" in shortfall(
        respond, answer_checks.completions
    )


def test_another_shape_is_named() -> None:
    found = shortfall(lambda *_: reply(200, {"answer": "one"}), answer_checks.messages)
    assert found.startswith("/v1/messages does not have the API's shape (KeyError: 'content')")


def test_a_temperature_of_0_must_not_draw() -> None:
    def respond(_: str, body: bytes) -> Reply:
        sent = json.loads(body)
        greedy = sent["temperature"] == 0 and "top_p" not in sent
        return reply(200, {"choices": [{"text": "one" if greedy else f"seed {sent['seed']}"}]})

    found = shortfall(respond, answer_checks.temperature)
    assert found == (
        "temperature 0 with {'top_p': 1.0} is not greedy: seed 1 gave 'seed 1', seed 2 'seed 2'"
    )


def test_a_missing_template_and_missing_guides_are_reasons() -> None:
    def respond(path: str, _: bytes) -> Reply:
        reason = "guide cannot be followed: guided decoding is off. Leave it out, or set it."
        if "chat" in path:
            reason = "the tokenizer has no chat template"
        return reply(400, {"error": {"message": reason}})

    with model(respond) as served:
        for check in (answer_checks.chat_completions, answer_checks.guided_decoding):
            with pytest.raises(Skipped):
                check(served)


@pytest.mark.parametrize(
    ("log_probs", "part"),
    [([-0.5], "1 log probabilities of 1 tokens"), ([-0.5, 0.7], r"at most 0; found \[0.7\]")],
)
def test_log_probabilities_are_counted_and_bounded(log_probs: list[float], part: str) -> None:
    tokens = [" a"] * len(log_probs)
    answer = {
        "choices": [{"text": " a a", "logprobs": {"tokens": tokens, "token_logprobs": log_probs}}],
        "usage": {"completion_tokens": 2},
    }
    with model(lambda *_: reply(200, answer)) as served, pytest.raises(Failed, match=part):
        answer_checks.log_probabilities(served)


def answered(written: str, said: str | None = None, *, cut_short: bool = True) -> ServedModel:
    """Return a bench with one answer, whose text may differ from its ids."""
    ids = smollm2_tokenizer().encode(written)
    if said is None:
        said = smollm2_tokenizer().decode(ids)
    with model(lambda *_: reply(500, {})) as served:
        served.__dict__["answers"] = [GreedyAnswer(PROMPTS[0], ids, said, said, cut_short)]
        return served


def test_text_that_is_not_the_decoding_is_named() -> None:
    assert answer_checks.exact_text(answered("naïve 😀")).figures["tokens"] > 2
    with pytest.raises(Failed, match="differ from the tokenizer's decoding, 'naïve 😀'"):
        answer_checks.exact_text(answered("naïve 😀", "naïve 😀 "))


@pytest.mark.parametrize(
    ("said", "cut_short", "passed"),
    [("a�b", True, False), ("ab�", True, True), ("ab�", False, False)],
)
def test_half_a_character_is_allowed_where_the_limit_cut_it(
    said: str, cut_short: bool, passed: bool
) -> None:
    result = run_check(
        "",
        "text",
        "",
        lambda: answer_checks.whole_characters(answered("ab", said, cut_short=cut_short)),
    )
    assert (result.verdict is CheckVerdict.PASSED) is passed


def fail(error: Exception) -> Passed:
    raise error


def test_a_bug_in_a_check_falls_short_and_does_not_end_the_run() -> None:
    result = run_check("", "text", "name", lambda: fail(KeyError("x")))
    assert (result.verdict, result.detail) == (CheckVerdict.FAILED, "unexpected KeyError: 'x'")


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        ([CheckVerdict.PASSED, CheckVerdict.SKIPPED], 0),
        ([CheckVerdict.PASSED, CheckVerdict.FAILED], 1),
        ([CheckVerdict.SKIPPED], 1),
        ([], 1),
    ],
)
def test_the_status_follows_from_the_verdicts(verdicts: list[CheckVerdict], status: int) -> None:
    results = [Result("", "text", "name", verdict, "", {}, 0.0) for verdict in verdicts]
    report: Any = json.loads(Report({}, results, 1.0).to_json())
    assert report["status"] == status
    assert len(report["checks"]) == len(verdicts)
