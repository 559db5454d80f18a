"""The request log, and its rendering by Truss's formatters."""

from __future__ import annotations

import importlib.util
import json
import logging
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.observability.metrics import CallLine, Metrics
from trtllm_truss.requests import FinishReason


@pytest.fixture(autouse=True)
def _listen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trtllm_truss.requests")


@pytest.fixture
def now() -> list[float]:
    return [10.0]


@pytest.fixture
def metrics(now: list[float]) -> Metrics:
    return Metrics(engine_up=lambda: True, clock=lambda: now[0])


@pytest.fixture(scope="module")
def truss_log() -> ModuleType:
    """Apply the log configuration of Truss's server, without the rest of Truss."""
    truss = importlib.util.find_spec("truss")
    assert truss is not None
    assert truss.origin is not None
    path = Path(truss.origin).parent / "templates/shared/log_config.py"
    spec = importlib.util.spec_from_file_location("truss_log_config", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # an old name of pythonjsonlogger
        spec.loader.exec_module(module)
    return module


def answer(metrics: Metrics, now: list[float]) -> None:
    request = metrics.request_started("predict", "4f1d")
    request.queued(0.0125)
    request.sent(12)
    request.cached(8)
    now[0] = 10.25
    request.tokens(1)
    now[0] = 12.0
    request.tokens(49)
    now[0] = 12.5
    request.finished(FinishReason.STOP)
    request.cancelled()


def test_one_line_summarizes_a_request(metrics, now, caplog) -> None:
    answer(metrics, now)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("trtllm_truss.requests", logging.INFO)
    assert record.getMessage() == (
        "request engine_request_id=4f1d protocol=predict status=finished reason=stop "
        "prompt_tokens=12 cached_tokens=8 generation_tokens=50 queue_ms=12.5 ttft_ms=250.0 "
        "total_ms=2500.0 tokens_per_s=20.0"
    )


def test_one_line_summarizes_a_call_of_many_prompts(metrics, now, caplog) -> None:
    line = CallLine("completions", "4f1d")
    answers = [metrics.request_started("completions", f"4f1d-{n}", line=line) for n in range(256)]
    for number, request in enumerate(answers):
        request.queued(0.01 * (number + 1))
        request.sent(3)
    now[0] = 10.5
    answers[7].tokens(1)
    for request in answers[:255]:
        now[0] += 0.005
        request.tokens(2)
        request.finished(FinishReason.LENGTH)
    assert not caplog.records
    now[0] = 20.0
    answers[255].finished(FinishReason.STOP)
    assert caplog.messages == [
        "request engine_request_id=4f1d protocol=completions status=finished reason=length "
        "answers=256 prompt_tokens=768 generation_tokens=511 queue_ms=2560.0 ttft_ms=500.0 "
        "total_ms=10000.0 tokens_per_s=51.1"
    ]


@pytest.mark.parametrize("last", ["finish", "cancel"])
def test_a_call_fails_with_its_first_answer_that_fails(metrics, now, caplog, last) -> None:
    line = CallLine("completions", "4f1d")
    first, second, third = (metrics.request_started("completions", "x", line=line) for _ in "abc")
    now[0] = 10.25
    first.finished(FinishReason.STOP)
    second.failed("deadline_exceeded")
    third.finished(FinishReason.STOP) if last == "finish" else third.cancelled()
    assert caplog.messages == [
        "request engine_request_id=4f1d protocol=completions status=failed "
        "reason=deadline_exceeded answers=3 generation_tokens=0 total_ms=250.0 tokens_per_s=0.0"
    ]


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ("max_tokens", "max_tokens"),
        ("messages[3].content", "messages[3].content"),
        ("top_p", "top_p"),
        ("n", "n"),
        (None, None),
        ("Why is the sky blue?", None),  # names of unknown fields are the caller's text
        ("tell me", None),
        ("hf_AbCdEfGhIjKlMnOpQrStUvWx", None),
        ("sk-abcdef", None),
        ("a0b1c2d3e4f5a0b1c2d3e4f5", None),
        ("a" * 61, None),
        ("n\nrequest status=finished", None),
        ("top_p=1 reason=stop", None),
    ],
)
def test_a_refusal_names_its_field_and_no_text_of_the_caller(
    metrics, caplog, field: str | None, shown: str | None
) -> None:
    metrics.refused("openai", "4f1d", InvalidRequest("no", param=field))
    named = f" param={shown}" if shown else ""
    beginning = "request engine_request_id=4f1d protocol=openai status=failed"
    assert caplog.messages == [
        f"{beginning} reason=invalid_request{named} generation_tokens=0 total_ms=0.0"
    ]
    assert getattr(caplog.records[0], "param", None) == shown


def test_a_call_of_several_answers_names_the_field_of_the_first_that_fails(metrics, caplog) -> None:
    line = CallLine("completions", "4f1d")
    first, second = (metrics.request_started("completions", "x", line=line) for _ in "ab")
    with pytest.raises(InvalidRequest), first:
        raise InvalidRequest("too long", param="prompt")
    second.failed("queue_full")
    assert " reason=invalid_request param=prompt answers=2 " in caplog.messages[0]


def test_missing_values_are_left_out(metrics, now, caplog) -> None:
    refused = metrics.request_started("openai", "1")
    now[0] += 0.5
    refused.failed("queue_full")
    left = metrics.request_started("predict", "2")
    left.queued(0)
    left.sent(7)
    now[0] += 0.25
    left.cancelled()
    left.tokens_wasted(3)
    assert caplog.messages == [
        "request engine_request_id=1 protocol=openai status=failed reason=queue_full "
        "generation_tokens=0 total_ms=500.0 tokens_per_s=0.0",
        "request engine_request_id=2 protocol=predict status=cancelled prompt_tokens=7 "
        "generation_tokens=0 queue_ms=0 total_ms=250.0 tokens_per_s=0.0",
    ]


def test_truss_writes_fields_as_json(metrics, now, caplog, truss_log) -> None:
    answer(metrics, now)
    formatter = _formatter(truss_log)
    token = truss_log.request_id_context.set("platform-7")
    try:
        line = formatter.format(caplog.records[0])
    finally:
        truss_log.request_id_context.reset(token)
    fields = json.loads(line)
    assert "\n" not in line
    assert fields.pop("message") == caplog.messages[0]
    del fields["asctime"], fields["levelname"]
    fields.pop("taskName", None)
    assert fields == {
        "request_id": "platform-7",
        "engine_request_id": "4f1d",
        "protocol": "predict",
        "status": "finished",
        "reason": "stop",
        "prompt_tokens": 12,
        "cached_tokens": 8,
        "generation_tokens": 50,
        "queue_ms": 12.5,
        "ttft_ms": 250.0,
        "total_ms": 2500.0,
        "tokens_per_s": 20.0,
    }


def _formatter(truss_log: ModuleType) -> logging.Formatter:
    settings = truss_log.make_log_config("INFO")["formatters"]["default_formatter"]
    formatter: logging.Formatter = settings["()"](settings["format"])
    return formatter
