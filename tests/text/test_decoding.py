"""Decoding is exact for any valid tokenizer.json, also with decoders of no known model."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.tokenizer_zoo import SPECIAL, tokenizer_of
from tokenizers import Regex, Tokenizer, decoders, models

from trtllm_truss.text.decoding import choose_decoding

TOKENS = [
    *SPECIAL, "", " ", "  ", "▁", "▁▁", "▁a", "a", "aa", "b▁", "##b", "b</w>", "</w>", ".", "n't",
    "|", "\ufffd", "é", "<pad>", "<0x+1>", "<0xZZ>", "x<0x41>", "▁<0x41>", "<0x", "Ġ", "Ã",
    "©", "ðŁ",
    *(f"<0x{byte:02X}>" for byte in (0x20, 0x41, 0x80, 0x82, 0xAC, 0xC3, 0xE2, 0xF0, 0xFF)),
]  # fmt: skip

STAGES = [
    decoders.Replace("▁", " "),
    decoders.Replace("▁", ""),
    decoders.Replace(" ", "a"),
    decoders.Replace("a", ""),
    decoders.Replace("a", "▁ "),
    decoders.Replace(" a", "b"),
    decoders.Replace(Regex("a+"), " "),
    decoders.Replace(Regex("^."), ""),
    decoders.ByteFallback(),
    decoders.ByteFallback(),
    decoders.Fuse(),
    decoders.Fuse(),
    decoders.Strip(" ", 1, 0),
    decoders.Strip(" ", 3, 0),
    decoders.Strip("a", 2, 0),
    decoders.Metaspace(),
    decoders.Metaspace(prepend_scheme="never"),
    decoders.WordPiece(cleanup=True),
    decoders.WordPiece(cleanup=False),
    decoders.BPEDecoder(),
    decoders.CTC(),
    decoders.ByteLevel(),
]


@settings(max_examples=6 * settings.default.max_examples)
@given(
    stages=st.lists(st.sampled_from(STAGES), max_size=5),
    ids=st.lists(st.integers(0, len(TOKENS)), max_size=20),
    skip=st.booleans(),
)
def test_any_decoder_is_exact(stages: list[decoders.Decoder], ids: list[int], skip: bool) -> None:
    vocabulary = {token: token_id for token_id, token in enumerate(TOKENS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.add_special_tokens(SPECIAL)
    if stages:
        backend.decoder = decoders.Sequence(stages)
    whole = backend.decode(ids, skip_special_tokens=skip)
    decoding = choose_decoding(backend, skip_special_tokens=skip)()
    joined = ""
    for token_id in ids:
        joined += decoding.push([token_id])
        assert whole.startswith(joined)
    assert joined + decoding.flush() == whole


def test_a_decoder_that_cannot_stream_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    backend = tokenizer_of("word-ends")._backend
    with caplog.at_level(logging.WARNING):
        choose_decoding(backend)
    assert "this tokenizer cannot stream" in caplog.text
