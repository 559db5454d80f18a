"""The limits of stop words and bad words, by the names of each protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import MAX_WORD_CHARACTERS, MAX_WORDS, MAX_WORDS_CHARACTERS
from trtllm_truss.protocols.lmi import parse_lmi
from trtllm_truss.protocols.messages.body import parse_messages
from trtllm_truss.protocols.openai.body import parse_chat, parse_completion
from trtllm_truss.protocols.predict import parse_predict

HI = [{"role": "user", "content": "Hi"}]


def lmi(**fields: Any) -> object:
    return parse_lmi({"inputs": "a", "parameters": fields}, {}, tgi=False)


def predict(**fields: Any) -> object:
    return parse_predict({"prompt": "a", **fields}, {})


def completion(**fields: Any) -> object:
    return parse_completion({"prompt": "a", **fields}, {})


def chat(**fields: Any) -> object:
    return parse_chat({"messages": HI, **fields}, {})


def messages(**fields: Any) -> object:
    return parse_messages({"messages": HI, "max_tokens": 1, **fields}, {})


FIELDS: list[tuple[Callable[..., object], str]] = [
    (predict, "stop_words"),
    (predict, "bad_words"),
    (completion, "stop"),
    (completion, "bad_words"),
    (chat, "stop"),
    (messages, "stop_sequences"),
    (lmi, "stop_sequences"),
    (lmi, "bad_sequences"),
]


@pytest.mark.parametrize(("parse", "field"), FIELDS)
def test_words_have_a_limit_of_characters_in_all(parse: Callable[..., object], field: str) -> None:
    most = MAX_WORDS_CHARACTERS // MAX_WORD_CHARACTERS
    assert most < MAX_WORDS
    words = ["a" * MAX_WORD_CHARACTERS] * most
    parse(**{field: words})
    with pytest.raises(InvalidRequest, match=rf"{field} is .*4096 characters in all") as refused:
        parse(**{field: [*words, "b"]})
    assert refused.value.param == field
