from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.text.strategies import id_lists, texts
from tests.text.tokenizer_zoo import KINDS, tokenizer_of

from trtllm_truss.text.stop_words import StopWords
from trtllm_truss.text.text_stream import TextStream
from trtllm_truss.text.tokenizer import StopWordIds

words = st.one_of(
    texts.filter(bool), st.sampled_from(["\n", " the", "the", "a", "é", "🤖", "\ufffd"])
)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), word=words)
def test_a_hint_means_that_the_text_holds_the_word(
    kind: str, data: st.DataObject, word: str
) -> None:
    tokenizer = tokenizer_of(kind)
    if (hint := StopWordIds(tokenizer).hint(word)) is not None:
        before = data.draw(id_lists(tokenizer))
        stream = TextStream(tokenizer, StopWords([word]))
        stream.push([*before, hint])
        stream.finish()
        assert stream.stopped


def test_only_words_that_are_one_token_give_a_hint() -> None:
    tokenizer = tokenizer_of("smollm2")
    (newline,) = tokenizer.encode("\n")
    ids = StopWordIds(tokenizer)
    assert [ids.hint(word) for word in ("\n", "\n", "Observation: ")] == [newline, newline, None]


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        *(("smollm2", word) for word in ("<|im_end|>", "\ufffd", "\ud800")),
        *(("gemma", word) for word in ("\n", "é")),
    ],
)
def test_special_tokens_bytes_and_broken_text_give_no_hint(kind: str, word: str) -> None:
    assert StopWordIds(tokenizer_of(kind)).hint(word) is None


def test_a_space_that_the_first_token_loses_is_not_a_hint() -> None:
    tokenizer = tokenizer_of("llama-2")
    (token_id,) = tokenizer.encode("the", add_special_tokens=False)
    assert StopWordIds(tokenizer).hint("the") == token_id
    assert StopWordIds(tokenizer).hint(" the") is None


def test_a_special_token_is_known_by_its_name() -> None:
    tokenizer = tokenizer_of("smollm2")
    ids = StopWordIds(tokenizer)
    (end,) = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    assert ids.special("<|im_end|>") == end
    assert [ids.special(word) for word in ("the", "\ud800", "<|im_end|><|im_end|>")] == [None] * 3
