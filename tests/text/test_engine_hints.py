from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import id_lists, texts
from tokenizer_zoo import KINDS, tokenizer_of

from trtllm_truss.text.engine_hints import engine_stop_hints
from trtllm_truss.text.text_stream import TextStream

words = st.one_of(
    texts.filter(bool), st.sampled_from(["\n", " the", "the", "a", "é", "🤖", "\ufffd"])
)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, derandomize=True, max_examples=100)
@given(data=st.data(), word=words)
def test_a_hint_means_that_the_text_holds_the_word(
    kind: str, data: st.DataObject, word: str
) -> None:
    tokenizer = tokenizer_of(kind)
    for hint in engine_stop_hints(tokenizer, [word]):
        before = data.draw(id_lists(tokenizer))
        stream = TextStream(tokenizer, [word])
        stream.push([*before, *hint])
        stream.finish()
        assert stream.stopped


def test_only_words_that_are_one_token_give_a_hint() -> None:
    tokenizer = tokenizer_of("smollm2")
    newline = tokenizer.encode("\n")
    assert len(newline) == 1
    assert engine_stop_hints(tokenizer, ["\n", "\n", "Observation: "]) == [newline]


def test_special_tokens_bytes_and_broken_text_give_no_hint() -> None:
    assert engine_stop_hints(tokenizer_of("smollm2"), ["<|im_end|>", "\ufffd", "\ud800"]) == []
    assert engine_stop_hints(tokenizer_of("gemma"), ["\n", "é"]) == []


def test_a_leading_space_is_no_hint_where_the_first_token_loses_it() -> None:
    tokenizer = tokenizer_of("llama-2")
    token_id = tokenizer.encode("the", add_special_tokens=False)
    assert engine_stop_hints(tokenizer, ["the"]) == [token_id]
    assert engine_stop_hints(tokenizer, [" the"]) == []
