from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.text.strategies import common_start, cuts, id_lists, pieces, texts
from tests.text.tokenizer_zoo import KINDS, STREAMING_KINDS, tokenizer_of

from trtllm_truss.text.tokenizer import TextTokenizer

every_kind = pytest.mark.parametrize("kind", KINDS)
streaming_kind = pytest.mark.parametrize("kind", STREAMING_KINDS)


def check_pieces(tokenizer: TextTokenizer, ids: Sequence[int], lengths: list[int]) -> None:
    for skip in (True, False):
        whole = tokenizer.decode(ids, skip_special_tokens=skip)
        decoding = tokenizer.start_decoding(skip)
        joined = ""
        for piece in pieces(ids, lengths):
            joined += decoding.push(piece)
            assert whole.startswith(joined)
        assert joined + decoding.flush() == whole


@every_kind
@given(text=texts, lengths=cuts)
def test_pieces_of_a_text_join_to_its_decoding(kind: str, text: str, lengths: list[int]) -> None:
    tokenizer = tokenizer_of(kind)
    check_pieces(tokenizer, tokenizer.encode(text), lengths)


@every_kind
@given(data=st.data(), lengths=cuts)
def test_pieces_of_any_ids_join_to_their_decoding(
    kind: str, data: st.DataObject, lengths: list[int]
) -> None:
    tokenizer = tokenizer_of(kind)
    check_pieces(tokenizer, data.draw(id_lists(tokenizer)), lengths)


def continuations(tokenizer: TextTokenizer) -> list[list[int]]:
    """Return ids to append that cover all possible changes of a text."""
    letter = tokenizer.encode("a", add_special_tokens=False)
    ways = [[], letter]
    for rest in (b"\x80\x80\x80", b"\x90\x80\x80", b"\xa0\x80\x80", b"\xbf\xbf\xbf", b"\xff"):
        for length in range(1, len(rest) + 1):
            ways.append([*byte_ids(tokenizer, rest[:length]), *letter])
    return ways


def byte_ids(tokenizer: TextTokenizer, data: bytes) -> list[int]:
    backend = tokenizer._backend
    names = [f"<0x{byte:02X}>" for byte in data]
    if backend.token_to_id(names[0]) is None:
        # GPT-2's alphabet maps these bytes to U+0122 to U+0142, and from U+00A1 to themselves.
        names = [chr(byte) if byte >= 0xA1 else chr(byte + 0xA2) for byte in data]
    ids = [backend.token_to_id(name) for name in names]
    return [token_id for token_id in ids if token_id is not None]


@streaming_kind
@given(text=texts)
def test_text_comes_as_soon_as_no_further_id_can_change_it(kind: str, text: str) -> None:
    # Without U+FFFD: it could be sent at its first byte, as both a complete and a broken character
    # decode to it. The decoder does not use this.
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text.replace("\ufffd", ""), add_special_tokens=False)
    decoding = tokenizer.start_decoding()
    ways = continuations(tokenizer)
    shown = ""
    for end, token_id in enumerate(ids, start=1):
        shown += decoding.push([token_id])
        assert shown == common_start([tokenizer.decode([*ids[:end], *way]) for way in ways])


@streaming_kind
def test_plain_text_comes_token_by_token(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("The quick brown fox jumps over the lazy dog", add_special_tokens=False)
    decoding = tokenizer.start_decoding()
    for end, token_id in enumerate(ids, start=1):
        before = tokenizer.decode(ids[: end - 1])
        assert before + decoding.push([token_id]) == tokenizer.decode(ids[:end])


@every_kind
@pytest.mark.timeout(20)
def test_the_cost_of_a_token_does_not_grow(kind: str) -> None:
    # Decoding the whole text again for each token would take minutes.
    tokenizer = tokenizer_of(kind)
    for ids in ([5] * 30_000, [3] * 30_000, [2] * 30_000, [60, 130] * 15_000):
        decoding = tokenizer.start_decoding()
        joined = "".join(decoding.push([token_id]) for token_id in ids) + decoding.flush()
        assert joined == tokenizer.decode(ids)
