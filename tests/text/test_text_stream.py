from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.text.strategies import cuts, id_lists, pieces, texts
from tests.text.tokenizer_zoo import KINDS, tokenizer_of

from trtllm_truss.text.stop_words import StopWords
from trtllm_truss.text.text_stream import Piece, TextStream, TokenStream, TokenText
from trtllm_truss.text.tokenizer import TextTokenizer

options = st.fixed_dictionaries(
    {"include_stop_word": st.booleans(), "skip_special_tokens": st.booleans()}
)


def cut(text: str, stop_words: Sequence[str], *, after: bool = False) -> str:
    """Cut a text before its first stop word, or after the shortest one at that position."""
    found = [(at, len(word)) for word in stop_words if (at := text.find(word)) >= 0]
    at, length = min(found, default=(len(text), 0))
    return text[: at + length if after else at]


def check_stream(
    tokenizer: TextTokenizer,
    ids: list[int],
    lengths: list[int],
    stop_words: list[str],
    options: dict[str, bool],
) -> None:
    whole = tokenizer.decode(ids, options["skip_special_tokens"])
    stream = TextStream(tokenizer, StopWords(stop_words), **options)
    shown = ""
    for ids_ in pieces(ids, lengths):
        shown += stream.push(ids_).text
    shown += stream.finish()
    assert shown == cut(whole, stop_words, after=options["include_stop_word"])
    assert stream.stopped == (cut(whole, stop_words) != whole)
    if stream.stop_word is not None:
        assert whole.startswith(stream.stop_word, len(cut(whole, stop_words)))
    check_tokens(tokenizer, ids, lengths, stop_words, options, shown)


def check_tokens(
    tokenizer: TextTokenizer,
    ids: list[int],
    lengths: list[int],
    stop_words: list[str],
    options: dict[str, bool],
    text: str,
) -> None:
    """Fail unless the tokens have the same text and are the first ids in order."""
    stream = TokenStream(tokenizer, StopWords(stop_words), **options)
    shown, reported = "", []
    for ids_ in pieces(ids, lengths):
        piece = stream.push(ids_)
        assert piece.text == "".join(token.text for token in stream.tokens)
        shown += piece.text
        reported += stream.tokens
    last = stream.finish()
    shown += last
    reported += stream.tokens
    assert shown == text
    assert [token.id for token in reported] == ids[: len(reported)]
    assert stream.stopped or len(reported) == len(ids)
    left = text.removeprefix("".join(token.text for token in reported))
    assert left in ("", "\ufffd")


@st.composite
def parts_of(draw: st.DrawFn, text: str) -> list[str]:
    """Draw stop words: short parts of the text, and one that is not in it."""
    starts = draw(st.lists(st.integers(0, max(0, len(text) - 1)), max_size=3))
    words = [text[start : start + draw(st.integers(1, 6))] for start in starts]
    return [word for word in [*words, "\ue000"] if word]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), lengths=cuts, is_text=st.booleans(), options=options)
def test_a_stop_word_ends_the_text_at_any_cut(
    kind: str, data: st.DataObject, lengths: list[int], is_text: bool, options: dict[str, bool]
) -> None:
    tokenizer = tokenizer_of(kind)
    ids = data.draw(texts.map(tokenizer.encode) if is_text else id_lists(tokenizer))
    whole = tokenizer.decode(ids, options["skip_special_tokens"])
    check_stream(tokenizer, ids, lengths, data.draw(parts_of(whole)), options)


def test_a_stop_word_across_tokens_and_pieces() -> None:
    tokenizer = tokenizer_of("smollm2")
    ids = tokenizer.encode("One, two, three.\n\nUser: more?")
    stream = TextStream(tokenizer, StopWords([".\n\nUser:"]))
    seen = [stream.push([token_id]) for token_id in ids]
    assert "".join(piece.text for piece in seen) == "One, two, three"
    assert seen[-1] == Piece("", stopped=True, used=0)
    assert stream.finish() == ""


def test_the_end_releases_held_back_text_in_order() -> None:
    tokenizer = tokenizer_of("smollm2")
    emoji = tokenizer.encode("<|en🤖")
    stream = TextStream(tokenizer, StopWords(["<|en\ufffd!"]))
    assert stream.push(emoji[:-1]) == Piece("", stopped=False, used=len(emoji) - 1)
    assert stream.finish() == "<|en\ufffd"
    assert not stream.stopped


def test_special_tokens_do_not_show() -> None:
    tokenizer = tokenizer_of("smollm2")
    stream = TextStream(tokenizer, StopWords([]))
    ids = [*tokenizer.encode("one"), 1, *tokenizer.encode(" two"), *tokenizer.eos_ids]
    assert "".join(stream.push([token_id]).text for token_id in ids) == "one two"


def test_special_tokens_show_if_they_are_to() -> None:
    tokenizer = tokenizer_of("smollm2")
    stream = TextStream(tokenizer, StopWords([]), skip_special_tokens=False)
    assert stream.push([*tokenizer.encode("one"), 1]).text == "one<|im_start|>"


def test_the_stop_word_that_ended_it_is_reported() -> None:
    tokenizer = tokenizer_of("smollm2")
    stream = TextStream(tokenizer, StopWords(["three", " two"]))
    stream.push(tokenizer.encode("one two three"))
    assert stream.stop_word == " two"


def test_each_token_has_its_added_text() -> None:
    tokenizer = tokenizer_of("smollm2")
    ids = tokenizer.encode("Hi🤖!")
    stream = TokenStream(tokenizer)
    reported = [token for token_id in ids if stream.push([token_id]) for token in stream.tokens]
    assert [token.id for token in reported] == ids
    assert [token.text for token in reported] == ["Hi", *[""] * (len(ids) - 3), "🤖", "!"]
    assert len(ids) > 3


def test_a_token_cut_by_a_stop_word_is_reported_with_the_rest_of_its_text() -> None:
    tokenizer = tokenizer_of("smollm2")
    ids = tokenizer.encode("one two three")
    stream = TokenStream(tokenizer, StopWords(["wo th"]))
    reported = [token for token_id in ids if stream.push([token_id]) for token in stream.tokens]
    assert reported == [TokenText(ids[0], "one"), TokenText(ids[1], " t")]
    assert stream.finish() == ""
    assert stream.tokens == ()
