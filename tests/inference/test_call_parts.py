"""Parts of a call are built once for its prompts, and what these repeat is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from tests.fakes.engine import ENGINE, FakeEngine
from tests.support.virtual_time import virtually

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.guides.gate import GuideGate
from trtllm_truss.guides.guide import CheckedGuide
from trtllm_truss.inference.call_parts import (
    MAX_ECHOED_CHARACTERS,
    MAX_PROMPT_FIGURES,
    CallParts,
    RepeatedPrompts,
)
from trtllm_truss.inference.preprocessing import Capabilities, PreparedRequest, Preprocessor
from trtllm_truss.inference.tokenization import EncodedPrompt
from trtllm_truss.protocols.base import MAX_PROMPTS
from trtllm_truss.protocols.lmi import parse_lmi
from trtllm_truss.protocols.openai.body import parse_completion
from trtllm_truss.requests import GenerationRequest, Guide, Token
from trtllm_truss.text.tokenizer import TextTokenizer

WORDS = ["end", "<|im_end|>", "stop"]


class CountingGate(GuideGate):
    """Admits every guide, and counts."""

    def __init__(self) -> None:
        self.admitted: list[Guide] = []

    def fix_blanks(self, guide: Guide) -> Guide:
        return guide

    def begin(self, guide: Guide) -> None:
        return None

    async def admit(self, request: GenerationRequest, guide: Guide) -> CheckedGuide:
        self.admitted.append(guide)
        return CheckedGuide(guide, 1)


@pytest.fixture
def encoded(tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the texts that the tokenizer encodes."""
    texts: list[str] = []
    encode = tokenizer._encode

    def noted(text: str, add_special_tokens: bool) -> list[int]:
        texts.append(text)
        return encode(text, add_special_tokens)

    monkeypatch.setattr(tokenizer, "_encode", noted)
    return texts


async def prepared(
    preprocessor: Preprocessor, requests: Iterator[GenerationRequest] | tuple[Any, ...]
) -> list[PreparedRequest]:
    """Prepare the first answer of each request of a call."""
    parts: CallParts | None = None
    first = []
    for request in requests:
        one, *_ = await preprocessor.prepare(request, map(str, count()), before=parts)
        parts = one.parts
        first.append(one)
    return first


def test_requests_of_a_call_share_their_parts(tokenizer: TextTokenizer) -> None:
    bodies: tuple[tuple[GenerationRequest, ...], ...] = (
        parse_completion({"prompt": ["a", "b", [5]], "stop": WORDS, "seed": 2**40}, {}).requests,
        parse_lmi({"inputs": ["a", "b"], "parameters": {"stop": WORDS}}, {}, tgi=False).requests,
    )
    for first, *others in bodies:
        parts = CallParts(first, tokenizer, None, None)  # type: ignore[arg-type]
        assert all(parts.serve(other) for other in others)
        assert not parts.serve(replace(first, stop_words=("end",)))
        assert not parts.serve(replace(first, max_tokens=first.max_tokens + 1))


async def test_words_are_encoded_once_for_all_prompts(
    tokenizer: TextTokenizer, encoded: list[str]
) -> None:
    engine = Preprocessor(ENGINE, tokenizer, Capabilities())
    requests = parse_completion({"prompt": ["a"] * MAX_PROMPTS, "stop": WORDS}, {}).requests
    plans = await prepared(engine, requests)
    assert len({id(plan.parts) for plan in plans}) == 1
    assert encoded.count("a") == MAX_PROMPTS
    assert all(encoded.count(word) <= 2 for word in WORDS)
    assert plans[-1].engine_request.stop_words is plans[0].engine_request.stop_words


async def test_a_guide_is_checked_once_for_all_prompts(tokenizer: TextTokenizer) -> None:
    gate = CountingGate()
    preprocessor = Preprocessor(ENGINE, tokenizer, Capabilities(guides=True), gate)
    regex = {"type": "regex", "regex": "a+"}
    body = {"prompt": ["a"] * 8, "response_format": regex}
    plans = await prepared(preprocessor, parse_completion(body, {}).requests)
    assert gate.admitted == [Guide("regex", "a+")]
    assert all(plan.engine_request.guide == Guide("regex", "a+") for plan in plans)


async def test_other_fields_are_not_those_of_the_prompt_before(tokenizer: TextTokenizer) -> None:
    one = GenerationRequest(prompt="a", max_tokens=5, stop_words=("x",), stop_token_ids=(7,))
    other = replace(one, prompt="b", stop_words=("y",), stop_token_ids=(8,))
    first, second = await prepared(Preprocessor(ENGINE, tokenizer, Capabilities()), (one, other))
    assert 7 in first.parts.end_ids
    assert 8 in second.parts.end_ids
    assert second.parts.stop_words.first_characters == {"y"}
    with pytest.raises(InvalidRequest, match="holds the id 1000000"):
        await prepared(
            Preprocessor(ENGINE, tokenizer, Capabilities()),
            (one, replace(one, stop_token_ids=(10**6,))),
        )


async def test_a_count_of_tokens_builds_nothing_for_the_engine(
    tokenizer: TextTokenizer, encoded: list[str]
) -> None:
    gate = CountingGate()
    preprocessor = Preprocessor(ENGINE, tokenizer, Capabilities(guides=True), gate)
    request = GenerationRequest(
        prompt="a", max_tokens=0, stop_words=tuple(WORDS), guide=Guide("regex", "b"), n=3
    )
    plans = await preprocessor.prepare(request, map(str, count()))
    assert encoded == ["a"]
    assert gate.admitted == []
    assert "stop_words" not in vars(plans[0].parts)
    assert len({plan.seed for plan in plans}) == 3


@virtually
async def test_the_trie_is_built_for_the_first_text(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: ["a stop"], tokenizer)
    request = GenerationRequest(prompt="Hi", max_tokens=5, stop_words=("stop",))
    (plan,) = await engine.generator._preprocessor.prepare(request, map(str, count()))
    assert "stop_words" not in vars(plan.parts)
    items = [item async for each in engine.generator.generate([request]) for item in each]
    assert "".join(getattr(item, "text", "") for item in items) == "a "


def tokens(number: int) -> tuple[Token, ...]:
    return (Token(1, "a"),) * number


@pytest.mark.parametrize(
    ("fields", "prompt", "prompts", "param"),
    [
        ({"n": 9, "echo": True}, EncodedPrompt([1], "a" * (1 << 20)), 1, "choices"),
        ({"echo": True}, EncodedPrompt([1], "a" * (5 << 20)), 2, "text"),
        (
            {"prompt_details": True},
            EncodedPrompt([1], tokens=tokens(MAX_PROMPT_FIGURES // 2 + 1)),
            2,
            "text",
        ),
        (
            {"echo": True, "log_probs": 7, "n": 2},
            EncodedPrompt([1], tokens=tokens(MAX_PROMPT_FIGURES // 16 + 1)),
            1,
            "choices",
        ),
    ],
)
def test_what_answers_repeat_is_bounded(
    fields: dict[str, Any], prompt: EncodedPrompt, prompts: int, param: str
) -> None:
    names = {"n": "choices", "prompt": "text"}
    request = GenerationRequest(prompt="", max_tokens=0, names=names, **fields)
    repeated = RepeatedPrompts()
    for _ in range(prompts - 1):
        repeated.add(request, prompt)
    with pytest.raises(InvalidRequest, match="the answers would repeat") as refused:
        repeated.add(request, prompt)
    assert refused.value.param == param


def test_one_answer_may_repeat_all_of_its_prompt() -> None:
    request = GenerationRequest(prompt="", max_tokens=1, echo=True, log_probs=5)
    long = EncodedPrompt([1], "a" * (MAX_ECHOED_CHARACTERS + 1), tokens(MAX_PROMPT_FIGURES + 1))
    RepeatedPrompts().add(request, long)
    repeated = RepeatedPrompts()
    for _ in range(MAX_PROMPTS):
        repeated.add(request, EncodedPrompt([1], "a" * 100, tokens(80)))
