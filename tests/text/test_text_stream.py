from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cuts, id_lists, pieces, texts
from tokenizer_zoo import KINDS, tokenizer_of

from trtllm_truss.text.text_stream import Piece, TextStream
from trtllm_truss.text.tokenizer import TextTokenizer


def cut(text: str, stop_words: Sequence[str]) -> str:
    found = [at for word in stop_words if (at := text.find(word)) >= 0]
    return text[: min(found, default=len(text))]


def check_stream(
    tokenizer: TextTokenizer, ids: list[int], lengths: list[int], stop_words: list[str]
) -> None:
    whole = tokenizer.decode(ids)
    stream = TextStream(tokenizer, stop_words)
    shown = ""
    for ids_ in pieces(ids, lengths):
        shown += stream.push(ids_).text
    shown += stream.finish()
    assert shown == cut(whole, stop_words)
    assert stream.stopped == (shown != whole)


@st.composite
def parts_of(draw: st.DrawFn, text: str) -> list[str]:
    """Stop words that have a chance: short parts of the text, and one that is not in it."""
    starts = draw(st.lists(st.integers(0, max(0, len(text) - 1)), max_size=3))
    words = [text[start : start + draw(st.integers(1, 6))] for start in starts]
    return [word for word in [*words, "\ue000"] if word]


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, derandomize=True, max_examples=100)
@given(data=st.data(), lengths=cuts, is_text=st.booleans())
def test_a_stop_word_ends_the_text_wherever_borders_fall(
    kind: str, data: st.DataObject, lengths: list[int], is_text: bool
) -> None:
    tokenizer = tokenizer_of(kind)
    ids = data.draw(texts.map(tokenizer.encode) if is_text else id_lists(tokenizer))
    check_stream(tokenizer, ids, lengths, data.draw(parts_of(tokenizer.decode(ids))))


def test_a_stop_word_across_tokens_and_pieces() -> None:
    tokenizer = tokenizer_of("smollm2")
    ids = tokenizer.encode("One, two, three.\n\nUser: more?")
    stream = TextStream(tokenizer, [".\n\nUser:"])
    seen = [stream.push([token_id]) for token_id in ids]
    assert "".join(piece.text for piece in seen) == "One, two, three"
    assert seen[-1] == Piece("", stopped=True)
    assert stream.finish() == ""


def test_the_end_releases_what_was_held_back_in_order() -> None:
    tokenizer = tokenizer_of("smollm2")
    emoji = tokenizer.encode("<|en🤖")
    stream = TextStream(tokenizer, ["<|en\ufffd!"])
    assert stream.push(emoji[:-1]) == Piece("", stopped=False)
    assert stream.finish() == "<|en\ufffd"
    assert not stream.stopped


def test_special_tokens_do_not_show() -> None:
    tokenizer = tokenizer_of("smollm2")
    stream = TextStream(tokenizer, [])
    ids = [*tokenizer.encode("one"), 1, *tokenizer.encode(" two"), *tokenizer.eos_ids]
    assert "".join(stream.push([token_id]).text for token_id in ids) == "one two"
