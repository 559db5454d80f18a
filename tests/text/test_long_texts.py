"""The cost of a long text is bounded by the engine's context; a tail is exact."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.text.tokenizer_zoo import tokenizer_of

from trtllm_truss.text import tokenizer as module
from trtllm_truss.text.tokenizer import (
    RenderedConversation,
    TextTokenizer,
    TooManyTokens,
    shows_all,
)

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


def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each rendering of a conversation."""
    renderings: list[str] = []
    render = RenderedConversation.render

    def noting(self: RenderedConversation, *arguments: Any) -> Any:
        renderings.append("rendered")
        return render(self, *arguments)

    monkeypatch.setattr(RenderedConversation, "render", noting)
    return renderings


@pytest.mark.parametrize("role", ["user", "tool", "system"])
def test_a_conversation_that_cannot_fit_is_not_rendered(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, renderings = tokenizer_of("smollm2"), rendered(monkeypatch)
    messages = [{"role": role, "content": "1 " * 500}] * 20
    with pytest.raises(TooManyTokens):
        tokenizer.apply_chat_template(messages, max_tokens=1000)
    assert not renderings


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "1 " * 500}] * 7,
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "1 " * 10_000}],
        [{"role": "user", "content": f"a{' ' * 20_000}"}],
    ],
    ids=["short enough to render", "the assistant's, of which a template may cut", "blank"],
)
def test_texts_that_a_template_may_not_show_whole_are_rendered_before_they_are_refused(
    messages: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, renderings = tokenizer_of("smollm2"), rendered(monkeypatch)
    with suppress(TooManyTokens):
        tokenizer.apply_chat_template(messages, max_tokens=1000)
    assert renderings


class Searched(str):
    """A prompt that counts the characters that are searched."""

    searched = 0

    def find(self, word: str, begin: int = 0) -> int:  # type: ignore[override]
        found = super().find(word, begin)
        self.searched += (len(self) if found < 0 else found) - begin
        return found


@pytest.mark.parametrize("written", [str, lambda name: json.dumps(name)[1:-1]], ids=["raw", "JSON"])
def test_names_of_functions_are_searched_once_through_the_prompt(
    written: Callable[[str], str],
) -> None:
    names = [f"größe_{number}" for number in range(300)]
    prompt = Searched("".join(f"{written(name)}: {'1 ' * 500}" for name in names))
    assert shows_all(prompt, names)
    assert prompt.searched <= 3 * len(prompt)


def test_each_name_must_be_shown_in_any_order() -> None:
    assert shows_all("b a", ["a", "b"])
    assert shows_all("gr\\u00f6\\u00dfe b größe a", ["größe", "a", "b", "größe"])
    assert not shows_all("b a", ["a", "c", "b"])
    assert shows_all("", [])
