"""Answers to the byte as LMI's documentation shows them; its misprints are not followed.

The documented examples leave out that streamed lines follow one another without blank lines and
that an event is `data: ` with a space, as the handlers write it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from trtllm_truss.errors import EngineUnavailable, InternalError, InvalidRequest, QueueFull
from trtllm_truss.protocols.lmi import LmiAnswer, LmiCall, LmiStream, error_body, parse_lmi
from trtllm_truss.requests import AnswerItem, FinishReason, GenerationEnd, TextDelta, Token, Usage

QUESTION = "What is Deep Learning?"
TOKENS = (
    Token(304, "Deep ", -0.052432529628276825),
    Token(11157, " Learning", -1.2865009307861328),
    Token(5972, " field.", -0.6950479745864868),
)
PIECES = (TextDelta("Deep ", tokens=TOKENS[:1]), TextDelta(" Learning field.", tokens=TOKENS[1:]))
LENGTH = GenerationEnd(FinishReason.LENGTH, Usage(5, 3), seed=42)


def call(stream: bool = False, tgi: bool = False, **parameters: Any) -> LmiCall:
    body = {"inputs": QUESTION, "stream": stream, "parameters": parameters}
    return parse_lmi(body, {}, tgi=tgi)


def whole(call: LmiCall, *items: AnswerItem) -> str:
    answer = LmiAnswer(call)
    for item in items:
        answer.push(item)
    return json.dumps(answer.body())


def lines(call: LmiCall, *items: AnswerItem) -> str:
    stream = LmiStream(call)
    return b"".join(stream.push(item) for item in items).decode()


def test_whole() -> None:
    expected = '{"generated_text": "Deep  Learning field."}'
    assert whole(call(), *PIECES, LENGTH) == expected


def test_whole_with_details() -> None:
    assert whole(call(details=True), *PIECES, LENGTH) == (
        '{"generated_text": "Deep  Learning field.", "details": {"finish_reason": "length", '
        '"generated_tokens": 3, "inputs": "What is Deep Learning?", "tokens": ['
        '{"id": 304, "text": "Deep ", "log_prob": -0.052432529628276825}, '
        '{"id": 11157, "text": " Learning", "log_prob": -1.2865009307861328}, '
        '{"id": 5972, "text": " field.", "log_prob": -0.6950479745864868}]}}'
    )


def test_whole_with_prompt_tokens() -> None:
    finish = GenerationEnd(FinishReason.STOP, Usage(1, 3), prompt=(Token(1, "<s>", special=True),))
    details = json.loads(whole(call(details=True, decoder_input_details=True), *PIECES, finish))
    assert details["details"]["prefill"] == [
        {"id": 1, "text": "<s>", "log_prob": None, "special_token": True}
    ]


def test_full_text() -> None:
    assert json.loads(whole(call(return_full_text=True), *PIECES, LENGTH)) == {
        "generated_text": "What is Deep Learning?Deep  Learning field."
    }
    last = lines(call(stream=True, return_full_text=True), *PIECES, LENGTH).splitlines()[-1]
    assert json.loads(last)["generated_text"].startswith(QUESTION)


@pytest.mark.parametrize(
    ("reason", "stop_word", "name"),
    [
        (FinishReason.STOP, None, "eos_token"),
        (FinishReason.STOP, "\n", "stop_sequence"),
        (FinishReason.LENGTH, None, "length"),
    ],
)
def test_reasons(reason: FinishReason, stop_word: str | None, name: str) -> None:
    finish = GenerationEnd(reason, Usage(5, 3), stop_word=stop_word)
    assert json.loads(whole(call(details=True), *PIECES, finish))["details"]["finish_reason"] == (
        name
    )


def test_a_list_of_inputs_returns_a_list() -> None:
    answer = LmiAnswer(parse_lmi({"inputs": ["a", "b"]}, {}, tgi=False))
    for index, text in ((1, "y"), (0, "x")):
        answer.push(TextDelta(text, index))
        answer.push(replace(LENGTH, index=index))
    assert answer.body() == [{"generated_text": "x"}, {"generated_text": "y"}]


def test_an_answer_without_an_end_is_a_bug() -> None:
    with pytest.raises(InternalError):
        whole(call(), *PIECES)


def test_json_lines() -> None:
    assert lines(call(stream=True, details=True), *PIECES, LENGTH) == (
        '{"token": {"id": 304, "text": "Deep ", "log_prob": -0.052432529628276825}}\n'
        '{"token": {"id": 11157, "text": " Learning", "log_prob": -1.2865009307861328}}\n'
        '{"token": {"id": 5972, "text": " field.", "log_prob": -0.6950479745864868}, '
        '"generated_text": "Deep  Learning field.", "details": {"finish_reason": "length", '
        '"generated_tokens": 3, "inputs": "What is Deep Learning?"}}\n'
    )


def test_json_lines_without_details() -> None:
    last = lines(call(stream=True), *PIECES, LENGTH).splitlines()[-1]
    assert last == (
        '{"token": {"id": 5972, "text": " field.", "log_prob": -0.6950479745864868}, '
        '"generated_text": "Deep  Learning field."}'
    )


def test_events() -> None:
    text = lines(call(stream=True, output_formatter="sse"), *PIECES, LENGTH)
    assert text.startswith(
        'data: {"token": {"id": 304, "text": "Deep ", "log_prob": -0.052432529628276825}}\n\n'
    )
    assert text.count("\n\n") == text.count("data: ") == 3
    assert "[DONE]" not in text


def test_an_empty_stream_has_one_line() -> None:
    finish = GenerationEnd(FinishReason.STOP, Usage(5, 0))
    assert lines(call(stream=True), finish) == (
        '{"token": {"id": -1, "text": "", "log_prob": -1, "special_token": true}, '
        '"generated_text": ""}\n'
    )


def test_text_is_not_escaped() -> None:
    tokens = (Token(1, "é\u2028", None), Token(2, "\n", None))
    text = lines(call(stream=True), TextDelta("é\u2028\n", tokens=tokens), LENGTH)
    assert text.split("\n")[0] == '{"token": {"id": 1, "text": "é\u2028", "log_prob": null}}'


def test_an_aborted_stream() -> None:
    stream = LmiStream(call(stream=True))
    raw = stream.push(PIECES[0]) + stream.error(EngineUnavailable("the engine has died."))
    first, last = raw.decode().splitlines()
    assert first == '{"token": {"id": 304, "text": "Deep ", "log_prob": -0.052432529628276825}}'
    assert json.loads(last) == {
        "token": {
            "id": -1,
            "text": "",
            "log_prob": -1,
            "special_token": True,
            "error_msg": "the engine has died.",
        },
        "generated_text": "",
        "details": {"finish_reason": "error", "generated_tokens": None, "inputs": None},
    }


def test_errors_have_lmis_shape_and_the_true_status() -> None:
    assert error_body(InvalidRequest("no."), tgi=False) == {"code": 400, "error": "no."}
    assert error_body(QueueFull("full."), tgi=False) == {"code": 429, "error": "full."}
