"""The cost of a long text is bounded by the engine's context; a tail is exact."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.text.tokenizer_zoo import tokenizer_of

from trtllm_truss.text import tokenizer as module
from trtllm_truss.text.tokenizer import TextTokenizer, TooManyTokens

WORDS = ["the", "1", "quick\n\nbrown", "Größe", "🤖", "fox,", "jumps", "3.14", "over\t日本語", "a"]


def long_text(seed: int, words: int = 20_000) -> str:
    chance = random.Random(seed)
    return " ".join(chance.choice(WORDS) for _ in range(words))


class Counted:
    """Counts the characters passed to a tokenizer's backend."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.characters = 0

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> Any:
        self.characters += sum(map(len, texts))
        return self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[TextTokenizer, Counted]:
    tokenizer = tokenizer_of("smollm2")
    counter = Counted(tokenizer._backend)
    monkeypatch.setattr(tokenizer, "_backend", counter)
    return tokenizer, counter


def test_a_text_that_cannot_fit_is_not_encoded_to_its_end(
    counted: tuple[TextTokenizer, Counted],
) -> None:
    tokenizer, counter = counted
    with pytest.raises(TooManyTokens):
        tokenizer.encode("1 " * 1_000_000, max_tokens=8191)
    assert counter.characters <= 2 * module._LONG_CHARACTERS


@pytest.mark.parametrize("kind", ["smollm2", "unigram"])
@pytest.mark.parametrize("seed", range(3))
def test_a_long_text_that_fits_is_encoded_as_a_whole(kind: str, seed: int) -> None:
    tokenizer, text = tokenizer_of(kind), long_text(seed)
    whole = tokenizer.encode(text)
    assert tokenizer.encode(text, max_tokens=len(whole)) == whole
    with pytest.raises(TooManyTokens):
        tokenizer.encode(text, max_tokens=len(whole) // 2)


@pytest.mark.parametrize("kind", ["smollm2", "unigram"])
@pytest.mark.parametrize("count", [1, 100, 5000])
def test_the_tail_is_that_of_the_whole_text(kind: str, count: int) -> None:
    tokenizer, text = tokenizer_of(kind), long_text(7)
    assert tokenizer.encode(text, keep_last=count)[-count:] == tokenizer.encode(text)[-count:]


def test_a_short_tail_of_a_long_text_is_cheap(counted: tuple[TextTokenizer, Counted]) -> None:
    tokenizer, counter = counted
    tokenizer.encode("1 " * 1_000_000, keep_last=100)
    assert counter.characters <= 2 * module._LONG_CHARACTERS


@pytest.mark.parametrize("limits", [{"max_tokens": 10**6}, {"keep_last": 10**6}])
def test_encoding_ends_when_nobody_waits_for_it(
    counted: tuple[TextTokenizer, Counted], limits: dict[str, int]
) -> None:
    tokenizer, counter = counted
    slices = [1, 2]

    def checkpoint() -> None:
        slices.pop()

    with pytest.raises(IndexError):
        tokenizer.encode("1 " * 1_000_000, checkpoint=checkpoint, **limits)
    assert counter.characters == 2 * module._LONG_CHARACTERS
    messages = [{"role": "user", "content": "1"}] * 3
    with pytest.raises(IndexError):
        tokenizer.apply_chat_template(messages, checkpoint=checkpoint, **limits)
